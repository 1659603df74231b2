"""What holds for all tests."""

from __future__ import annotations

import logging
import os
import signal
import threading
import weakref

import pytest
from hypothesis import HealthCheck, settings

from tests.support import longest_first
from weblock.stores.file import machines

# Tests run in containers too, where file:// warns of it once in a process: some test would be the first.
machines.told.append("a machine of tests")

ENGINES_THREADS = {"weblock-keeper", "weblock-bell", "weblock-receiver", "weblock-lookout"}

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
