"""Serve a request once, however often its client sends it.

A client that gets no answer cannot know whether its order was placed. It sends the request again, with the
same ``Idempotency-Key``. The first request is executed, and its answer is stored in the transaction of its
work; each later one gets that answer. An adapter takes these steps:

1. ``IdempotencySpec.asked`` reads the key, and makes of caller, method, path and key the *digest*: under
   it the answer is stored, and it is what the request locks (``keys_of``). The *fingerprint* is made of query
   and body.
2. The request acquires the lock. While it waits, or if it does not wait, another request with the same
   digest is running: ``LockTimeout``, unless that one's answer can be found by now.
3. ``Answers.find_or_admit`` returns the stored answer, which is sent as ``Answer.replayed``. If there is none, the
   request is executed, unless its caller has too many answers.
4. The work runs in a transaction that the adapter opens, and only the adapter commits. When the response is
   complete, ``Answers.store`` inserts it, and COMMIT follows at once. If ``answer_of`` returns none, or an
   exception was raised, the transaction is rolled back instead: what is not stored is not committed.

What can fail:

- *The worker dies before COMMIT.* The database rolls back; the retry executes the request.
- *The worker dies after COMMIT.* The answer is stored; the retry gets it.
- *The lock is lost*, because the worker was paused, and a retry is executed as well. Both insert a row with
  the same digest. The database rejects the second, whose work is rolled back; it sends the answer of the first.
  So the lock only saves work, and the unique row decides.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import KW_ONLY, dataclass, fields, replace
from typing import Any, ClassVar, Final, NamedTuple, Self, TypedDict, Unpack
from uuid import UUID

from ..._adapting import KeptTexts, tell
from ..._api import BaseLocks
from ..._options import Duration, seconds
from ..._platform.logs import logger
from ...errors import (
    AnswerNotStored,
    AnswersUnavailable,
    ConfigurationError,
    IdempotencyKeyInvalid,
    IdempotencyKeyReused,
    LockTimeout,
    TooManyAnswers,
    WeblockError,
)
from ...events import Repeated
from ...keys import CheckedKey, canonical
from ...stores.transport.settings import unknown
from .spec import LockSpec, name_of
from .sql import Trouble, trouble_of

ANSWERS: Final = "weblock_answer"
"""The table of stored answers: one row for each digest."""

ANSWER_LENGTHS: Final = {
    "digest": 64,
    "caller": 64,
    "idempotency_key": 255,
    "request": 600,
    "fingerprint": 64,
}
"""The lengths of its text columns, none of which is null.

The others are ``status`` and ``expires_at`` (in seconds since 1970), which are integers, ``headers``, a text,
and ``body``, which is binary. ``digest`` is the primary key; there is an index on ``caller`` and one on
``expires_at``.
"""

REPLAYED: Final = "Idempotency-Replayed"
"""The header of an answer that was stored: its value is ``true``."""

ANONYMOUS: Final = "anonymous"

LONGEST: Final = 64 * 1024
"""Bytes of a body that an engine keeps, at most."""

ANSWER_SWEEPS: Final = 1 / 100
"""The share of executed requests that also delete expired answers."""

_QUOTED: Final = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\])*)"')
"""A string of RFC 9651, without parameters."""

_BARE: Final = re.compile(r"[!#-+\--:<-\[\]-~]+")
"""Visible characters, without the quotes, commas, semicolons and backslashes that mean more in such a header."""

_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})

_TEMPORARY: Final = 409, 429
"""Statuses after which a retry may succeed, besides those from 500 on."""

_NOT_STORED: Final = re.compile(
    "set-cookie|date|connection|keep-alive|proxy-(authenticate|authorization|connection)|te|trailer"
    "|transfer-encoding|upgrade"
)
"""Headers that are about one response or one connection."""


class Answer(NamedTuple):
    """A response as the wrapper of the handler saw it, without the headers that are never stored."""

    status: int
    headers: Sequence[tuple[str, str]]
    body: bytes

    @property
    def replayed(self) -> Self:
        """Return the answer as it is sent to a client that repeats its request."""
        return self._replace(headers=[*self.headers, (REPLAYED, "true")])


class Stored(NamedTuple):
    """What operators see of a stored answer."""

    digest: str
    caller: str
    idempotency_key: str
    request: str
    status: int
    expires_at: float


class Replay(Exception):
    """The request was executed before: ``answer`` is to be sent instead."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.status)
        self.answer = answer.replayed


