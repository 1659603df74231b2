"""A browser without a window, which asks nobody but the test's own server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service

from tests.servers import debian
from tests.support.pictures import PICTURES
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


def emulate(browser: Chrome, scheme: str, width: int, height: int = 760) -> None:
    """Has the browser look like a window or a phone of this size, light or dark."""
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def picture(browser: Chrome, folder: Path, name: str) -> None:
    """Keeps what the browser shows, in the docs if they want pictures."""
    browser.execute_script("document.getAnimations().forEach(each => each.finish())")
    browser.save_screenshot(str(Path(PICTURES or folder) / f"{name}.png"))
