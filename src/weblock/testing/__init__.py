"""For the tests of applications that lock: with any framework, or none.

Django has more in ``weblock.contrib.django.testing``. With pytest there are fixtures, see
``pytest --fixtures``.
"""

from .sections import Section, Sections, Watch
from .serialized import assert_serialized, assert_serialized_async

__all__ = ["Section", "Sections", "Watch", "assert_serialized", "assert_serialized_async"]
