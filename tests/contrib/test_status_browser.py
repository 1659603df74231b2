"""The status page in a real browser, mounted in a FastAPI application."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import uvicorn
from fastapi import FastAPI
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.support.expected_conditions import alert_is_present
from selenium.webdriver.support.wait import WebDriverWait

from tests.contrib.django.browser import browsing, emulate, picture
from tests.servers.ports import free_port
from tests.support.busy import busy
from tests.support.pictures import PICTURES
from tests.support.waiting import PATIENCE, eventually
from weblock import Locks, LockTimeout
from weblock._adapting import tell
from weblock.contrib.status import StatusPage
from weblock.events import Repeated
from weblock.keys import CheckedKey

FITS = "return document.body.scrollWidth <= innerWidth"

EVIL = "item:<script>document.title='evil'</script>\u202e"


@pytest.fixture
def locks() -> Iterator[Locks]:
    """The locks of an application."""
    with Locks.from_url("memory://shop") as locks:
        yield locks


@pytest.fixture
def page(locks: Locks) -> Iterator[str]:
    """The address of the page."""
    app = FastAPI()
    status = StatusPage(locks, insecure=True, allow_release=True)
    if PICTURES:
        seed(status)
    app.mount("/ops/locks", status)
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error", ws="none"))
    thread = threading.Thread(target=server.run)
    thread.start()
    eventually(lambda: server.started, within=PATIENCE)
    yield f"http://127.0.0.1:{port}/ops/locks/"
    server.should_exit = True
    thread.join()


def seed(page: StatusPage) -> None:
    """Has the picture's charts show a quarter of an hour."""
    dice, now = random.Random(7), time.time()
    load = 3.0
    for ago in range(900, 0, -5):
        load = max(0.0, load + dice.uniform(-1, 1))
        page._samples.append([now - ago, round(load) + 2, round(max(0, load - 2) * 1.5)])
    for ago in range(890, 0, -10):
        page._history._waits.append([now - ago, 3, round(dice.expovariate(0.9), 3)])


def shows(browser: Chrome, *parts: str) -> None:
    """Returns when the page shows all these texts."""

    def all_there() -> bool:
        text = browser.find_element(By.TAG_NAME, "body").text
        return all(part in text for part in parts)

    eventually(all_there, despite=StaleElementReferenceException)


def test_in_a_browser(page: str, locks: Locks, tmp_path: Path) -> None:
    """Keys appear while somebody looks, markup in them does nothing, and a lease is taken away.

    The page fits a phone, and is dark where that is wanted.
    """
    with ExitStack() as stack:
        browser = stack.enter_context(browsing(tmp_path))
        browser.get(page)
        shows(browser, "No key is held or waited for.", "live")
        stack.enter_context(busy(locks, "order:1042", "web-3:812 POST /orders/1042"))
        waiters = [f"web-{n}:977 POST /shops/7/items" for n in (2, 4, 5)]
        stack.enter_context(busy(locks, "shop:7", "web-1:4242 POST /shops/7/items", *waiters))
        shows(browser, "shop:7", "web-1:4242 POST /shops/7/items", "order:1042")
        eventually(lambda: browser.title == "2 held, 3 waiting")
        assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []
        with pytest.raises(LockTimeout):
            locks.acquire("order:1042", wait=0.01, label="web-9:31 POST /orders/1042")
        shows(browser, "timed out", "web-9:31 POST /orders/1042 waited")

        click(browser, "tr[data-key='shop:7'] summary")
        shows(browser, *waiters)
        for name, width in (("light", 1280), ("dark", 1280), ("phone", 390)):
            emulate(browser, "dark" if name == "dark" else "light", width)
            eventually(lambda: browser.execute_script(FITS))
            picture(browser, tmp_path, f"status-{name}")
        stack.enter_context(busy(locks, EVIL, "<img src=x onerror=document.title='evil'>"))
        shows(browser, "item:<script>document.title='evil'</script>\\u{202e}", "<img src=x")
        eventually(lambda: browser.execute_script(FITS))
        eventually(lambda: browser.title == "3 held, 3 waiting")
        emulate(browser, "light", 1280)
        tell(locks, Repeated, CheckedKey("idempotency:d"), outcome="reused")
        shows(browser, "0 replayed, 0 while the first was running (409), 1 with another body (422)")

        release(browser, "shop:7")
        shows(browser, "web-2:977 POST /shops/7/items", "forced", "somebody (status page) took it")
        info = locks.inspect("shop:7")
        assert info
        assert info.holder == waiters[0]


def click(browser: Chrome, selector: str) -> None:
    """Clicks an element of a row, which may be drawn anew just then."""

    def clicked() -> bool:
        browser.find_element(By.CSS_SELECTOR, selector).click()
        return True

    eventually(clicked, despite=StaleElementReferenceException)


def release(browser: Chrome, key: str) -> None:
    """Clicks the key's button and says yes."""
    click(browser, f"tr[data-key='{key}'] button")
    alert = WebDriverWait(browser, PATIENCE).until(alert_is_present())
    assert alert.text.startswith("Take shop:7 away from web-1:4242 POST /shops/7/items?")
    alert.accept()
