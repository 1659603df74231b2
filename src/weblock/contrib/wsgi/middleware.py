"""``LockMiddleware``: locks by URL, for any WSGI application."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Unpack
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from ..._options import Duration, HoldOptions, LocksOptions
from ..._runtime.blocking import drive
from ...errors import StrangePath
from ...keys import CheckedKey
from ...sync import Lease, Locks
from ..kit import (
    BODY_WAIT,
    Execution,
    Match,
    Rewrite,
    RuleMiddleware,
    Rules,
    RuleSet,
    answers,
    opened,
    parts_of,
)
from .body import whole_body
from .layer import RequestLayer, respond_with, status_line
from .request import ENVIRON_KEY, RequestLocks, headers_of, path_of, query_of, text_of


class LockMiddleware(RuleMiddleware[WSGIApplication]):
    """Locks requests by rules: each holds the key of the first rule that matches it.

    ``app`` runs only while the request holds its lease, which is released when ``app`` has
    returned and its response is complete and closed. A response of up to 1 MiB is sent after that. Requests
    that no rule matches reach ``app`` untouched.

    A request that does not get its lock in time is answered with 409, one whose key cannot be made
    or whose path routers may read in different ways, with 400, one whose body does not arrive in time, with
    408, and one whose engine is down or whose
    lease was lost with 503, as problem details.

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
            asked = spec.asked_for(
                environ,
                method=environ["REQUEST_METHOD"],
                path=path_of(environ),
                sent=headers_of(environ)(spec.header),
                parts=parts_of(query_of(environ).encode(), body, environ.get("CONTENT_TYPE", "")),
            )
            execution = Execution(self.texts, spec, asked, of_rules)

            async def acquire(keys: Sequence[CheckedKey], options: HoldOptions) -> Lease:
                return of_rules.hold(keys, options)

            if answer := drive(execution.begin(acquire)):
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
