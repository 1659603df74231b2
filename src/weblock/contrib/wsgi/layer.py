"""The outer layer: it runs the application, then releases, and only then answers.

The application commits its work before it has returned and its response is closed, whatever the
order of its parts; so a lock that is released after that is released after the commit. And since the
response is held back until then, a slow client cannot keep the lock, and a commit that fails cannot
have been reported as done.

``LockMiddleware`` runs in a layer of its own, and acquires what its rules say.
"""

from __future__ import annotations

import errno
import functools
import io
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from http.client import responses
from typing import Any, Self, Unpack
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from ..._options import Duration, LocksOptions
from ..._platform.logs import logger
from ..._runtime.runtimes import drive, part_of
from ...errors import LeaseLost, LockTimeout, StrangePath
from ...sync import Locks
from ..kit import (
    BODY_WAIT,
    SENT_TOO_EARLY,
    BodyDigest,
    ClientGone,
    Execution,
    Match,
    Output,
    Problem,
    Rewrite,
    RuleMiddleware,
    Rules,
    RuleSet,
    answers,
    innermost,
    opened,
    seconds_or_none,
    watch_sessions,
)
from .request import ENVIRON_KEY, RequestLocks, headers_of, path_of, query_of, text_of, whole_body

Headers = list[tuple[str, str]]

Respond = Callable[[BaseException], WSGIApplication | None]
"""Returns the application that responds to an error; ``None`` if the error is not weblock's."""


def status_line(status: int) -> str:
    """Return a status with its name."""
    return f"{status:d} {responses.get(status, 'Unknown')}"


