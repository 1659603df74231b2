"""Helpers for the tests of applications that lock, with any framework or none.

``weblock.contrib.django.testing`` has more for Django. pytest finds the fixture ``weblock_memory`` by itself.
"""

from .memory import memory_locks
from .sections import Section, Sections, Watch
from .serialized import assert_serialized, assert_serialized_async

__all__ = [
    "Section",
    "Sections",
    "Watch",
    "assert_serialized",
    "assert_serialized_async",
    "memory_locks",
]
