"""``weblock``: the command line for operators. See docs/command-line.md."""

from __future__ import annotations

import sys

from .._requirements import require
from ..errors import ConfigurationError
from .codes import Code


def main() -> None:
    """Run the command that the process's arguments name, and exit with its code."""
    try:
        require("the command line", "cli")
    except ConfigurationError as error:
        # Not 1, which is an answer: of ``show``, that the key is free.
        print(f"weblock: {error}", file=sys.stderr)  # noqa: T201 - what would write it is missing
        sys.exit(Code.USAGE)
    from .app import app

    app(prog_name="weblock")
