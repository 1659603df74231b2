"""``weblock``: the command line for operators. See docs/command-line.md."""

from __future__ import annotations

import sys

from .._requirements import require
from ..errors import ConfigurationError


def main() -> None:
    """Run the command that the process's arguments name, and exit with its code."""
    try:
        require("the command line", "cli")
    except ConfigurationError as error:
        sys.exit(f"weblock: {error}")
    from .app import app

    app(prog_name="weblock")
