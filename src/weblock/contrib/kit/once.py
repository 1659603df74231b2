"""Execute the requests of a rule once, and keep their answers in the engine of the locks.

A middleware takes these steps:

1. It reads the whole body of the request, and makes an ``Execution``.
2. It acquires the key of the request. ``begin`` returns the kept answer, which is sent instead. If there is
   none, the application is called.
3. The application responds. ``start`` and ``add`` note the response, which waits as that of any request
   that locks.
4. When the application has ended, so that its work was committed, the layer calls ``end``, which keeps the
   answer if no lease of the request was lost and the engine still knows the lease of the key. After that, the
   lock is released, and the response is sent. Some responses do not wait for the application, such as streams
   and those with background tasks. Their answers are kept before their ends are sent.

What can fail:

- *The worker dies before step 4.* A retry is executed, also if the work was committed. Only an answer in the
  transaction of the work prevents that: see ``idempotency``.
- *The lease is lost*, because the worker was paused. It keeps nothing, and its client gets 503. The retry is
  executed, or gets the answer of a later holder.
- *The engine does not answer in step 4*, or the answer is too long for it. The work is done, so the client gets
  the response, and the error is logged. A retry is executed.
"""

from __future__ import annotations

import base64
import inspect
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, Required, Self

from ..._adapting import KeptTexts
from ..._api import BaseLease
from ..._platform.logs import logger
from ..._runtime.runtimes import drive
from ...errors import (
    BodyTooLong,
    CallerUnknown,
    ConfigurationError,
    EngineUnavailable,
    LeaseLost,
    LockTimeout,
    TooManyAnswers,
)
from ...keys import signature_of
from ...sync import Locks
from .book import RequestLeases
from .idempotency import Answer, Asked, IdempotencyOptions, IdempotencySpec, Stored
from .spec import name_of

SEARCHED: Final = 100_000
"""How many answers of an engine are searched for an idempotency key, at most."""

FORMAT: Final = 1
"""The version of the texts, which are JSON."""


class Idempotent(IdempotencyOptions, total=False):
    """How the requests of a rule are executed once. ``max_body`` is 64 KiB, which is also the most."""

    caller: Required[Callable[[Any], object] | str]
    """A function of ``scope`` (ASGI) or ``environ`` (WSGI) that returns the id of the user.

    It returns a string, an int or a UUID. ``None`` is answered with 403. ``"anonymous"`` if all clients share their
    keys, and may read the answers of one another.
    """
    max_request: int
    """How many bytes the body of a request may have (1 MiB); a longer one is answered with 413."""


@dataclass(frozen=True, repr=False)
class RuleOnce(IdempotencySpec):
    """What ``Rule(idempotent=...)`` describes."""

    max_request: int = 1024 * 1024

    @classmethod
    def of_rule(cls, given: object) -> Self:
        """Return what a rule was given. Raises ``ConfigurationError`` for what cannot work."""
        if not isinstance(given, Mapping):
            raise ConfigurationError(
                f'idempotent={given!r:.80} must be a mapping, such as {{"caller": current_user}}'
            )
        if unknown := [name for name in given if name not in Idempotent.__annotations__]:
            raise ConfigurationError(
                f"idempotent= has {unknown[0]!r:.80}; available:"
                f" {', '.join(Idempotent.__annotations__)}"
            )
        spec = cls.written(**{"caller": None, **given, "store": "engine"})
        most: object = spec.max_request
        if type(most) is not int or most < 1:
            raise ConfigurationError(f"max_request={most!r:.80} must be a whole number from 1 on")
        name = f"{name_of(spec.caller)}, the caller= of idempotent=,"
        if inspect.iscoroutinefunction(spec.caller):
            raise ConfigurationError(
                f"{name} is async: write a plain function, which does not block"
            )
        try:
            if callable(spec.caller):
                signature_of(spec.caller).bind(None)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(
                f"{name} cannot be called with scope (ASGI) or environ (WSGI) alone: {error}"
            ) from error
        return spec

    def asked_for(self, request: object, **facts: Any) -> Asked:
        """Return what a request asks for: its ``scope`` or ``environ``, and what ``asked`` needs.

        Raises as ``asked``, and ``CallerUnknown``.
        """
        caller = self.caller(request) if callable(self.caller) else None
        if callable(self.caller) and caller is None:
            raise CallerUnknown(name_of(self.caller))
        return self.asked(caller=caller, **facts)

    def refuse_body(self, size: int) -> None:
        """Raise ``BodyTooLong`` for a request whose body has too many bytes."""
        if size > self.max_request:
            raise BodyTooLong(self.max_request)


