"""``LockSpec``: what a user says is to be locked."""

from copy import deepcopy
from typing import Any

import pytest

from weblock import ConfigurationError
from weblock.contrib.kit import LockSpec
from weblock.keys import KeyTemplate


@pytest.mark.parametrize("key", [7, None, ("a",), b"a", ["a", "b"]], ids=repr)
def test_what_is_neither_a_key_nor_a_function_is_refused_where_it_is_written(key: Any) -> None:
    """Not at the first request."""
    with pytest.raises(ConfigurationError, match="a lock key is a string"):
        LockSpec.of([key], {})


def test_a_spec_is_its_own_copy() -> None:
    """Frameworks copy what they are given; a spec never changes."""
    spec = LockSpec.of(["item:{item_id}", str, KeyTemplate.parse("x")], {"wait": 0})
    assert deepcopy(spec) is spec
