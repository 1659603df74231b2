"""Programs that the tests take from Debian's packages, as the demo does."""

from demo.debian import program

__all__ = ["program"]
