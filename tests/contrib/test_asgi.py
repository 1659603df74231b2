"""The request layer with applications that are plain ASGI, and its parts."""

import asyncio
from contextvars import ContextVar, copy_context
from dataclasses import replace

import anyio
import pytest
from fastapi import FastAPI, Request, Response

from tests.support.aio import PATIENCE, eventually
from weblock import AsyncLocks, ConfigurationError, LockTimeout
from weblock.contrib import asgi, wsgi
from weblock.contrib.asgi import RequestLayer, problem_of, request_locks
from weblock.contrib.asgi.client import Inbox
from weblock.contrib.fastapi import install

from .wire import Exchange


def _install(app, locks, _rules, **options):
    install(app, locks, **options)


START = {"type": "http.response.start", "status": 200, "headers": []}
BODY = {"type": "http.response.body", "body": b"done"}


def test_problems_are_only_for_errors_of_weblock():
    """Any other error is the application's to answer; a timeout of its own is not a lock's."""
    assert problem_of(LockTimeout("x", wait=1)).status == 409
    assert problem_of(TimeoutError()) is None
    assert problem_of(ConfigurationError("wrong")) is None


@pytest.mark.parametrize(("hint", "header"), [(None, "1"), (0.2, "1"), (2.1, "3"), (1e6, "60")])
def test_retry_after_is_whole_and_bounded(hint, header):
    """``Retry-After`` is the rest of the lease in whole seconds, 1 to 60."""
    problem = problem_of(LockTimeout("x", wait=1, retry_after=hint))
    assert problem.headers == {"Retry-After": header}


@pytest.mark.parametrize("returned", [None, {"status": 423}])
def test_a_rewrite_that_returns_no_problem(returned):
    """It is told what to return, and for which error."""
    with pytest.raises(TypeError, match=r"rewrite returned .* for a LockTimeout: return the prob"):
        problem_of(LockTimeout("x", wait=1), lambda problem, error: returned)


def test_a_status_is_a_number():
    """In a problem that a rewrite makes, and in each of ours: servers expect no more of it."""
    with pytest.raises(TypeError, match="status='423'"):
        problem_of(LockTimeout("x", wait=1), lambda problem, _: replace(problem, status="423"))
    assert type(problem_of(LockTimeout("x", wait=1)).status) is int


@pytest.mark.parametrize(
    "layer", [asgi.LockMiddleware, wsgi.LockMiddleware, _install], ids=["asgi", "wsgi", "fastapi"]
)
def test_a_rewrite_that_is_no_function(layer):
    """It is refused when the application is made, not at the first busy key."""
    with pytest.raises(ConfigurationError, match="rewrite='answer' must be a function"):
        layer(FastAPI(), "memory://", [{"path": "/", "key": "x"}], rewrite="answer")


