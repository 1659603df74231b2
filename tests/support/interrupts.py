"""Raises an exception, or does something else, at one line after another of weblock's own code.

So a signal handler may, and the collector of garbage, which runs finalizers of other code.
"""

from __future__ import annotations

import ast
import dis
import functools
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import weblock

PACKAGE = str(Path(weblock.__file__).parent)


class Interrupt(BaseException):
    """What a signal handler raises: no ``Exception``, like ``KeyboardInterrupt``."""


def _interrupt() -> None:
    raise Interrupt


_NOP = dis.opmap["NOP"]


@functools.cache
def _code(of: CodeType) -> bytes:
    return of.co_code


@functools.cache
def _withs(file: str) -> dict[int, int]:
    """The last line of each ``with`` block of a file, by the line that it begins in."""
    tree = ast.parse(Path(file).read_text())
    blocks = [node for node in ast.walk(tree) if isinstance(node, ast.With | ast.AsyncWith)]
    return {block.lineno: block.end_lineno or block.lineno for block in blocks}


@functools.cache
def _first_lines(file: str) -> frozenset[int]:
    """The lines of a file that are the first in a ``with`` block."""
    tree = ast.parse(Path(file).read_text())
    blocks = [node for node in ast.walk(tree) if isinstance(node, ast.With | ast.AsyncWith)]
    return frozenset(block.body[0].lineno for block in blocks)


@functools.cache
def _before_first_calls(file: str) -> frozenset[int]:
    """The lines of the ``finally`` blocks of a file, each up to the line of its first call, if any."""
    lines: set[int] = set()
    for node in ast.walk(ast.parse(Path(file).read_text())):
        if isinstance(node, ast.Try) and node.finalbody:
            calls = [
                each.lineno
                for statement in node.finalbody
                for each in ast.walk(statement)
                if isinstance(each, ast.Call)
            ]
            last = node.finalbody[-1].end_lineno or node.finalbody[-1].lineno
            lines |= set(range(node.finalbody[0].lineno, min(calls, default=last) + 1))
    return frozenset(lines)


class Interrupter:
    """Runs something, and at the line that has the number ``at`` raises ``Interrupt``, or calls ``act``.

    ``kept`` receives the exception, with all that its traceback refers to.
    """

    def __init__(
        self,
        at: int | None,
        act: Callable[[], object] = _interrupt,
        kept: Callable[[Interrupt], object] = bool,
    ) -> None:
        self.at = at
        self.act = act
        self._kept = kept
        self.lines = 0
        self.where = ""
        self._last: dict[FrameType, int] = {}

    def run(self, work: Callable[[], object]) -> bool:
        """Whether it was interrupted."""
        sys.settrace(self._trace)
        try:
            work()
        except Interrupt as raised:
            self._kept(raised)
            return True
        finally:
            sys.settrace(None)
            self._last.clear()
        return False

    def _trace(self, frame: FrameType, event: str, arg: object) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        if event == "line":
            self._line(frame)
        elif event == "return" and not frame.f_code.co_flags & inspect.CO_COROUTINE:
            # A frame that is kept keeps what it has lost, such as the turn to use a connection.
            self._last.pop(frame, None)
        return self._trace

    def _line(self, frame: FrameType) -> None:
        line, last = frame.f_lineno, self._last.get(frame, 0)
        self._last[frame] = line
        # At the end of a block Python shows the line of its ``with`` again. There it lets no signal
        # handler in before the block's ``__exit__`` has been called.
        if line < last <= _withs(frame.f_code.co_filename).get(line, 0):
            return
        # It runs no handler between the end of a ``try`` block and the first call of its ``finally``.
        if self.act is _interrupt and line in _before_first_calls(frame.f_code.co_filename):
            return
        # An exception of a trace function that Python 3.12 and later call where a loop on one line jumps
        # back, or a comprehension does, leaves the function without its ``finally``. No signal's does.
        if self.act is _interrupt and line == last and sys.version_info >= (3, 12):
            return
        # Nor at a line that does nothing, such as ``try:``, or ``return True`` before a ``finally``. An
        # exception there would escape the blocks around it.
        if _code(frame.f_code)[frame.f_lasti] == _NOP:
            return
        # Nor does it run a handler or the collector between the ``__enter__`` and the first call inside.
        if self.act is not _interrupt and line in _first_lines(frame.f_code.co_filename):
            return
        self.lines += 1
        if self.lines == self.at:
            self.where = f"{frame.f_code.co_filename.removeprefix(PACKAGE)}:{line}"
            self.act()
