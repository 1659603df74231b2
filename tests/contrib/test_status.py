"""The status page: who may see what, what it tells, and how it releases."""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import logging
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.aio import PATIENCE, eventually
from tests.support.busy import busy
from tests.support.http import client_of
from weblock import AsyncLocks, ConfigurationError, KeyInfo, Locks, LockTimeout, events
from weblock.cli.status import with_token
from weblock.contrib.status import StatusPage
from weblock.contrib.status import page as page_module
from weblock.contrib.status.page import KEPT, History

_numbers = itertools.count()
HTML = {"accept": "text/html,*/*;q=0.8"}
STREAM = {"accept": "text/event-stream"}


@pytest.fixture
def url() -> str:
    return f"memory://status-{next(_numbers)}"


@pytest.fixture
def locks(url: str) -> Iterator[Locks]:
    with Locks.from_url(url) as locks:
        yield locks


async def told(app: Any) -> dict[str, Any]:
    async with client_of(app) as client:
        found: dict[str, Any] = (await client.get("/")).json()
        return found


def test_nobody_is_let_in_by_accident(url: str) -> None:
    """Without a function that says who may see it, no page is made, unless insecure=True is said."""
    with pytest.raises(ConfigurationError, match="insecure=True"):
        StatusPage(url)
    with pytest.raises(ConfigurationError, match="'admin' cannot be called"):
        StatusPage(url, authorize="admin")  # type: ignore[arg-type]
    with Locks.from_url(url) as locks, pytest.raises(TypeError, match="give ttl to the locks"):
        StatusPage(locks, insecure=True, ttl=1)


@pytest.mark.parametrize("is_async", [False, True])
async def test_authorize_decides(url: str, is_async: bool) -> None:
    """Each request is shown to the function; one that may not see the page is answered with 403."""

    def plain(scope: Any) -> bool:
        return (b"x-user", b"ann") in scope["headers"]

    async def later(scope: Any) -> bool:
        return plain(scope)

    page = StatusPage(url, authorize=later if is_async else plain)
    async with client_of(page) as client:
        for headers in ({}, HTML, STREAM):
            refused = await client.get("/", headers=headers)
            assert (refused.status_code, "memory" in refused.text) == (403, False)
        assert (await client.post("/", json={})).status_code == 403
        assert (await client.get("/", headers={"x-user": "ann"})).status_code == 200


@pytest.mark.parametrize("api", [Locks, AsyncLocks])
async def test_it_tells_keys_holders_and_queues(url: str, locks: Locks, api: Any) -> None:
    """As JSON it tells what ``list`` does, the longest queue first, and the numbers, on both APIs."""
    page = StatusPage(api.from_url(url), insecure=True)
    assert (await told(page))["keys"] == []
    with busy(locks, "a", "web-1"), busy(locks, "b", "web-2", "web-3"):
        report = await told(page)
    assert [each["key"] for each in report["keys"]] == ["b", "a"]
    assert report["keys"][0]["waiters"] == ["web-3"]
    assert (report["held"], report["waiting"], report["engine"]) == (2, 1, url)
    assert [sample[1:] for sample in report["samples"]] == [[0, 0], [2, 1]]
    assert report["may_release"] is False


async def test_browsers_get_a_page_that_runs_nothing_else(url: str) -> None:
    """A browser gets one file, under a policy that allows its own script and style alone."""
    async with client_of(StatusPage(url, insecure=True)) as client:
        response = await client.get("/", headers=HTML)
        head = await client.head("/", headers=HTML)
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'; script-src 'sha256-" in policy
    assert "unsafe" not in policy
    assert "http" not in response.text.replace("http://www.w3.org/2000/svg", "")
    assert response.headers["cache-control"] == "no-store"
    assert response.headers["vary"] == "accept"
    assert (head.status_code, head.headers["content-length"]) == (
        200,
        response.headers["content-length"],
    )


async def test_a_stream_tells_each_look(url: str, locks: Locks, monkeypatch) -> None:
    """A stream begins with what there is, goes on with what follows, and ends by itself."""
    seconds = itertools.count()
    monkeypatch.setattr(
        page_module, "time", SimpleNamespace(monotonic=seconds.__next__, time=time.time)
    )
    monkeypatch.setattr(page_module, "STREAM", 7)
    monkeypatch.setattr("weblock.contrib.status.page.EVERY", 0.02)
    async with client_of(StatusPage(url, insecure=True)) as client:
        with busy(locks, "a", "web-1"):
            response = await client.get("/", headers=STREAM)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    messages = [json.loads(line[6:]) for line in response.text.splitlines() if line[:5] == "data:"]
    assert len(messages) == 3
    assert {message["keys"][0]["key"] for message in messages} == {"a"}


