"""What every adapter is made of: a lock spec, which says what to lock, and what fills it in."""

from .spec import LockSpec, name_of

__all__ = ["LockSpec", "name_of"]
