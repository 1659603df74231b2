"""What holds for all tests."""

from __future__ import annotations

import gc
import logging
import os
import signal
import threading
import weakref
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

from tests.support import elsewhere, longest_first, without_django
from weblock.stores.file import checks

# Tests run in containers too, where file:// warns of it once in a process: some test would be the first.
checks.told.append("a machine of tests")

ENGINES_THREADS = {"weblock-keeper", "weblock-listener", "weblock-receiver", "weblock-poller"}

# The same examples each time, so that a change is blamed for what it breaks; a long run looks for new ones.
# And a busy machine is no reason to fail.
settings.register_profile(
    "suite",
    derandomize="WEBLOCK_LONG" not in os.environ,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("suite")

# What a shell starts in the background ignores Ctrl-C, and so would all that the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    """Divides what is to be compiled between the processes of a run."""
    elsewhere.begin(config)
    config.pluginmanager.register(_Sorting())


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """Spares each later collection of garbage the modules and the tests, which stay.

    Of 700,000 objects each takes 0.4 s of a processor, and hundreds of tests collect garbage.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


class _Sorting:
    """Puts the tests in one order before anything else looks at it."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        elsewhere.end(items)
        without_django.spare(items)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Orders the tests for the processes of a run, unless the order is to be random."""
    if config.getoption("order", None) is None:
        longest_first.arrange(items)


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """What the test logs, and not what the thread of an engine that an earlier test left behind says."""
    # The thread that counts floods is of the process, and goes on.
    running = (each for each in threading.enumerate() if each.name in ENGINES_THREADS)
    earlier = weakref.WeakSet(running)

    def of_this_test(_record: logging.LogRecord) -> bool:
        return threading.current_thread() not in earlier

    caplog.handler.addFilter(of_this_test)
    return caplog