class Asked(NamedTuple):
    """A request with an idempotency key."""

    digest: str
    caller: str
    """A digest of the caller's identity."""
    idempotency_key: str
    request: str
    """The method and the path, for people."""
    fingerprint: str


class IdempotencyOptions(TypedDict, total=False):
    """What ``idempotent()`` takes in every framework, in addition to ``caller``."""

    wait: Duration | None
    """How many seconds to wait for a running request with the same key (0). Then the answer is 409."""
    keep: Duration
    """For how many seconds an answer is stored (24 hours)."""
    max_answers: int
    """How many answers are stored for a caller (10,000). At that number, new keys are answered with 429."""
    max_body: int
    """How many bytes a response has at most (1 MiB).

    A longer one, and a stream, raise ``AnswerNotStored``, and nothing is committed.
    """


@dataclass(frozen=True, repr=False)
class IdempotencySpec(LockSpec):
    """A description of what is executed once for each idempotency key: see ``IdempotencyOptions``."""

    caller: Any = None
    """A function that returns the identity of a request's caller, or ``"anonymous"``."""
    header: ClassVar = "Idempotency-Key"
    """The name of the header that has the key."""
    keep: float = 24 * 3600.0
    max_answers: int = 10_000
    max_body: int = 1024 * 1024
    store: str = "database"
    """Where the answers are stored: in the ``"database"`` of the work, or in the ``"engine"`` of the locks."""

    @classmethod
    def written(cls, caller: object, **options: Unpack[IdempotencyOptions]) -> Self:
        """Return the spec of what a user has written. Raises ``ConfigurationError`` for what cannot work.

        A derived class takes its fields as further options.
        """
        if not (callable(caller) or caller == ANONYMOUS):
            raise ConfigurationError(
                f"idempotent(caller={caller!r:.80}) must be a function that returns who sends the request,"
                ' such as the id of the user, or "anonymous" if all clients may share their keys: otherwise'
                " one user could read the answer that another one got"
            )
        own = fields(cls)[len(fields(LockSpec)) :]
        known = {*IdempotencyOptions.__annotations__, *(each.name for each in own)}
        for name in options:
            if name not in known:
                raise TypeError(unknown("option", name, known))
        more: dict[str, Any] = {
            **options,
            "keep": seconds("keep", options.get("keep", cls.keep), least=1),
        }
        made = cls.of(
            ["idempotency:{digest}"], {"wait": more.pop("wait", 0)}, caller=caller, **more
        )
        for name in ("max_answers", "max_body"):
            value: object = getattr(made, name)
            if type(value) is not int or value < 1:
                raise ConfigurationError(f"{name}={value!r:.80} must be a whole number from 1 on")
        if made.store not in ("database", "engine"):
            raise ConfigurationError(f'store={made.store!r:.80} must be "database" or "engine"')
        if made.store == "database":
            return made
        if "max_body" not in options:
            made = replace(made, max_body=LONGEST)
        elif made.max_body > LONGEST:
            raise ConfigurationError(
                f"max_body={made.max_body} is more than the {LONGEST} bytes that an engine keeps"
            )
        # Whatever is the default of the locks.
        return replace(made, options={**made.options, "limit": 1, "on_unavailable": "raise"})

    def texts(self, locks: BaseLocks) -> KeptTexts:
        """Return where the engine keeps the answers. Raises ``ConfigurationError`` if it keeps none."""
        return KeptTexts(locks, 'idempotent(store="engine")')

    def asked(
        self, *, caller: object, method: str, path: str, sent: Sequence[str], parts: Iterable[bytes]
    ) -> Asked:
        """Return what a request asks for.

        ``caller`` is what the application's function has returned, ``sent`` are the values of the header,
        and ``parts`` the query and the parts of the body. Raises ``IdempotencyKeyInvalid`` for a key that is
        missing or malformed, and ``ConfigurationError`` for a caller that is nobody.
        """
        refuse_safe([method], f"{method} {path:.80}")
        key = self._key_of(sent)
        who = digest_of(*map(_encoded, self._identity(caller)))
        digest = digest_of(*map(_encoded, (who, method, path, key)))
        request = ascii(f"{method} {path}")[1:-1][: ANSWER_LENGTHS["request"]]
        return Asked(digest, who, key, request, digest_of(*parts))

    def keys_of(self, asked: Asked) -> tuple[CheckedKey, ...]:
        """Return the key that a request locks."""
        return self.made_of(lambda _template: {"digest": asked.digest}, lambda _function: None)

    def is_repeated(
        self, locks: BaseLocks, asked: Asked, fingerprint: str | None, busy: LockTimeout | None
    ) -> bool:
        """Return whether there is an answer to a request, and tell the observers what the request gets.

        ``fingerprint`` is that of the request which was answered, if there is one. ``busy`` says that the key
        was not free: it is raised if there is no answer. Raises ``IdempotencyKeyReused`` for another
        fingerprint.
        """
        if fingerprint is None and busy is None:
            return False
        outcome = "running" if fingerprint is None else "replayed"
        if fingerprint not in (None, asked.fingerprint):
            outcome = "reused"
        tell(locks, Repeated, self.keys_of(asked)[0], outcome=outcome)
        if fingerprint is None and busy:
            raise busy
        if outcome == "reused":
            raise IdempotencyKeyReused(
                f"the {self.header} {asked.idempotency_key!r} was used for another request: its"
                f" {asked.request} had another query or body"
            )
        return True

    def answer_of(
        self, status: int, headers: Iterable[tuple[str, str]], body: bytes | None
    ) -> Answer | None:
        """Return what is stored of a response that was returned; ``None`` if it is to be rolled back.

        Raises ``AnswerNotStored`` for a body that is too long, or ``None``, because it streams.
        """
        if status in _TEMPORARY or status >= 500:
            return None
        if body is None or len(body) > self.max_body:
            what = "streams its response" if body is None else f"responds with {len(body)} bytes"
            raise AnswerNotStored(
                f"an idempotent handler {what}, which cannot be stored, so its work was rolled"
                f" back: return a complete response of at most max_body={self.max_body} bytes, such"
                " as the address of a file, or raise max_body="
            )
        kept = [(name, value) for name, value in headers if not _NOT_STORED.fullmatch(name.lower())]
        return Answer(status, kept, body)

    def _key_of(self, sent: Sequence[str]) -> str:
        if len(sent) != 1:
            reason = "it is sent more than once" if sent else "it is missing"
            raise IdempotencyKeyInvalid(self.header, reason, missing=not sent)
        text = sent[0].strip(" \t")
        if quoted := _QUOTED.fullmatch(text):
            key = re.sub(r"\\(.)", r"\1", quoted[1])
        else:
            key = text if _BARE.fullmatch(text) else ""
        longest = ANSWER_LENGTHS["idempotency_key"]
        if not 1 <= len(key) <= longest:
            raise IdempotencyKeyInvalid(
                self.header, f"it must be a string of 1 to {longest} visible ASCII characters"
            )
        return key

    def _identity(self, caller: object) -> tuple[str, ...]:
        if self.caller == ANONYMOUS:
            return (ANONYMOUS,)
        # An object could have another text tomorrow: the same user would be another caller.
        is_plain = isinstance(caller, str | int | UUID) and not isinstance(caller, bool)
        if not is_plain or caller == "":
            raise ConfigurationError(
                f"{name_of(self.caller)}, the caller= of idempotent(), returned a"
                f" {type(caller).__name__}: return the id of the user, as a string, an int or a"
                " UUID, and answer 401 if there is none",
                code="idempotency",
            )
        return ("caller", canonical(caller))