class KeptAnswers:
    """The answers in the engine of some locks, for operators. Raises ``ConfigurationError`` if it keeps none."""

    def __init__(self, locks: Locks) -> None:
        self._texts = KeptTexts(locks, "weblock answers")

    def all(self, limit: int, key: str | None = None) -> Sequence[Stored]:
        """Return answers that have not expired, or those with an idempotency key."""
        texts = drive(self._texts.all(limit if key is None else SEARCHED))
        found = []
        for name, text in texts:
            kept = json.loads(text)
            if kept.get("format") != FORMAT:
                logger.warning("left out: %s [weblock.other_format]", _other_format(name, kept))
                continue
            answer = Stored(*(kept[field] for field in Stored._fields))
            if key in (None, answer.idempotency_key):
                found.append(answer)
        return found[:limit]

    def forget(self, answer: Stored) -> bool:
        """Remove an answer, and return whether there was one."""
        return drive(self._texts.forget(f"idempotency:{answer.digest}", answer.caller))


def _other_format(what: str, kept: Mapping[str, object]) -> str:
    return (
        f"{what} was stored in the format {kept.get('format')!r:.20}, and this version of weblock"
        f" reads and writes the format {FORMAT}: delete it with the version that stored it, or wait"
        " until it expires"
    )


@dataclass
class Execution:
    """A request that is executed once.

    With ``keeps_errors``, responses from 400 on were returned, and not raised, and some of them are kept.
    """

    texts: KeptTexts
    spec: IdempotencySpec
    asked: Asked
    held: RequestLeases[Any]
    """The layer of the request that holds its key."""
    keeps_errors: bool = False
    _lease: BaseLease | None = None
    _status = 0
    _headers: Sequence[tuple[str, str]] = ()
    _is_complete = _is_long = False

    def __post_init__(self) -> None:
        (self._key,) = self.spec.keys_of(self.asked)
        self._body = bytearray()

    async def begin(self, lease: BaseLease | None, busy: LockTimeout | None) -> Answer | None:
        """Return the kept answer; ``None`` if the request is to be executed.

        ``lease`` is that of the key; without it, ``busy`` says why, which is raised if there is no answer. Raises
        ``EngineUnavailable``, ``IdempotencyKeyReused`` and ``TooManyAnswers``.
        """
        self._lease = lease
        # If it is busy, the other request may have ended by now.
        found = await self.texts.find(self._key, self.asked.caller)
        if found.text is None:
            self.spec.is_repeated(self.texts.locks, self.asked, None, busy)
            if found.size >= self.spec.max_answers:
                raise TooManyAnswers(self.spec.max_answers, retry_after=found.rest)
            self.held.at_end.append(self.end)
            return None
        kept = json.loads(found.text)
        if kept.get("format") != FORMAT:
            what = f"the answer to {self.asked.request}"
            raise ConfigurationError(_other_format(what, kept), code="other_format")
        self.spec.is_repeated(self.texts.locks, self.asked, kept["fingerprint"], busy)
        headers = [(name, value) for name, value in kept["headers"]]
        return Answer(kept["status"], headers, base64.b64decode(kept["body"]))

    def start(self, status: int, headers: Iterable[tuple[str, str]]) -> None:
        """Note the beginning of a response, which replaces one before."""
        self._status, self._headers = status, list(headers)
        self._body.clear()
        self._is_complete = self._is_long = False

    def add(self, part: bytes | None) -> None:
        """Note a part of the body, or ``None`` for a file that the server sends."""
        self._is_long |= part is None or len(self._body) + len(part) > self.spec.max_body
        if part and not self._is_long:
            self._body += part

    def complete(self) -> None:
        """Note that the body is complete."""
        self._is_complete = True

    def note(self, status: int, headers: Iterable[tuple[str, str]], body: bytes | None) -> None:
        """Note a whole response; its body is ``None`` if it streams."""
        self.start(status, headers)
        self.add(body)
        self.complete()

    def roll_back(self) -> None:
        """Keep no answer."""
        self._lease = None

    async def end(self, status: int) -> None:
        """Keep the answer, once, if the response is to be kept.

        ``status`` is sent. It is not that of the answer if something farther out has replaced the response,
        for example because it failed to commit.
        """
        lease, self._lease = self._lease, None
        is_error = status >= HTTPStatus.BAD_REQUEST
        if lease is None or status != self._status or (is_error and not self.keeps_errors):
            return
        if self._is_long or not self._is_complete:
            why = (
                f"the answer has more than max_body={self.spec.max_body} bytes, or is a file."
                " Return a shorter response"
                if self._is_long
                else (
                    "the response ended before it was complete: its client left, or the"
                    " application failed"
                )
            )
            if not is_error:
                self._report(why)
            return
        answer = self.spec.answer_of(self._status, self._headers, bytes(self._body))
        if answer is None:
            return
        keep = self.spec.keep
        kept = {
            "format": FORMAT,
            **self.asked._asdict(),
            **answer._asdict(),
            "body": base64.b64encode(answer.body).decode(),
            "expires_at": time.time() + keep,
        }
        try:
            self.held.check_done()
            await self.texts.keep(lease, self.asked.caller, json.dumps(kept), keep)
        except LeaseLost:
            pass  # The layer responds with it, when it has released.
        except EngineUnavailable as failure:
            self._report(failure.message)

    def _report(self, why: str) -> None:
        logger.error(
            "the answer to %s was not stored, so the request is executed again if it is sent again:"
            " %s [weblock.answer_not_stored]",
            *(self.asked.request, why),
        )