class TestTheLayer:
    async def test_a_websocket_is_known_by_its_path(self, locks):
        """Whoever looks at a lease that a websocket holds sees so."""
        infos = []

        async def app(scope, receive, send):
            await request_locks(scope).acquire("x")
            infos.append(await locks.inspect("x"))

        exchange = Exchange(kind="websocket")
        await exchange.served_by(RequestLayer(app, locks))
        assert infos[0].holder == f"{locks.label} WEBSOCKET {exchange.scope['path']}"

    async def test_two_tasks_of_an_application_read_one_message_after_the_other(self, locks):
        """One listens since before the lock, another since after it: the server is asked by one at a time."""
        exchange, received = Exchange(body=None), []

        async def app(scope, receive, send):
            early = asyncio.ensure_future(receive())
            await asyncio.sleep(0)
            await request_locks(scope).acquire("x")
            late = asyncio.ensure_future(receive())
            await asyncio.sleep(0)
            exchange.says({"type": "http.request", "body": b"1", "more_body": True})
            exchange.says({"type": "http.request", "body": b"2"})
            received.extend([(await early)["body"], (await late)["body"]])

        await exchange.served_by(RequestLayer(app, locks))
        assert received == [b"1", b"2"]

    async def test_a_websocket_that_was_rejected_is_not_closed_again(self, locks):
        """A lease that was lost is logged; the server would refuse a second end of the websocket."""

        async def app(scope, receive, send):
            await request_locks(scope).acquire("x")
            await send({"type": "websocket.http.response.start", "status": 403, "headers": []})
            await send({"type": "websocket.http.response.body", "body": b""})
            await locks.force_release("x", by="ann")

        exchange = Exchange(kind="websocket")
        await exchange.served_by(RequestLayer(app, locks))
        assert [each["type"][-5:] for each in exchange.sent] == ["start", ".body"]

    async def test_the_engine_is_closed_before_the_server_hears_of_the_end(self, monkeypatch):
        """Some servers cancel the application when it has told them that it has shut down."""
        mine = AsyncLocks.from_url("memory://closed-at-the-end")
        done = []
        monkeypatch.setattr(mine._engine, "close", lambda: done.append("closed"))

        async def app(scope, receive, send):
            await send({"type": "lifespan.shutdown.complete"})

        async def told(message):
            done.append("told")

        await RequestLayer(app, mine, owns_locks=True)({"type": "lifespan"}, None, told)
        assert done == ["closed", "told"]

    async def test_one_that_listened_before_the_lock_hears_of_the_end(self, locks):
        """A response that is held back ends what waits for a disconnect, and the key is free."""

        async def app(scope, receive, send):
            await receive()
            listener = asyncio.ensure_future(receive())
            await asyncio.sleep(0)
            await request_locks(scope).acquire("x")
            await send(START)
            await send(BODY)
            assert await listener == {"type": "http.disconnect"}

        exchange = Exchange()
        await asyncio.wait_for(exchange.served_by(RequestLayer(app, locks)), PATIENCE)
        assert exchange.status == 200
        assert await locks.inspect("x") is None

    async def test_a_server_may_cancel_what_has_told_it_of_the_end(self, locks):
        """The application has ended by then, so that no traceback is in the log of the server."""

        async def app(scope, receive, send):
            await send({"type": "lifespan.startup.complete"})
            await send({"type": "lifespan.shutdown.complete"})

        async def send(message):
            if message["type"] == "lifespan.shutdown.complete":
                asyncio.get_running_loop().call_soon(task.cancel)

        layer = RequestLayer(app, locks)
        task = asyncio.ensure_future(layer({"type": "lifespan"}, None, send))
        await task

    @pytest.mark.parametrize("locked", [True, False])
    async def test_middleware_outside_sees_what_the_application_has_set(self, locks, locked):
        """Context variables, such as those of structlog, reach an access log; weblock's own do not."""
        user = ContextVar("user", default="nobody")
        seen = []

        async def app(scope, receive, send):
            if locked:
                await request_locks(scope).acquire("x")
            user.set("alice")
            await send(START)
            await send(BODY)

        async def access_log(scope, receive, send):
            async def logged(message):
                seen.append(user.get())
                await send(message)

            before = {*copy_context()}
            await RequestLayer(app, locks)(scope, receive, logged)
            assert {*copy_context()} - before == {user}
            seen.append(user.get())

        await Exchange().served_by(access_log)
        assert seen == ["alice", "alice", "alice"]

    async def test_the_last_server_to_shut_down_frees_the_locks(self, url):
        """A server that shuts down takes no lease from requests of another one in the process."""
        mine = AsyncLocks.from_url(url)
        holds, goes_on = asyncio.Event(), asyncio.Event()

        async def app(scope, receive, send):
            if scope["type"] == "lifespan":
                while (message := await receive())["type"] != "lifespan.shutdown":
                    await send({"type": f"{message['type']}.complete"})
                await send({"type": "lifespan.shutdown.complete"})
                return
            await request_locks(scope).acquire("x")
            holds.set()
            await goes_on.wait()
            await send(START)
            await send(BODY)

        layer = RequestLayer(app, mine, owns_locks=True)
        servers = [Exchange(kind="lifespan") for _ in range(2)]
        running = [each.served_by(layer) for each in servers]
        for each in servers:
            each.says({"type": "lifespan.startup"})
            await eventually(lambda each=each: each.sent)
        request = Exchange()
        serving = request.served_by(layer)
        await holds.wait()
        servers[0].says({"type": "lifespan.shutdown"})
        await running[0]
        goes_on.set()
        await serving
        assert request.status == 200
        assert not mine._is_suspended
        servers[1].says({"type": "lifespan.shutdown"})
        await running[1]
        assert mine._is_suspended

    async def test_an_error_after_the_response_began_to_wait_leaves_nothing_to_send(self, locks):
        """A response that was discarded is not sent later by its timer."""

        async def app(scope, receive, send):
            await request_locks(scope).acquire("x")
            await send(START)
            await send(BODY)
            raise ZeroDivisionError

        exchange = Exchange()
        with pytest.raises(ZeroDivisionError):
            await exchange.served_by(RequestLayer(app, locks, hold_back=0.01))
        await asyncio.sleep(0.05)
        assert exchange.sent == []

    async def test_concurrent_acquisitions_of_one_request_share_the_lease(self, locks):
        """Two parts of a request that ask for a key at once do not wait for one another."""
        asking, fences = asyncio.Event(), set()

        async def app(scope, receive, send):
            mine = request_locks(scope)
            asking.set()
            leases = await asyncio.gather(mine.acquire("x"), mine.acquire("x"))
            fences.update(lease.fence for lease in leases)

        holder = await locks.acquire("x")
        served = Exchange().served_by(RequestLayer(app, locks))
        await asking.wait()
        for _ in range(20):  # Both have asked before the key is free.
            await asyncio.sleep(0)
        await holder.release()
        await served
        assert len(fences) == 1
        assert await locks.try_acquire("x")

    async def test_one_release_that_fails_does_not_keep_the_others(
        self, locks, monkeypatch, caplog
    ):
        """Every lease of a request is released, whatever happens to one of them."""

        async def app(scope, receive, send):
            await request_locks(scope).acquire("x")
            lease = await request_locks(scope).acquire("y")
            release = locks._locker.release

            async def fail(holdings):
                if holdings is lease._holdings:
                    raise ZeroDivisionError
                await release(holdings)

            monkeypatch.setattr(locks._locker, "release", fail)

        await Exchange().served_by(RequestLayer(app, locks))
        assert await locks.try_acquire("x")
        assert "'y'" in caplog.text

    async def test_a_cancel_scope_that_is_left_open(self, locks):
        """Work that is done is answered as such, also if a generator inside has left a scope of anyio."""

        async def pages():
            with anyio.fail_after(PATIENCE):
                yield 1

        async def app(scope, receive, send):
            await request_locks(scope).acquire("x")
            left.append(pages())
            await anext(left[0])
            await Response("done")(scope, receive, send)

        exchange, left = Exchange(), []
        await exchange.served_by(RequestLayer(app, locks))
        assert exchange.body == b"done"
        await (await locks.acquire("x", wait=0)).release()

    async def test_what_fails_when_the_client_leaves_is_logged(self, locks, caplog):
        """A task group has both: that the client left, and what failed beside it."""

        async def fails():
            try:
                await asyncio.Event().wait()
            finally:
                raise ValueError("no rollback")

        async def app(scope, receive, send):
            async with asyncio.TaskGroup() as group:
                group.create_task(fails())
                await request_locks(scope).acquire("x", wait=None)

        exchange = Exchange()
        async with locks.hold("x"):
            served = exchange.served_by(RequestLayer(app, locks))
            await eventually(exchange.incoming.empty)
            exchange.leaves()
            await served
        assert exchange.status == 499
        assert "no rollback" in caplog.text