def refuse_safe(methods: Iterable[str], what: str) -> None:
    """Raise ``ConfigurationError`` if requests by one of the methods change nothing."""
    if safe := sorted(_SAFE.intersection(methods)):
        raise ConfigurationError(
            f"{what} is idempotent(), but {' and '.join(safe)} requests can be repeated anyway, and"
            " their answers would be outdated: use it for POST, PUT, PATCH and DELETE"
        )


class BodyDigest:
    """A digest of a body that arrives in pieces; of a form, it is the same whatever separates its parts."""

    def __init__(self, content_type: str) -> None:
        _, is_form, boundary = content_type.partition("boundary=")
        self._separator = b""
        if is_form and content_type.lower().startswith("multipart/"):
            text = boundary.partition(";")[0].strip().strip('"')
            self._separator = b"--" + text.encode("latin-1", "replace") if text else b""
        self._rest = b""
        """The end of what has arrived: a separator may begin in it."""
        self._part = hashlib.sha256()
        self._parts = hashlib.sha256()
        self.size = 0

    def add(self, piece: bytes) -> None:
        """Take note of the next piece."""
        self.size += len(piece)
        rest = self._rest + piece
        if self._separator:
            *ended, rest = rest.split(self._separator)
            for each in ended:
                self._part.update(each)
                self._parts.update(self._part.digest())
                self._part = hashlib.sha256()
        end = max(0, len(rest) - max(0, len(self._separator) - 1))
        self._part.update(rest[:end])
        self._rest = rest[end:]

    def digest(self) -> bytes:
        """Return the digest of a body that is complete."""
        self.add(self._separator)
        return self._parts.digest() if self._separator else self._part.digest()


