"""Which of weblock's functions are called: a figure that no noise moves."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import weblock

OURS = str(Path(weblock.__file__).parent) + os.sep


class Way:
    """The files of weblock whose functions this thread calls, in their order.

    To go on with a coroutine counts as a call.
    """

    def __init__(self) -> None:
        self.files: list[str] = []

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Notes the calls of a block."""
        gc.collect()  # Else what other tests have left may be finalized meanwhile.
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(None)

    def _note(self, frame: Any, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(OURS):
            self.files.append(frame.f_code.co_filename)

    @property
    def calls(self) -> int:
        return len(self.files)

    @property
    def changes(self) -> int:
        """How many calls went to another file than the one before."""
        return sum(one != other for one, other in pairwise(self.files))