async def test_streams_share_a_look_and_end_with_their_clients(url: str, monkeypatch) -> None:
    """A second client costs the engine nothing; when both have gone, nothing is left."""
    monkeypatch.setattr(page_module, "EVERY", PATIENCE)
    with Locks.from_url(url) as locks:
        looks, listed = [], locks.list
        monkeypatch.setattr(locks, "list", lambda **options: looks.append(1) or listed(**options))
        page = StatusPage(locks, insecure=True)
        gone = asyncio.Event()

        async def receive() -> dict[str, Any]:
            await gone.wait()
            return {"type": "http.disconnect"}

        scope = {"type": "http", "method": "GET", "headers": [(b"accept", b"text/event-stream")]}
        serving = []
        for _ in range(2):
            sent = asyncio.Queue[Any]()
            serving.append(asyncio.create_task(page(scope, receive, sent.put)))
            for kind in ("start", "body"):
                assert (await sent.get())["type"] == f"http.response.{kind}"
        gone.set()
        await asyncio.gather(*serving)
        assert looks == [1]
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_while_the_engine_is_slow_one_stream_waits_for_it(url: str, monkeypatch) -> None:
    """The others go on with what was seen last, and occupy no threads."""
    monkeypatch.setattr(page_module, "EVERY", 0.01)
    with Locks.from_url(url) as locks:
        page, goes_on, looks = StatusPage(locks, insecure=True), threading.Event(), []
        await told(page)

        def slow(**_options: object) -> list[KeyInfo]:
            looks.append(1)
            goes_on.wait(PATIENCE)
            return []

        monkeypatch.setattr(locks, "list", slow)
        gone, sent = asyncio.Event(), [asyncio.Queue[Any]() for _ in range(3)]

        async def receive() -> dict[str, Any]:
            await gone.wait()
            return {"type": "http.disconnect"}

        scope = {"type": "http", "method": "GET", "headers": [(b"accept", b"text/event-stream")]}
        serving = [asyncio.create_task(page(scope, receive, each.put)) for each in sent]
        await eventually(lambda: sorted(each.qsize() for each in sent)[1] > 5)
        assert looks == [1]
        gone.set()
        goes_on.set()
        await asyncio.gather(*serving)


async def test_an_engine_that_is_down_is_shown() -> None:
    """An engine that does not answer is told, without its password, and the page goes on."""
    report = await told(StatusPage("redis://:s3cret@127.0.0.1:1", insecure=True))
    assert "redis://127.0.0.1:1 is unavailable" in report["error"]
    assert report["keys"] == report["samples"] == []
    assert "s3cret" not in json.dumps(report)
    assert [each["name"] for each in report["incidents"]] == ["unavailable"]


async def test_an_engine_that_cannot_work_is_shown(monkeypatch) -> None:
    """What an operator has to do, such as to create a table, is on the page, and a 503 of a release."""
    page = StatusPage("memory://no-table", insecure=True, allow_release=True)

    async def no_table(*_arguments: object, **_options: object) -> None:
        raise ConfigurationError('relation "weblock_lease" does not exist')

    for name in ("list", "inspect"):
        monkeypatch.setattr(AsyncLocks, name, no_table)
    async with client_of(page) as client:
        stream = client.stream("GET", "/", headers=STREAM)
        monkeypatch.setattr(page_module, "STREAM", 0.0)
        async with stream as told_so:
            lines = [line async for line in told_so.aiter_lines()]
        refused = await client.post("/", json={"key": "a", "fence": 1})
    assert "weblock_lease" in json.loads(lines[1].removeprefix("data: "))["error"]
    assert refused.status_code == 503


async def test_waits_and_losses_of_this_process_are_told(url: str, locks: Locks) -> None:
    """What the locks of the process go through on this engine is remembered; other engines' is not."""
    page = StatusPage(locks, insecure=True)
    with Locks.from_url(url) as others, Locks.from_url(f"{url}-other") as elsewhere:
        for each in (others, others, elsewhere):
            with busy(each, "a", "web-1"), pytest.raises(LockTimeout):
                each.acquire("a", wait=0.01, label="web-2")
        with busy(locks, "b", "web-3"):
            others.force_release("b", by="ann")
    report = await told(page)
    forced, *_, timed_out = [each for each in report["incidents"] if each["name"] != "lost"]
    assert (forced["key"], forced["text"]) == ("b", "ann took it from web-3, by force")
    assert (timed_out["name"], timed_out["count"]) == ("timed_out", 2)
    assert timed_out["text"].startswith("web-2 waited ")
    assert max(longest for _, _, longest in report["waits"]) >= 0.01


def test_history_is_bounded_and_forgets(locks: Locks) -> None:
    """Only so much is remembered, and for so long."""
    now = [1000.0]
    history = History(locks, lambda: now[0])
    facts: dict[str, Any] = {"engine": locks.engine, "namespace": locks.namespace}
    facts |= {"template": None, "label": "l"}
    for number in range(300):
        now[0] += 1
        lost = events.Lost(key=f"k{number}", fence=1, reason="expired", held_for=1.0, **facts)
        history.hear(lost)
        history.hear(events.GaveUp(key="k", waited=float(number), place=None, **facts))
    assert [each["key"] for each in history.facts()["incidents"]][:2] == ["k299", "k298"]
    assert len(history.facts()["incidents"]) == 100
    assert history.facts()["waits"][-1][2] == 299.0
    assert len(history.facts()["waits"]) == 31
    elsewhere = [facts | {"engine": "another"}, facts | {"namespace": "another"}]
    for each in elsewhere:
        history.hear(events.Lost(key="other", fence=1, reason="expired", held_for=1.0, **each))
    assert history.facts()["incidents"][0]["key"] == "k299"
    now[0] += KEPT + 1
    assert history.facts()["incidents"] == history.facts()["waits"] == []


