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
        self.functions: list[str] = []

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
            self.functions.append(frame.f_code.co_qualname)

    @property
    def calls(self) -> int:
        return len(self.files)

    @property
    def text(self) -> str:
        """The functions by file, in their order, each once at a time; not ``__init__`` and the like."""
        steps: list[tuple[str, list[str]]] = []
        for file, function in zip(self.files, self.functions, strict=True):
            name = function.removesuffix(".__init__")
            if name.endswith((">", "__")):
                continue
            if not steps or steps[-1][0] != file:
                steps.append((file, []))
            if name not in steps[-1][1]:
                steps[-1][1].append(name)
        rows = [(file.removeprefix(OURS), ", ".join(names)) for file, names in steps]
        width = max(len(file) for file, _ in rows)
        return "\n".join(f"{file:{width}}  {names}" for file, names in rows)

    @property
    def changes(self) -> int:
        """How many calls went to another file than the one before."""
        return sum(one != other for one, other in pairwise(self.files))