def form_parts(
    content_type: str,
    size: float,
    fields: Iterable[tuple[str, str]],
    files: Iterable[tuple[str, object, object, Any]],
) -> list[bytes] | None:
    """Return the parts of a form, whatever separates them; ``None`` if its body of ``size`` bytes must have more.

    Each of ``files`` has a name, a file name, a type, and an open
    file, which is read from its beginning, and left there.
    """
    parts: list[bytes] = []
    for name, value in fields:
        parts += [_encoded(name), b"", _encoded(value)]
    for name, file_name, kind, file in files:
        content = hashlib.sha256()
        file.seek(0)  # The application may have read it before.
        while chunk := file.read(64 * 1024):
            content.update(chunk)
        file.seek(0)
        parts += [_encoded(name), _encoded(f"{file_name} {kind}"), content.digest()]
    # Without any part there is only the boundary, which that header has, too.
    least = len(content_type) if "boundary=" in content_type else 0
    return parts if parts or size <= least else None


def body_consumed(instead: str) -> ConfigurationError:
    """Return the error about a request whose body is not there any more."""
    return ConfigurationError(
        "idempotent() cannot tell two requests apart, because something has read their body as a"
        f" stream before: use {instead}",
        code="idempotency",
    )


def digest_of(*parts: bytes) -> str:
    """Return a digest of several parts, which differs if their borders do."""
    found = hashlib.sha256()
    for part in parts:
        found.update(b"%d:" % len(part))
        found.update(part)
    return found.hexdigest()


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


@contextmanager
def reading_answers(failures: tuple[type[Exception], ...], remedy: str) -> Iterator[None]:
    """Say what the errors of a database mean: ``AnswersUnavailable``, or ``ConfigurationError`` without the table."""
    try:
        yield
    except WeblockError:  # Some are errors of connections as well.
        raise
    except failures as error:
        if trouble_of(error) is Trouble.NO_TABLE:
            raise ConfigurationError(
                f"the database has no table {ANSWERS}, in which idempotent() stores answers:"
                f" {remedy}",
                code="missing_table",
            ) from error
        raise AnswersUnavailable(
            f"the database did not return the stored answer: {error}"
        ) from error


