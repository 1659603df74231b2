"""Spares the tests that never see Django the fixtures that pytest-django has for every test.

There are ten, which together take a millisecond: as long as many a test.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest

WITH_DJANGO = "tests/contrib/django/"

OF_DJANGO = {
    *("django_test_environment", "django_db_blocker"),
    *("_django_db_marker", "_django_setup_unittest", "_django_set_urlconf"),
    *("_django_isolate_apps", "_django_clear_site_cache", "_dj_autoclear_mailbox"),
    *("_fail_for_invalid_template_variable", "_template_string_if_invalid_marker"),
}
"""Those that are for every test. A release may have others: then these tests only take longer."""


def spare(items: Iterable[pytest.Item]) -> None:
    spared: set[int] = set()
    for item in items:
        names = getattr(item, "fixturenames", None)  # The cases of one test share the list.
        if names is None or id(names) in spared or item.nodeid.startswith(WITH_DJANGO):
            continue
        spared.add(id(names))
        names[:] = [name for name in names if name not in OF_DJANGO]
