"""``LockMiddleware`` of WSGI around applications of every habit, checked by PEP 3333 from both sides."""

import gc
import itertools
import logging
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from wsgiref.util import FileWrapper
from wsgiref.validate import validator

import pytest

from tests.servers.single import free_port
from tests.support.waiting import PATIENCE, eventually, waiters
from weblock import (
    AsyncLocks,
    Attempts,
    ConfigurationError,
    Locks,
    Observer,
)
from weblock._core import acquiring
from weblock.contrib.wsgi import LockMiddleware, RequestLayer, Rule, RuleSet, request_locks
from weblock.contrib.wsgi import request as requests_of_wsgi
from weblock.events import FailedOpen

from . import losing
from .gateway import Gateway, is_free, plain

ITEMS = [Rule("/items", key="items")]

MIB = 1024 * 1024

HEAD = [("Content-Type", "text/plain")]


@pytest.fixture
def locks(url):
    with Locks.from_url(url, wait=PATIENCE) as locks:
        yield locks


def served(app, locks, rules=ITEMS, **options):
    return Gateway(LockMiddleware(validator(app), locks, rules), **options).serve()


class Body:
    """A response's body, which notes when it is closed, and what is held then."""

    def __init__(self, parts, locks=None, error=None):
        self._parts = iter(parts)
        self._locks = locks
        self._error = error
        self.closed = 0
        self.was_free = None

    def __iter__(self):
        return self._parts

    def close(self):
        self.closed += 1
        if self._locks:
            self.was_free = is_free(self._locks)
        if self._error:
            raise self._error


def exc_info():
    try:
        raise OSError("disk")
    except OSError:
        return sys.exc_info()


def answering(body, status="200 OK"):
    def app(environ, start_response):
        start_response(status, HEAD)
        return body

    return app


class TestARule:
    def test_head_has_no_body(self, locks):
        """A refusal of a HEAD request has the headers alone."""
        rules = [Rule("/items", key="items", wait=0)]
        with locks.hold("items"), ThreadPoolExecutor(1) as thread:
            head = thread.submit(served, plain, locks, rules, method="HEAD").result()
        assert (head.status, head.text) == (409, b"")
        assert int(head.headers["content-length"]) > 0

    def test_what_runs_without_a_lease_is_reported_with_its_label(self):
        """The label of the rule comes before the request, or takes its place as ``label=``."""
        url, labels = f"redis://127.0.0.1:{free_port()}", []
        rules = [Rule("/own", key="x", label="mine"), Rule("/", key="x")]
        with Locks.from_url(url, wait=0, on_unavailable="open", label="web") as locks:
            locks.observe(
                Observer(
                    lambda event: labels.append(event.label), only=[FailedOpen], immediate=True
                )
            )
            for path in ("/own", "/"):
                assert served(plain, locks, rules, path=path).status == 200
        assert labels == ["mine", "web POST /"]

    def test_several_keys_of_all_parts_of_a_request(self, locks):
        """Path, query and headers, however they are spelled; all keys are held together."""
        held = []

        def app(environ, start_response):
            held.append([info.key for info in locks.list()])
            return plain(environ, start_response)

        rules = [
            Rule(
                "/cafés/{id}",
                key=["{id}", "q:{query.q}", "{header.X-User}", "{header.Content-Type}"],
            )
        ]
        for query in ("q=%C3%A9", "q=\xc3\xa9"):
            more = {"HTTP_X_USER": "m\xe9", "CONTENT_TYPE": "text/csv"}
            served(app, locks, rules, path="/cafés/ü", query=query, **more)
        assert held == [["mé", "q:é", "text%2Fcsv", "ü"]] * 2
        assert locks.list() == []

    def test_layers_on_the_same_locks_are_one(self, locks):
        """A middleware inside a middleware adds its keys to the request, and waits for nothing of it."""
        inner = LockMiddleware(plain, locks, [Rule("/items", key=["items", "more"], wait=0)])
        outer = LockMiddleware(inner, locks, RuleSet(ITEMS))
        assert Gateway(outer).serve().status == 200
        assert (outer.app, [*outer.rules], outer.root_path) == (inner, ITEMS, "")

    def test_what_no_rule_is_about_is_untouched(self, locks):
        """It reaches the application with its own ``environ`` and ``start_response``."""
        seen, rules = [], [*ITEMS, Rule("/other", exempt=True), Rule("/{p:path}", key="all")]

        def app(*given):
            seen.extend(given)
            return given[1]

        environ, start = {"REQUEST_METHOD": "GET", "PATH_INFO": "/other"}, object()
        assert LockMiddleware(app, locks, rules)(environ, start) is start
        assert seen[0] is environ
        assert seen[1] is start
        assert environ == {"REQUEST_METHOD": "GET", "PATH_INFO": "/other"}


