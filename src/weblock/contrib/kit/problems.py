"""The errors of weblock over HTTP: problem details (RFC 9457).

They say what the client can do, and do not name owners, engines or hosts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final, TypeVar

from ...errors import (
    AnswersUnavailable,
    BodyTimeout,
    BodyTooLong,
    CallerUnknown,
    ConfigurationError,
    EngineRecovering,
    EngineUnavailable,
    IdempotencyKeyInvalid,
    IdempotencyKeyReused,
    InvalidKey,
    LeaseLost,
    LockTimeout,
    StrangePath,
    TooManyAnswers,
    WeblockError,
)

A = TypeVar("A")

ENGINE_RETRY_AFTER: Final = 5
"""``Retry-After`` in seconds when the engine is down."""

LONGEST_RETRY_AFTER: Final = 60

CLIENT_GONE: Final = 499
"""The status in nginx's log of a client that did not wait for its response, which nobody reads."""


class ClientGone(BaseException):
    """The client left while its request was waiting for a lock.

    Like a cancellation it is not an ``Exception``: nothing has failed, and what rolls back for it has
    nothing to log.
    """


@dataclass(frozen=True)
class Problem:
    """A problem response.

    ``code`` is stable, for programs; ``title`` and ``detail`` are for people. ``more`` are members
    of the body beside those that every problem has.
    """

    status: int
    code: str
    title: str
    detail: str
    headers: dict[str, str] = field(default_factory=dict)
    more: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.status, int):
            raise TypeError(f"Problem(status={self.status!r:.80}) must be a number, such as 423")

    media_type = "application/problem+json"

    @property
    def uncached(self) -> dict[str, str]:
        """Return the headers, and that nothing may store the response: some proxies keep errors."""
        return {"Cache-Control": "no-store", **self.headers}

    @property
    def fields(self) -> dict[str, str]:
        """Return all headers of the response."""
        length = str(len(self.body))
        return {"Content-Type": self.media_type, "Content-Length": length, **self.uncached}

    @property
    def body(self) -> bytes:
        """Return the problem as JSON."""
        content = {
            "type": f"urn:weblock:{self.code}",
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
            "code": self.code,
            **self.more,
        }
        return json.dumps(content).encode()


Rewrite = Callable[[Problem, WeblockError], Problem]
"""Returns the problem to respond with, from weblock's problem and the error that caused it."""


def problem_of(
    error: BaseException | None, rewrite: Rewrite | None = None, *, debug: bool = False
) -> Problem | None:
    """Return the problem that a client gets for an error; ``None`` if it is not weblock's.

    With ``debug``, an outage names the engine and its error, and a lost lease its key and the reason,
    which clients of a production server must not see.
    """
    if isinstance(error, ClientGone):
        title, detail = "The client has left", "The client did not wait for the lock."
        return Problem(CLIENT_GONE, "client_gone", title, detail)
    kind = next((kind for kind in _OF_ERRORS if isinstance(error, kind)), None)
    if kind is None or not isinstance(error, WeblockError):
        return None
    status, title, detail = _OF_ERRORS[kind]
    code, headers = kind.code, {}
    if isinstance(error, IdempotencyKeyInvalid):
        code = error.code
        title = f"{error.header} is {'missing' if error.missing else 'malformed'}"
        detail = detail.format(header=error.header)
    elif isinstance(error, LockTimeout | EngineRecovering | TooManyAnswers):
        seconds = min(LONGEST_RETRY_AFTER, max(1, math.ceil(error.retry_after or 0)))
        headers = {"Retry-After": str(seconds)}
    elif isinstance(error, EngineUnavailable | AnswersUnavailable):
        headers = {"Retry-After": str(ENGINE_RETRY_AFTER)}
    problem = Problem(status.value, code, title, detail, headers)
    if debug and isinstance(error, EngineUnavailable | LeaseLost):
        problem.more["debug"] = str(error)
    if rewrite is None:
        return problem
    found: object = rewrite(problem, error)
    if not isinstance(found, Problem):
        raise TypeError(
            f"rewrite returned {found!r:.80} for a {type(error).__name__}: return the problem,"
            " or dataclasses.replace(problem, ...)"
        )
    return found