def respond_with(problem: Problem) -> WSGIApplication:
    """Return the application that responds with a problem."""

    def respond(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        start_response(status_line(problem.status), [*problem.fields.items()])
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [problem.body]

    return respond


class RequestLayer:
    """WSGI middleware that owns the leases of each request.

    The response to a request that locks is kept until it is complete and the locks are released. One
    that is larger than 1 MiB, goes on for longer than a second, or is a stream of events is sent as it
    is made; its locks are released when the server closes it.

    With ``of_rules``, it acquires for the rules of a middleware, and an application inside may have locks
    of its own. A request that locks waits for its body for ``body_wait`` seconds, for each 64 KiB. ``answer`` gives the response to an error of weblock where the application has not given one.
    """

    def __init__(
        self,
        app: WSGIApplication,
        locks: Locks,
        *,
        of_rules: bool = False,
        body_wait: Duration | None = BODY_WAIT,
        answer: Respond | None = None,
    ) -> None:
        self._app = app
        self._body_wait = seconds_or_none("body_wait", body_wait)
        self._locks = locks
        self._of_rules = of_rules
        self._answer = answer or answers(respond_with)
        watch_sessions()

    @property
    def app(self) -> WSGIApplication:
        """The application that it wraps."""
        return self._app

    def __call__(
        self, environ: WSGIEnvironment, start_response: StartResponse, /
    ) -> Iterable[bytes]:
        """Serve one request."""
        return self.serve(self._app, environ, start_response)

    def serve(
        self, app: WSGIApplication, environ: WSGIEnvironment, start_response: StartResponse
    ) -> Iterable[bytes]:
        """Let ``app`` serve one request, and release what it has acquired."""
        outer = environ.get(ENVIRON_KEY)
        if outer is not None:
            if outer.over:
                outer = innermost(RequestLocks, outer.book)
            if outer and outer.locks is self._locks:
                environ[ENVIRON_KEY] = outer
                # A layer farther out, on the same locks, releases.
                return app(environ, start_response)
        request = environ[ENVIRON_KEY] = RequestLocks(self._locks, environ, outer, self._body_wait)
        request.of_rules = self._of_rules
        outbox = Outbox(start_response, request)
        work = Work(request, outbox)
        try:
            body = work.run(app, environ)
        except (Exception, ClientGone) as error:
            answer = None if outbox.sent else self._answer(error)
            if answer is None and isinstance(error, ClientGone):
                raise _left() from error
            if answer is None:
                raise
        else:
            answer = None
            if work.loss and outbox.sent:
                logger.error(SENT_TOO_EARLY, work.loss.message)
            elif work.loss and outbox.promises:  # It would report success after a loss.
                answer = self._answer(work.loss)
            if answer is None:
                return outbox.finish() if body is None else body
        outbox.discard()
        body = answer(environ, outbox.start_response)
        outbox.open()
        return body


class Outbox(Output):
    """``start_response`` for the application, and the parts of the body that are held back.

    Nothing is held back for a request that holds nothing.
    """

    def __init__(self, start_response: StartResponse, request: RequestLocks) -> None:
        self.leases = request.leases
        self.at_end = request.at_end
        self._start_response = start_response
        self._request = request
        self._head: tuple[str, Headers, Any] | None = None
        self._parts: list[bytes] = []
        self._began = 0.0
        self._write: Callable[[bytes], object] | None = None

    def lets_go(self) -> bool:
        """Return whether a part that comes now must not wait for the end of the response."""
        seconds = time.monotonic() - self._began if self._parts else 0.0
        return self.sent or self.streams(seconds)

    def start_response(
        self, status: str, headers: Headers, exc_info: Any = None, /
    ) -> Callable[[bytes], object]:
        """Take the status and the headers from the application, a second time after an error."""
        if self.sent:
            # The server knows what it has sent of the first, and raises the error if that is anything.
            return self._start_response(status, headers, exc_info)
        if self._head and not exc_info:
            raise AssertionError("start_response was called a second time without exc_info")
        self._parts = []  # They belong to a response that failed.
        self._head = status, headers, exc_info
        fields = {name.lower(): value for name, value in headers}
        self.begin(int(status[:3]), fields.get("content-type", ""))
        if self.is_open:
            self.open()
        return self.write

    def write(self, part: bytes) -> None:
        """Take a part of the body, from an application that calls ``write``."""
        if self.leases and not self.lets_go():
            self.keep(part)
            return
        if not self.sent:
            self.open()
        self.check()
        assert self._write is not None
        for each in (*self.take(), part):
            self._write(each)

    def keep(self, part: bytes) -> None:
        """Hold back a part of the body."""
        if not self._parts:
            self._began = time.monotonic()
        self._parts.append(part)
        self._size += len(part)

    def open(self) -> None:
        """Give the server the status and the headers, as soon as the application gives them."""
        self.is_open = True
        if self._head:
            (status, headers, exc_info), self._head = self._head, None
            self.waited = self._request.waited
            if self.waited is not None:
                headers = [*headers, ("Server-Timing", f"lock;dur={1000 * self.waited:.1f}")]
            more = (exc_info,) if exc_info else ()
            self._write = self._start_response(status, headers, *more)
            self.sent = True

    def discard(self) -> None:
        """Forget what is held back: another response takes its place."""
        self._head, self._parts = None, []

    def take(self) -> list[bytes]:
        """Return the parts that were held back, once."""
        parts, self._parts = self._parts, []
        return parts

    def finish(self) -> list[bytes]:
        """Return the whole body, which is complete; the server gets its status and headers."""
        if not self.sent:
            self.open()
        # In one part, since a server that gets one can say how long it is.
        return [b"".join(self._parts)] if self._parts else []


class Work:
    """What an application does for one request, from its call until its response is closed.

    To the server it is the body of a response that is sent as it is made.
    """

    __slots__ = ("_body", "_is_whole", "_outbox", "_parts", "_request", "loss")

    def __init__(self, request: RequestLocks, outbox: Outbox) -> None:
        self._body: Iterable[bytes] | None = None
        self._is_whole = False
        self._parts: Iterator[bytes] = iter(())
        self._request = request
        self._outbox = outbox
        self.loss: LeaseLost | None = None
        """The loss of a lease, if it was noticed before the response was sent."""

    def run(self, app: WSGIApplication, environ: WSGIEnvironment) -> Iterable[bytes] | None:
        """Return what the server is to send; ``None`` if the outbox has it, complete.

        In that case, and if the application raises, everything is released.
        """
        goes_on, request = False, self._request
        token = part_of.set(request.book.flow)
        try:
            body = self._body = app(environ, self._outbox.start_response)
            if not request.leases:
                request.over = True  # Later, nobody would release.
            elif self._is_complete(body):
                self._is_whole = True
                return None
            self._outbox.open()
            goes_on = True
        finally:
            try:
                if not goes_on:
                    self.loss = self._end()
            finally:
                part_of.reset(token)
        return self if request.leases else body

    def _is_complete(self, body: Iterable[bytes]) -> bool:
        """Collect the body; return whether that was all of it, or the rest must not wait."""
        outbox, self._parts = self._outbox, iter(body)
        if outbox.lets_go():
            return False
        for part in self._parts:
            goes_on = outbox.lets_go()
            outbox.keep(part)
            if goes_on:
                return False
        return True

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> bytes:
        if held := self._outbox.take():
            return b"".join(held)
        token = part_of.set(self._request.book.flow)
        try:
            part = next(self._parts)
        except StopIteration:
            if self._outbox.at_end:
                drive(self._outbox.keep_answer())
            raise
        except ClientGone as gone:
            raise _left() from gone
        finally:
            part_of.reset(token)
        self._outbox.check()
        return part

    def close(self) -> None:
        """Release what the request holds, when the server has sent the response or given up."""
        token = part_of.set(self._request.book.flow)
        try:
            if loss := self._end():
                logger.error(SENT_TOO_EARLY, loss.message)
        except ClientGone as gone:
            raise _left() from gone
        finally:
            part_of.reset(token)

    def _end(self) -> LeaseLost | None:
        """Close the application's response, which may commit, and release. Return a loss."""
        body, self._body = self._body, None
        try:
            if close := getattr(body, "close", None):
                close()
            if self._outbox.at_end and (self._is_whole or self._outbox.sent):
                drive(self._outbox.keep_answer())
        finally:
            loss = drive(self._request.release())
        return loss


def _left() -> BrokenPipeError:
    """Return what servers expect when a client has left: ``ClientGone`` would end a worker of gunicorn."""
    return BrokenPipeError(errno.EPIPE, "the client has left")


class LockMiddleware(RuleMiddleware[WSGIApplication]):
    """Locks requests by rules: each holds the key of the first rule that matches it.

    ``app`` runs only while the request holds its lease, which is released when ``app`` has
    returned and its response is complete and closed. A response of up to 1 MiB is sent after that. Requests
    that no rule matches reach ``app`` untouched.

    Errors are answered with problem details: 409 for a lock that is not free in time, 400 for a key or a path that
    cannot be read, 408 for a body that does not arrive, and 503 for an engine that is down and a lost lease.

    Args:
        app: The application.
        locks: A ``Locks``, or an engine's URL and the options of ``LocksOptions``; ``file://`` by default.
        rules: ``Rule`` objects or mappings, in a list or by their names; see ``RuleSet``.
        body_wait: For how many seconds (5), at most, a request that locks waits for the end of its body,
            or for each 64 KiB of it. ``None`` sets no limit, and reads nothing before the lock is acquired.
        rewrite: ``rewrite(problem, error)`` returns the problem with another status, body or
            headers.
        root_path: Rules match the path below it: the server's SCRIPT_NAME, unless it is given, as
            for a middleware around a dispatcher that mounts ``app``.

    Raises:
        ConfigurationError: A rule or an option cannot work.
    """

    def __init__(
        self,
        app: WSGIApplication,
        locks: Locks | str | Sequence[str] = "file://",
        rules: Rules = (),
        *,
        root_path: str = "",
        body_wait: Duration | None = BODY_WAIT,
        rewrite: Rewrite | None = None,
        **options: Unpack[LocksOptions],
    ) -> None:
        locks, _ = opened(Locks, locks, options)
        super().__init__(app, locks, rules, root_path)
        answer = answers(respond_with, rewrite)
        self._layer = RequestLayer(app, locks, of_rules=True, body_wait=body_wait, answer=answer)

    def __call__(
        self, environ: WSGIEnvironment, start_response: StartResponse, /
    ) -> Iterable[bytes]:
        """Serve one request."""
        found: Match | StrangePath | None
        try:
            found = find(self.rules, environ, self.root_path)
        except StrangePath as error:
            found = error
        if found is None:
            return self.app(environ, start_response)
        inside = functools.partial(self._inside, found)
        return self._layer.serve(inside, environ, start_response)

    def _inside(
        self, found: Match | StrangePath, environ: WSGIEnvironment, start_response: StartResponse
    ) -> Iterable[bytes]:
        if isinstance(found, StrangePath):
            raise found  # The layer answers it.
        keys = found.keys(query=query_of(environ), headers=headers_of(environ), environ=environ)
        of_rules: RequestLocks = environ[ENVIRON_KEY]  # The layer has put it there.
        execution: Execution | None = None
        if spec := found.rule.once:
            assert self.texts
            of_rules.read_ahead()
            body = whole_body(environ, spec.refuse_body)
            environ["wsgi.input"] = io.BytesIO(body)
            digest = BodyDigest(environ.get("CONTENT_TYPE", ""))
            digest.add(body)
            asked = spec.asked_for(
                environ,
                method=environ["REQUEST_METHOD"],
                path=path_of(environ),
                sent=headers_of(environ)(spec.header),
                parts=[query_of(environ).encode(), digest.digest()],
            )
            execution = Execution(self.texts, spec, asked, of_rules)
            lease = busy = None
            try:
                lease = of_rules.hold(spec.keys_of(asked), spec.options)
            except LockTimeout as error:
                busy = error
            if answer := drive(execution.begin(lease, busy)):
                start_response(status_line(answer.status), list(answer.replayed.headers))
                return [answer.body]
        if keys:
            of_rules.hold(keys, found.rule.lock.options)
        if execution:
            return _Executed(self.app, environ, start_response, execution)
        return self.app(environ, start_response)


class _Executed:
    """The response of an application to a request that is executed once."""

    def __init__(
        self,
        app: WSGIApplication,
        environ: WSGIEnvironment,
        start_response: StartResponse,
        execution: Execution,
    ) -> None:
        self._start_response = start_response
        self._execution = execution
        self._body = app(environ, self._start)
        self._parts = iter(self._body)

    def _start(
        self, status: str, headers: list[tuple[str, str]], exc_info: Any = None, /
    ) -> Callable[[bytes], object]:
        self._execution.start(int(status[:3]), headers)
        write = self._start_response(status, headers, *((exc_info,) if exc_info else ()))

        def write_noted(part: bytes) -> None:
            self._execution.add(part)
            write(part)

        return write_noted

    def __iter__(self) -> Iterator[bytes]:
        for part in self._parts:
            self._execution.add(part)
            yield part
        self._execution.complete()

    def close(self) -> None:
        """Close the application's response, which may commit."""
        if close := getattr(self._body, "close", None):
            close()


def find(rules: RuleSet, environ: WSGIEnvironment, root_path: str) -> Match | None:
    """Return what a request locks; ``None`` if nothing. Raises ``StrangePath``."""
    script_name, path_info = environ.get("SCRIPT_NAME", ""), environ["PATH_INFO"]
    if path_info and not path_info.startswith("/"):
        path_info = f"/{path_info}"  # Werkzeug and Bottle add what some servers leave out.
    path, mount = text_of(script_name + path_info), text_of(script_name)
    return rules.find(environ["REQUEST_METHOD"], path, root_path=root_path or mount)
