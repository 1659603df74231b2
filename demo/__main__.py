"""The command: ``scripts/demo --help``."""

from __future__ import annotations

import signal
import sys


def main() -> int:
    """Runs the demo. Returns the exit status: 0 if it showed what it promises."""
    # Until there is something to tidy up, an interrupt ends it without a word.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

    from demo.command import run

    return run()


if __name__ == "__main__":
    sys.exit(main())