def answers(
    respond: Callable[[Problem], A],
    rewrite: Rewrite | None = None,
    debug: Callable[[], bool] = lambda: False,
) -> Callable[[BaseException], A | None]:
    """Return a function that makes a response of an error; ``None`` for one that is not weblock's.

    ``debug`` returns that of ``problem_of``. Raises ``ConfigurationError`` if nothing can be rewritten by
    ``rewrite``.
    """
    if not (rewrite is None or callable(rewrite)):
        raise ConfigurationError(
            f"rewrite={rewrite!r:.80} must be a function of a problem and an error"
        )

    def answer(error: BaseException) -> A | None:
        problem = problem_of(error, rewrite, debug=debug())
        return respond(problem) if problem else None

    return answer


_OF_ERRORS: Final[dict[type[WeblockError], tuple[HTTPStatus, str, str]]] = {
    LockTimeout: (
        HTTPStatus.CONFLICT,
        "The resource is busy",
        "Another request that must not overlap with this one is running. Try again shortly.",
    ),
    EngineRecovering: (
        HTTPStatus.SERVICE_UNAVAILABLE,
        "The lock service is recovering",
        (
            "It has just started, and grants no locks while earlier requests might still be"
            " running. Try again shortly."
        ),
    ),
    EngineUnavailable: (
        HTTPStatus.SERVICE_UNAVAILABLE,
        "The lock service is unavailable",
        "It is not known whether the resource is free. Try again later.",
    ),
    LeaseLost: (
        HTTPStatus.SERVICE_UNAVAILABLE,
        "The lock was lost while the request was served",
        "It is not certain whether the work was done. Check before you try again.",
    ),
    StrangePath: (
        HTTPStatus.BAD_REQUEST,
        "The path is ambiguous",
        (
            "Send it in its usual form: with single slashes, without dot segments and control"
            " characters, as UTF-8, and with plain numbers."
        ),
    ),
    InvalidKey: (
        HTTPStatus.BAD_REQUEST,
        "The request names something that cannot be locked",
        (
            "The part of the URL, the header or the body that names it is missing, empty, repeated,"
            " too long, or has characters that are not allowed."
        ),
    ),
    BodyTimeout: (
        HTTPStatus.REQUEST_TIMEOUT,
        "The request took too long to arrive",
        "Its body did not arrive in time. Send it again, without pauses.",
    ),
    BodyTooLong: (
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        "The body of the request is too long",
        (
            "This operation is executed once for each idempotency key, and accepts no body of this"
            " length."
        ),
    ),
    CallerUnknown: (
        HTTPStatus.FORBIDDEN,
        "It is not known who sends the request",
        (
            "This operation requires a user, because its idempotency keys belong to users. Log in"
            " first."
        ),
    ),
    IdempotencyKeyReused: (
        HTTPStatus.UNPROCESSABLE_ENTITY,
        "The idempotency key was used for another request",
        (
            "A request with this key had another query or body. Send the same request again, or"
            " use a new key for another one."
        ),
    ),
    IdempotencyKeyInvalid: (
        HTTPStatus.BAD_REQUEST,
        "",
        (
            "This operation requires the header {header}. Its value is a new random string, such as"
            " a UUID, for each operation, and the same string when the request is sent again."
        ),
    ),
    AnswersUnavailable: (
        HTTPStatus.SERVICE_UNAVAILABLE,
        "The store of answers is unavailable",
        (
            "It is not known whether this request was served before, so nothing was done."
            " Send it again with the same idempotency key."
        ),
    ),
    TooManyAnswers: (
        HTTPStatus.TOO_MANY_REQUESTS,
        "Too many idempotency keys",
        (
            "Too many answers to your earlier requests are stored, so nothing was done."
            " Try again later, with the same idempotency key."
        ),
    ),
}
"""The status, title and detail of each error; a subclass precedes its base class."""