class TestWhatCannotWork:
    def test_locks_that_are_awaited(self):
        """``AsyncLocks`` are refused when the middleware is made, with what to give instead."""
        locks = AsyncLocks.from_url("memory://never")
        with pytest.raises(TypeError, match=r"AsyncLocks .* waits in threads: .* Locks\.from_url"):
            LockMiddleware(plain, locks, ITEMS)
        locks._close()

    def test_no_rules_and_wrong_ones(self, locks):
        """So are a middleware that would lock nothing, unknown fields, and options beside locks."""
        with pytest.raises(ConfigurationError, match="no rules"):
            LockMiddleware(plain, locks)
        with pytest.raises(ConfigurationError, match=r"^rules\.items has 'keys'"):
            LockMiddleware(plain, locks, {"items": {"path": "/items", "keys": "x"}})
        with pytest.raises(TypeError, match="ttl: these are options of the locks"):
            LockMiddleware(plain, locks, ITEMS, ttl=3)

    def test_a_request_without_a_layer(self):
        """An application that asks for its locks is told what is missing."""
        with pytest.raises(ConfigurationError, match="weblock serves no request here"):
            request_locks({})


class TestTheRelease:
    def test_a_complete_response_leaves_after_it(self, locks):
        """The body is closed inside the lock, and the server gets nothing before the release."""
        body = Body([b"a", b"", b"b"], locks)
        gateway = Gateway(LockMiddleware(validator(answering(body)), locks, ITEMS)).begin()
        assert (body.closed, body.was_free) == (1, False)
        assert is_free(locks)
        assert [*gateway.parts()] == [b"ab"]
        gateway.close()

    def test_a_large_response_in_one_piece_leaves_after_it(self, locks):
        """However large it is: a client that reads slowly keeps nobody waiting."""
        gateway = Gateway(LockMiddleware(answering([16 * MIB * b"x"]), locks, ITEMS)).begin()
        assert is_free(locks)
        assert [len(part) for part in gateway.parts()] == [16 * MIB]
        gateway.close()

    def test_a_response_that_goes_on_is_released_when_it_is_closed(self, locks):
        """More than 1 MiB, in parts: it is sent as it is made, with little of it in memory."""
        made = itertools.count()
        body = Body((b"%d" % next(made) + MIB // 4 * b"x" for _ in range(40)), locks)
        gateway = Gateway(LockMiddleware(validator(answering(body)), locks, ITEMS)).begin()
        assert next(made) < 10
        assert not is_free(locks)
        parts = [*gateway.parts()]
        assert len(b"".join(parts)) == sum(map(len, parts)) > 10 * MIB
        assert not is_free(locks)
        gateway.close()
        assert (body.closed, body.was_free) == (1, False)
        assert is_free(locks)

    def test_events_flow(self, locks):
        """A stream of events is sent from its first, and holds the lock until the server closes it."""

        def app(environ, start_response):
            start_response("200 OK", [("Content-Type", "text/event-stream")])
            return (b"data: %d\n\n" % number for number in itertools.count())

        gateway = Gateway(LockMiddleware(app, locks, ITEMS)).begin()
        assert next(gateway.parts()) == b"data: 0\n\n"
        assert not is_free(locks)
        gateway.close()
        assert is_free(locks)

    def test_what_takes_long_is_a_stream(self, locks, monkeypatch):
        """A response that is not complete a second after its first part is sent as it is made."""
        monkeypatch.setattr("weblock.contrib.kit.bodies.STREAMS_AFTER", 0)
        body = (time.sleep(0.001) or b"%d" % number for number in itertools.count())
        gateway = Gateway(LockMiddleware(answering(body), locks, ITEMS)).begin()
        assert next(gateway.parts()) == b"01"
        assert not is_free(locks)
        gateway.close()
        assert is_free(locks)

    @pytest.mark.parametrize("begun", [False, True])
    def test_a_response_that_is_dropped(self, locks, begun):
        """A server that forgets to close what streams leaves nothing held, and nothing running."""
        ended = []

        def endless():
            try:
                while True:
                    yield MIB * b"x"
            finally:
                ended.append(True)

        def drop():
            environ = Gateway(plain).environ
            body = LockMiddleware(answering(endless()), locks, ITEMS)(environ, lambda *head: None)
            assert not is_free(locks)
            if begun:
                next(iter(body))

        drop()
        gc.collect()
        eventually(lambda: is_free(locks))
        assert ended

    @pytest.mark.parametrize("error", [OSError("disk"), KeyboardInterrupt(), SystemExit(1)])
    @pytest.mark.parametrize("place", ["call", "parts", "close"])
    def test_what_an_application_raises(self, locks, place, error):
        """It gets out as it is, when everything was released; the body is closed once."""
        body = Body([b"a"], locks, error if place == "close" else None)

        def parts():
            yield b"a"
            raise error

        if place == "parts":
            body._parts = parts()

        def app(environ, start_response):
            if place == "call":
                raise error
            return answering(body)(environ, start_response)

        gateway = Gateway(LockMiddleware(app, locks, ITEMS))
        with pytest.raises(type(error)):
            gateway.begin()
        assert gateway.starts == 0
        assert body.closed == (place != "call")
        assert is_free(locks)

    def test_a_stream_whose_close_raises(self, locks):
        """The lock is released all the same, and the server gets the error."""
        body = Body([MIB * b"x"] * 4, error=OSError("disk"))
        gateway = Gateway(LockMiddleware(answering(body), locks, ITEMS)).begin()
        with pytest.raises(OSError, match="disk"):
            gateway.close()
        assert is_free(locks)

    def test_a_stream_that_fails(self, locks):
        """The server gets the error of a later part, and closes."""

        def parts():
            yield 2 * MIB * b"x"
            yield b"y"
            raise OSError("disk")

        gateway = Gateway(LockMiddleware(answering(parts()), locks, ITEMS))
        with pytest.raises(OSError, match="disk"):
            gateway.serve()
        assert is_free(locks)

    def test_files(self, locks):
        """A file by ``wsgi.file_wrapper`` is read inside the lock; where nothing is locked, untouched."""
        wrappers = []

        def app(environ, start_response):
            start_response("200 OK", HEAD)
            wrappers.append(environ["wsgi.file_wrapper"](open(__file__, "rb")))  # noqa: PTH123, SIM115
            return wrappers[-1]

        with open(__file__, "rb") as file:  # noqa: PTH123
            content = file.read()
        locked = Gateway(
            LockMiddleware(app, locks, ITEMS), **{"wsgi.file_wrapper": FileWrapper}
        ).serve()
        assert locked.text == content
        assert wrappers[0].filelike.closed
        environ = Gateway(plain, **{"wsgi.file_wrapper": FileWrapper}).environ
        body = RequestLayer(app, locks)(environ, lambda *head: None)
        assert body is wrappers[1]
        body.close()


class TestStartResponse:
    @pytest.mark.parametrize("size", [1, MIB])
    @pytest.mark.parametrize("is_locked", [True, False])
    def test_late(self, locks, is_locked, size):
        """An application that is a generator calls it when its first part is asked for."""

        def app(environ, start_response):
            start_response("201 Created", HEAD)
            for _ in range(4):
                yield size * b"x"

        layer = LockMiddleware(app, locks, ITEMS) if is_locked else RequestLayer(app, locks)
        done = Gateway(layer).serve()
        assert (done.status, len(done.text)) == (201, 4 * size)
        assert is_free(locks)

    def test_twice_with_exc_info(self, locks):
        """The response to an error takes the place of one that was held back, with all its parts."""

        def app(environ, start_response):
            start_response("200 OK", HEAD)
            yield b"half of "
            start_response("500 Oops", HEAD, exc_info())
            yield b"sorry"

        done = served(app, locks)
        assert (done.status, done.text) == (500, b"sorry")

    def test_twice_when_something_was_sent(self, locks):
        """The server raises the error again, for it has sent the first response."""

        def app(environ, start_response):
            start_response("200 OK", HEAD)
            for _ in range(3):
                yield MIB * b"x"
            start_response("500 Oops", HEAD, exc_info())
            yield b"sorry"

        with pytest.raises(OSError, match="disk"):
            served(app, locks)
        assert is_free(locks)

    def test_never(self, locks):
        """The server sees that it was not called."""
        gateway = Gateway(LockMiddleware(lambda *given: [b"x"], locks, ITEMS))
        with pytest.raises(AssertionError):
            gateway.serve()
        assert is_free(locks)

    def test_a_server_that_refuses_it(self, locks):
        """A status that the server does not take leaves nothing held."""

        def refuse(*head):
            raise ValueError("no such status")

        for parts in ([b"x"], [MIB * b"x"] * 4):
            body = Body(parts)
            with pytest.raises(ValueError, match="no such status"):
                LockMiddleware(answering(body), locks, ITEMS)(Gateway(plain).environ, refuse)
            assert body.closed == 1
            assert is_free(locks)


class TestWrite:
    def test_is_held_back(self, locks):
        """What is written is sent after the release, before what is returned."""
        was_free = []

        def app(environ, start_response):
            write = start_response("200 OK", HEAD)
            write(b"a")
            write(b"b")
            was_free.append(bool(gateway.sent))
            return [b"c"]

        gateway = Gateway(LockMiddleware(validator(app), locks, ITEMS))
        gateway.serve()
        assert was_free == [False]
        assert gateway.text == b"abc"

    def test_in_large_amounts(self, locks):
        """More than 1 MiB is sent as it is written."""
        sent = []

        def app(environ, start_response):
            write = start_response("200 OK", HEAD)
            for _ in range(4):
                write(MIB * b"x")
                sent.append(len(gateway.text) // MIB)
            return [b"end"]

        gateway = Gateway(LockMiddleware(validator(app), locks, ITEMS))
        gateway.serve()
        assert sent == [0, 0, 3, 4]
        assert len(gateway.text) == 4 * MIB + 3
        assert is_free(locks)

    def test_without_a_lock(self, locks):
        """A request that holds nothing writes to the server at once."""

        def app(environ, start_response):
            start_response("200 OK", HEAD)(b"a")
            assert gateway.sent == [b"a"]
            return [b"b"]

        gateway = Gateway(RequestLayer(validator(app), locks))
        gateway.serve()
        assert gateway.text == b"ab"


class TestALostLease:
    @pytest.fixture
    def lose(self, locks):
        def lose(environ):
            locks.force_release("items")
            losing.lose(request_locks(environ).leases[0])

        return lose

    def test_an_error_of_the_server_promises_nothing(self, locks, lose):
        """The application's own 500 is the truth."""

        def app(environ, start_response):
            lose(environ)
            return answering([b"oops"], "500 Oops")(environ, start_response)

        assert (done := served(app, locks)).status == 500
        assert done.text == b"oops"

    def test_a_stream_breaks_off(self, locks, lose):
        """The parts that come after the loss are not sent."""

        def app(environ, start_response):
            start_response("200 OK", HEAD)
            for number in range(6):
                if number == 4:
                    lose(environ)
                yield MIB * b"x"

        gateway = Gateway(LockMiddleware(app, locks, ITEMS))
        with pytest.raises(Exception, match="lost"):
            gateway.serve()
        assert len(gateway.text) == 4 * MIB

    def test_a_loss_after_all_was_sent_is_logged(self, locks, lose, caplog):
        """It is too late for another answer."""

        def app(environ, start_response):
            write = start_response("200 OK", HEAD)
            for _ in range(3):
                write(MIB * b"x")
            lose(environ)
            return []

        with caplog.at_level(logging.ERROR, "weblock"):
            assert served(app, locks).status == 200
        assert any("'items'" in record.getMessage() for record in caplog.records)


class TestTheClient:
    """One that leaves while it waits gives up its place, where the server shows it."""

    @pytest.fixture(params=[*requests_of_wsgi.SOCKETS, "waitress.client_disconnected", "uwsgi"])
    def client(self, request, monkeypatch):
        ours, theirs = socket.socketpair()
        theirs.sendall(b"more that nobody has read")
        shown = gone.is_set if (gone := _Gone(theirs)) and "waitress" in request.param else ours
        if request.param == "uwsgi":  # A module, which is there in its processes alone.
            module = SimpleNamespace(connection_fd=ours.fileno)
            monkeypatch.setitem(sys.modules, "uwsgi", module)
        with ours, theirs:
            yield gone, {} if request.param == "uwsgi" else {request.param: shown}

    @pytest.fixture
    def looks(self, monkeypatch):
        """What each look at a client has seen; they come quickly."""
        seen, look = [], requests_of_wsgi._look

        def noted(is_gone):
            seen.append(is_gone())
            look(lambda: seen[-1])

        monkeypatch.setattr(requests_of_wsgi, "_look", noted)
        monkeypatch.setattr(acquiring, "LOOK", 0.01)
        return seen

    def test_leaves_between_two_attempts(self, locks, client, looks):
        """So does one that asks again and again, instead of standing in the queue."""
        gone, shown = client
        rules = [Rule("/items", key="items", wait=Attempts(1000))]
        with ThreadPoolExecutor(1) as thread, locks.hold("items"):
            waiting = thread.submit(served, plain, locks, rules, **shown)
            eventually(lambda: looks)
            gone.set()
            assert waiting.result().status == 499

    @pytest.mark.parametrize("place", ["a stream", "write", "close"])
    def test_leaves_after_a_part_was_sent(self, locks, client, looks, place):
        """The server hears of a broken pipe, an error that it expects: it survives no other kind."""
        gone, shown = client

        def wait_for_a_key(environ):
            request_locks(environ).acquire("other", wait=None)

        def parts(environ):
            yield b"-"
            wait_for_a_key(environ)

        def app(environ, start_response):
            write = start_response("200 OK", [("Content-Type", "text/event-stream")])
            if place == "write":
                write(b"-")
                wait_for_a_key(environ)
            if place == "close":
                body = Body([b"-"])
                body.close = lambda: wait_for_a_key(environ)
                return body
            return parts(environ)

        with ThreadPoolExecutor(1) as thread, locks.hold("other"):
            gateway = Gateway(LockMiddleware(app, locks, ITEMS), **shown)
            waiting = thread.submit(gateway.serve)
            eventually(lambda: waiters(locks, "other") == 1)
            gone.set()
            with pytest.raises(BrokenPipeError):
                waiting.result()
        assert is_free(locks)

    def test_stays(self, locks, client, looks):
        """One that is still there gets its response, however often it was looked for."""
        _, shown = client
        rules = [Rule("/items", key="items", wait=None)]
        holder = locks.acquire("items")
        with ThreadPoolExecutor(1) as thread:
            waiting = thread.submit(served, plain, locks, rules, **shown)
            eventually(lambda: waiters(locks, "items") == 1)
            eventually(lambda: len(looks) > 2)
            holder.release()
            assert waiting.result().status == 200
        assert not any(looks)

    def test_that_has_left_long_ago(self, locks):
        """A connection that the server itself has closed is gone."""
        ours, theirs = socket.socketpair()
        ours.close()
        theirs.close()
        rules = [Rule("/items", key="items", wait=None)]
        with ThreadPoolExecutor(1) as thread, locks.hold("items"):
            waiting = thread.submit(served, plain, locks, rules, **{"gunicorn.socket": ours})
            assert waiting.result().status == 499


class _Gone(threading.Event):
    """That a client has left; it closes its connection, too."""

    def __init__(self, connection):
        super().__init__()
        self._connection = connection

    def set(self):
        self._connection.close()
        super().set()