@dataclass
class Answers:
    """The stored answers in a database of the application."""

    spec: IdempotencySpec
    asked: Asked
    locks: BaseLocks
    database: str
    """The kind of database, such as ``"postgresql"``."""
    execute: Callable[[str, Mapping[str, Any]], Sequence[Sequence[Any]]]
    """Runs one statement, with parameters such as ``:digest``, and returns the rows that it found."""
    _: KW_ONLY
    failures: tuple[type[Exception], ...]
    """The errors of the database."""
    remedy: str
    """How to make the table."""
    _expired = False

    def reading(self) -> AbstractContextManager[None]:
        """Raise ``AnswersUnavailable`` if the database does not answer in the block, so that nothing runs."""
        return reading_answers(self.failures, self.remedy)

    def find(self, busy: LockTimeout | None = None) -> Answer | None:
        """Return the stored answer to a request, also if another one with its key is ``busy``.

        Raises ``busy`` if there is none, and ``IdempotencyKeyReused`` if it is to another query or body.
        """
        found = self.execute(_FINDING, {"digest": self.asked.digest})
        self._expired = bool(found) and found[0][-1] <= time.time()
        kept = found[0][0] if found and not self._expired else None
        if not self.spec.is_repeated(self.locks, self.asked, kept, busy):
            return None
        _fingerprint, status, headers, body, _expires_at = found[0]
        pairs = [(name, value) for name, value in json.loads(headers)]
        return Answer(status, pairs, bytes(body))  # Some drivers return a memoryview.

    def find_or_admit(self) -> Answer | None:
        """Return the stored answer; ``None`` if the request is to be executed.

        Raises as ``find``, and ``TooManyAnswers`` if no further answer is to be stored for the caller.
        """
        if found := self.find():
            return found
        now = int(time.time())
        ((count, first),) = self.execute(_COUNTING, {"caller": self.asked.caller, "now": now})
        if count >= self.spec.max_answers:
            raise TooManyAnswers(self.spec.max_answers, retry_after=first - now)
        return None

    def store(self, answer: Answer) -> None:
        """Insert an answer, as the last statement before COMMIT. Raises the database's error if there is one."""
        now = int(time.time())
        if self._expired:  # MySQL locks a gap for a DELETE that finds nothing.
            self.execute(_CLEARING, {"digest": self.asked.digest, "now": now})
        self.execute(
            _STORING,
            {
                **self.asked._asdict(),
                "status": answer.status,
                "headers": json.dumps(answer.headers),
                "body": answer.body,
                "expires_at": now + math.ceil(self.spec.keep),
            },
        )

    def sweep(
        self, transaction: Callable[[], AbstractContextManager[object]] = nullcontext
    ) -> None:
        """Delete a batch of expired answers in a transaction, after few of many commits. Failures are logged."""
        if random.random() >= ANSWER_SWEEPS:
            return
        if self.database in ("mysql", "mariadb"):
            sql = "DELETE FROM weblock_answer WHERE expires_at <= :now LIMIT 1000"
        else:
            sql = _SWEEPING % ("FOR UPDATE SKIP LOCKED" if self.database == "postgresql" else "")
        # A guard may check the lease, which may be lost by now.
        failures: tuple[type[Exception], ...] = (*self.failures, WeblockError)
        try:
            with transaction():
                self.execute(sql, {"now": int(time.time())})
        except failures:
            logger.warning(
                "expired answers of idempotent requests were not deleted"
                " [weblock.answers_not_deleted]",
                exc_info=True,
            )


_FINDING: Final = """
SELECT fingerprint, status, headers, body, expires_at FROM weblock_answer WHERE digest = :digest"""

_COUNTING: Final = """
SELECT COUNT(*), MIN(expires_at) FROM weblock_answer WHERE caller = :caller AND expires_at > :now"""

_CLEARING: Final = "DELETE FROM weblock_answer WHERE digest = :digest AND expires_at <= :now"

_STORING: Final = """
INSERT INTO weblock_answer (digest, caller, idempotency_key, request, fingerprint, status, headers, body, expires_at)
VALUES (:digest, :caller, :idempotency_key, :request, :fingerprint, :status, :headers, :body, :expires_at)"""

_SWEEPING: Final = """
DELETE FROM weblock_answer WHERE digest IN (
    SELECT digest FROM weblock_answer WHERE expires_at <= :now LIMIT 1000 %s)"""
