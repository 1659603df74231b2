"""``python -m weblock`` is the command line, as ``weblock`` is."""

from .cli import main

main()