class TestTheInbox:
    async def test_messages_arrive_in_order_through_whoever_reads(self):
        """What was read ahead, what is being read, and what comes later: each once, in order."""
        exchange = Exchange(body=None)
        inbox = Inbox(exchange.receive, exchange.scope, None)
        for _ in range(3):
            watch = asyncio.ensure_future(inbox.until_gone())
            await asyncio.sleep(0)
            watch.cancel()
        reader = asyncio.ensure_future(inbox.receive())
        watch = asyncio.ensure_future(inbox.until_gone())
        await asyncio.sleep(0)
        for number in range(5):
            exchange.says({"type": "http.request", "body": b"%d" % number, "more_body": True})
        bodies = [(await reader)["body"]]
        bodies += [(await inbox.receive())["body"] for _ in range(4)]
        assert bodies == [b"0", b"1", b"2", b"3", b"4"]
        assert exchange.receives_cancelled == 0
        exchange.leaves()
        await watch
        assert (await inbox.receive())["type"] == "http.disconnect"
        assert (await inbox.receive())["type"] == "http.disconnect"

    async def test_a_watch_leaves_the_reading_to_an_application_that_reads(self):
        """A server whose ``receive`` the application has called is not called a second time."""
        exchange = Exchange(body=None)
        inbox = Inbox(exchange.receive, exchange.scope, None)
        reader = asyncio.ensure_future(inbox.receive())
        await asyncio.sleep(0)
        watch = asyncio.ensure_future(inbox.until_gone())
        for _ in range(5):
            await asyncio.sleep(0)
        exchange.says({"type": "http.request", "body": b"all"})
        assert (await reader)["body"] == b"all"
        for _ in range(5):
            await asyncio.sleep(0)
        assert not watch.done()
        watch.cancel()

    async def test_reading_ahead_is_bounded(self):
        """A client that sends without end while its request waits fills no memory."""
        exchange = Exchange(body=None)
        inbox = Inbox(exchange.receive, exchange.scope, None)
        chunk = b"x" * 16 * 1024
        for _ in range(100):
            exchange.says({"type": "http.request", "body": chunk, "more_body": True})
        for _ in range(3):
            watch = asyncio.ensure_future(inbox.until_gone())
            await eventually(lambda: exchange.incoming.qsize() <= 96)
            for _ in range(20):
                await asyncio.sleep(0)
            watch.cancel()
        assert exchange.incoming.qsize() == 96

    async def test_a_withheld_disconnect_is_told_in_the_end(self):
        """The application hears that its client has gone when its lock is released."""
        exchange = Exchange(body=b"all")
        inbox = Inbox(exchange.receive, exchange.scope, None)
        inbox.withholds = True
        await inbox.receive()
        exchange.leaves()
        reader = asyncio.ensure_future(inbox.receive())
        await eventually(exchange.incoming.empty)
        for _ in range(5):
            await asyncio.sleep(0)
        assert not reader.done()
        inbox.close()
        assert (await reader)["type"] == "http.disconnect"

    async def test_who_asks_once_whether_the_client_has_gone_learns_it(self, locks):
        """As Starlette's ``is_disconnected`` does, in a scope that is cancelled at the first wait."""
        answers = []

        async def app(scope, receive, send):
            await receive()
            exchange.leaves()
            answers.append(await Request(scope, receive).is_disconnected())
            await Response("done")(scope, receive, send)

        exchange = Exchange()
        await exchange.served_by(RequestLayer(app, locks))
        assert answers == [True]

    async def test_a_listener_that_outlives_its_request_hears_a_disconnect(self, locks):
        """It is not cancelled, which it could not tell from its own end."""
        listening = []

        async def app(scope, receive, send):
            await receive()
            await request_locks(scope).acquire("x")
            listening.append(asyncio.ensure_future(receive()))
            await asyncio.sleep(0)
            await Response("done")(scope, receive, send)

        await Exchange().served_by(RequestLayer(app, locks))
        assert (await listening[0])["type"] == "http.disconnect"