def test_a_page_that_is_gone_hears_nothing(locks: Locks) -> None:
    """Nothing of a page stays among the observers of the process when it is given up."""
    page = StatusPage(locks, insecure=True)
    finalizer = page.close
    del page
    gc.collect()
    assert not finalizer.alive


@pytest.mark.parametrize("api", [Locks, AsyncLocks])
async def test_release_passes_the_key_on(url, locks, api, caplog) -> None:
    """Whoever may release takes away the lease that was shown, and the audit log says who did."""
    page = StatusPage(api.from_url(url), authorize=lambda _: "ann", allow_release=True)
    with busy(locks, "a", "web-1", "web-2"), caplog.at_level(logging.WARNING, "weblock.audit"):
        async with client_of(page) as client:
            (info,) = (await client.get("/")).json()["keys"]
            stale = await client.post("/", json={"key": "a", "fence": info["fence"] - 1})
            done = await client.post("/", json={"key": "a", "fence": info["fence"]})
        now = locks.inspect("a")
    assert stale.status_code == 409
    assert "has changed hands" in stale.json()["error"]
    assert (done.status_code, done.json()) == (200, {"released": True})
    assert now
    assert now.holder == "web-2"
    assert "ann (status page)" in caplog.text


async def test_release_is_allowed_to_some(url: str, locks: Locks) -> None:
    """By default nothing can be released; a function lets some users do it."""

    async def is_root(scope: Any) -> bool:
        return (b"x-user", b"root") in scope["headers"]

    with busy(locks, "a", "web-1"):
        for page in (
            StatusPage(locks, insecure=True),
            StatusPage(locks, insecure=True, allow_release=is_root),
        ):
            async with client_of(page) as client:
                (info,) = (await client.get("/")).json()["keys"]
                body = {"key": "a", "fence": info["fence"]}
                assert (await client.post("/", json=body)).status_code == 403
        async with client_of(page) as client:
            done = await client.post("/", json=body, headers={"x-user": "root"})
        assert done.json() == {"released": True}


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ({"data": {"key": "a", "fence": "1"}}, 415),
        ({"content": b'{"key": "a", "fence": 1}', "headers": {"content-type": "text/plain"}}, 415),
        ({"json": {"key": 7, "fence": 1}}, 400),
        ({"json": ["a"]}, 400),
        ({"json": {"key": "a\nb", "fence": 1}}, 400),
        ({"json": {"key": "x" * 20_000, "fence": 1}}, 400),
        ({"content": b"{", "headers": {"content-type": "application/json"}}, 400),
        ({"content": b"[" * 9_000, "headers": {"content-type": "application/json"}}, 400),
        ({"json": {"key": "free", "fence": 1}}, 409),
    ],
)
async def test_what_is_no_release_is_refused(url: str, options: Any, status: int) -> None:
    """A form of another site, which can send no JSON, and bad JSON release nothing."""
    async with client_of(StatusPage(url, insecure=True, allow_release=True)) as client:
        response = await client.post("/", **options)
    assert response.status_code == status
    assert response.json()["error"]


async def test_other_requests_are_refused(url: str) -> None:
    """A method that is none of the page's is 405, and a websocket is closed."""
    page = StatusPage(url, insecure=True)
    async with client_of(page) as client:
        assert (await client.delete("/")).headers["allow"] == "GET, HEAD, POST"
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message["type"])

    async def receive() -> Any:
        return next(messages)

    messages = iter([{"type": "websocket.connect"}])
    await page({"type": "websocket"}, receive, send)
    messages = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])
    await page({"type": "lifespan"}, receive, send)
    assert sent == ["websocket.close", "lifespan.startup.complete", "lifespan.shutdown.complete"]


async def test_the_page_by_itself_wants_its_token(url: str) -> None:
    """A browser gets a cookie for the token in the URL of ``weblock status``; a program sends it in a header."""
    async with client_of(with_token("right", "weblock-1=right", url)) as client:
        for wrong in ("/", "/?token=wrong", "/?token="):
            assert (await client.get(wrong)).status_code == 403
        for scheme, status in (("Bearer right", 200), ("Bearer wrong", 403), ("right", 403)):
            answer = await client.get("/", headers={"Authorization": scheme})
            assert answer.status_code == status
        entered = await client.get("/?token=right")
        assert (entered.status_code, entered.headers["location"]) == (303, "./")
        assert "HttpOnly; SameSite=Lax" in entered.headers["set-cookie"]
        assert (await client.get("/")).json()["engine"] == url  # The client has the cookie.
