"""A browser without a window, which asks nobody but the test's own server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service

from tests.servers import debian
from tests.support.waiting import PATIENCE

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--window-size=1280,720",
)


@contextmanager
def browsing(folder: Path) -> Iterator[Chrome]:
    """A browser whose profile is below ``folder``, until the block ends."""
    options = ChromeOptions()
    options.binary_location = str(debian.program("chromium", "chromium"))
    for flag in (*FLAGS, f"--user-data-dir={folder / 'profile'}"):
        options.add_argument(flag)
    # Named, so that selenium looks for none on the network.
    driver = Service(str(debian.program("chromedriver", "chromium-driver")))
    browser = Chrome(options=options, service=driver)
    try:
        browser.implicitly_wait(PATIENCE)
        yield browser
    finally:
        browser.quit()
