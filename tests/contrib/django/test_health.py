"""The check for django-health-check, in its own view."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import AsyncRequestFactory, override_settings

pytest.importorskip("health_check")  # Not in an environment that is older.

from health_check.views import HealthCheckView

from weblock.contrib.django.health import Engine


async def answer(*checks: Any) -> tuple[int, str]:
    request = AsyncRequestFactory().get("/health/", {"format": "json"})
    response = await HealthCheckView.as_view(checks=checks)(request)
    return response.status_code, response.content.decode()


async def test_an_engine_that_answers_is_healthy(url: str) -> None:
    """The check passes where the engine answers, for each alias that is named."""
    with override_settings(WEBLOCK={"default": {"URL": url}, "jobs": {"URL": f"{url}-jobs"}}):
        named = "weblock.contrib.django.health.Engine"
        status, body = await answer(named, (named, {"alias": "jobs"}))
    assert status == 200
    assert "OK" in json.dumps(json.loads(body))


async def test_an_engine_that_is_down_is_not() -> None:
    """An engine that does not answer is unavailable, and its password is not told."""
    with override_settings(WEBLOCK={"default": {"URL": "redis://:s3cret@127.0.0.1:1"}}):
        status, body = await answer(Engine)
    assert status == 500
    assert "redis://127.0.0.1:1 is unavailable" in body
    assert "s3cret" not in body
