"""FastAPI's ``/docs`` in a real browser: what it shows of an operation that locks."""

from __future__ import annotations

import importlib.util
import threading
from pathlib import Path

import pytest
import uvicorn
from fastapi import Depends, FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse
from fastapi.staticfiles import StaticFiles
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.by import By

from tests.contrib.django.browser import browsing
from tests.servers.ports import free_port
from tests.support.waiting import eventually
from weblock.contrib.fastapi import install, lock


@pytest.fixture
def docs():
    """The address of ``/docs``, with the scripts that it has from a CDN served from here."""
    app = FastAPI(docs_url=None)
    install(app, "memory://docs-page")
    ninja = importlib.util.find_spec("ninja")
    assert ninja
    assert ninja.origin
    app.mount("/static", StaticFiles(directory=Path(ninja.origin).parent / "static" / "ninja"))

    @app.get("/docs", include_in_schema=False)
    def page() -> HTMLResponse:
        return get_swagger_ui_html(
            openapi_url="/openapi.json",
            title="shop",
            swagger_js_url="/static/swagger-ui-bundle.js",
            swagger_css_url="/static/swagger-ui.css",
            swagger_favicon_url="/static/favicon.png",
            swagger_ui_parameters={"docExpansion": "full"},
        )

    @app.post("/items", dependencies=[Depends(lock("create_item"))])
    def create_item() -> None: ...

    @app.get("/items")
    def list_items() -> None: ...

    port = free_port()
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error", ws="none"))
    thread = threading.Thread(target=server.run)
    thread.start()
    eventually(lambda: server.started)
    yield f"http://127.0.0.1:{port}/docs"
    server.should_exit = True
    thread.join()


def statuses(operation) -> set[str]:
    """Those that the page lists."""
    cells = operation.find_elements(By.CSS_SELECTOR, ".response .response-col_status")
    return {cell.text.strip().split()[0] for cell in cells if cell.text.strip()}


def test_the_page_shows_the_problems(docs, tmp_path):
    """409 and 503 stand at the operation that locks, with their media type, and at no other."""
    with browsing(tmp_path) as browser:
        browser.get(docs)
        locking, other = (
            browser.find_element(By.CSS_SELECTOR, f".opblock-{m}") for m in ("post", "get")
        )
        eventually(lambda: len(statuses(locking)) == 3, despite=StaleElementReferenceException)
        eventually(lambda: statuses(other), despite=StaleElementReferenceException)
        assert statuses(locking) == {"200", "409", "503"}
        assert statuses(other) == {"200"}
        assert len(browser.find_elements(By.CSS_SELECTOR, ".opblock")) == 2
        assert "The resource is busy" in locking.text
        assert "application/problem+json" in locking.get_attribute("innerHTML")
        assert "engine_unavailable" in locking.get_attribute("innerHTML")
        assert "Retry-After" in locking.get_attribute("innerHTML")
