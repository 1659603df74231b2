"""What ``help()``, an editor and a shell show of the public names."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any, get_type_hints

import pytest

import weblock
from weblock import AsyncLocks, HoldOptions, Locks
from weblock._options import _DEFAULTS


@pytest.mark.parametrize(
    "function",
    [Locks.hold, AsyncLocks.hold],
    ids=["Locks.hold", "AsyncLocks.hold"],
)
def test_the_options_stand_in_the_docstring_with_their_defaults(
    function: Callable[..., Any],
) -> None:
    """``help(Locks.hold)`` shows every option with its default."""
    told = dict(
        re.findall(r"^\s+``(\w+)`` \((.+?)\): ", inspect.getdoc(function) or "", re.MULTILINE)
    )
    assert set(told) == set(get_type_hints(HoldOptions))
    assert told.pop("label") == "host name and process id"
    for name, default in told.items():
        assert _DEFAULTS[name] == eval(default.strip("`")), name


def test_a_shell_completes_what_is_public() -> None:
    """``dir(weblock)`` has the public names, which exist, and no private or internal ones."""
    names = dir(weblock)
    assert set(weblock.__all__) < set(names)
    assert all(hasattr(weblock, name) for name in names)
    assert not {"sync", "aio", "stores", "inspection", "caching"} & set(names)
