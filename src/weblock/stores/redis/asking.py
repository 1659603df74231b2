"""Asks several servers side by side, so that a silent one delays nobody."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Final, Generic, TypeVar

import redis
from redis import exceptions

from ..._platform.logs import Repeats, logger
from ..._platform.threads import background_thread, running_loop
from ..transport.failures import Backoff, Unfit
from .settings import Address

T = TypeVar("T")
K = TypeVar("K")

Connect = Callable[[Address], redis.Connection]

FAILURES: Final = (exceptions.RedisError, Unfit, OSError)
"""Why a server could not be asked."""

FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 1.0
"""Seconds until servers are asked again where everything is, when asking has not helped."""

FIRST_KNOCK: Final = 0.1
LONGEST_KNOCK: Final = 0.5
"""Seconds between attempts to reach a server that is down."""


def in_background(work: Callable[[], None], name: str) -> bool:
    """Run ``work`` in a thread of its own; return whether one could be started."""
    try:
        background_thread(work, f"weblock-{name}").start()
    except RuntimeError:
        return False
    return True


class Poll:
    """One question to several servers, each of which is asked in a thread of its own.

    One for which no thread can be started is asked in the caller's.
    """

    def __init__(self, question: Callable[[Address], T]) -> None:
        self._question = question
        self._answers: SimpleQueue[tuple[Address, Any]] = SimpleQueue()
        self.asked = 0
        self.heard: dict[Address, Any] = {}
        """What has come: answers, and the errors of those that gave none."""

    def ask(self, addresses: Iterable[Address]) -> None:
        for address in addresses:
            self.asked += 1
            if not in_background(partial(self._ask_here, address), "asking"):
                self._ask_here(address)

    @property
    def answers(self) -> list[Any]:
        return [each for each in list(self.heard.values()) if not isinstance(each, Exception)]

    def wait(
        self, patience: float | None = None, *, enough: Callable[[], bool] = lambda: False
    ) -> None:
        """Return when there are enough answers, all have answered, or ``patience`` has passed."""
        give_up_at = None if patience is None else time.monotonic() + patience
        while len(self.heard) < self.asked and not enough():
            left = None if give_up_at is None else max(0.0, give_up_at - time.monotonic())
            try:
                address, outcome = self._answers.get(timeout=left)
            except Empty:
                return
            self.heard[address] = outcome

    def first(self, addresses: Iterable[Address], hedge: float) -> Any:
        """Return the first answer; the next server is asked after ``hedge`` seconds of silence.

        Raises the last failure if there is none, and ``Unfit`` if no server could be asked.
        """
        for address in addresses:
            before = len(self.heard)
            self.ask([address])
            self.wait(hedge, enough=lambda before=before: len(self.heard) > before)  # type: ignore[misc]
            if self.answers:
                break
        self.wait(enough=lambda: bool(self.answers))
        if self.answers:
            return self.answers[0]
        raise [Unfit("no server is named"), *self.heard.values()][-1]

    def _ask_here(self, address: Address) -> None:
        outcome: Any
        try:
            outcome = self._question(address)
        except Exception as error:  # noqa: BLE001 - returned to the caller
            outcome = error
        self._answers.put((address, outcome))


class Health(Generic[K]):
    """Which servers answer. Callers skip one that does not, while a thread knocks at it.

    A server that has answered another caller since the failed request was sent is slow, and not
    down: else all servers would seem to be down in turn on an overloaded machine. Where no thread
    can be started, callers go on asking. ``knock`` raises redis-py's errors or ``OSError``.
    """

    def __init__(self, knock: Callable[[K], object]) -> None:
        self._knock = knock
        self.failures: dict[K, Exception] = {}
        """Why servers are not worth asking."""
        self.answered_at: dict[K, float] = {}
        self._closed = False

    def failed(self, server: K, failure: Exception, *, sent: float) -> None:
        """Count the server as down, unless it has answered since the request was sent."""
        if server in self.failures or self._closed or sent < self.answered_at.get(server, sent):
            return
        self.failures[server], started = failure, False
        try:
            started = self._start_to_knock(server)
        finally:  # Also after an exception of a signal handler.
            if not started:
                self.up(server)

    def up(self, server: K) -> None:
        """Let callers ask the server again."""
        self.failures.pop(server, None)

    def close(self) -> None:
        self._closed = True

    def _start_to_knock(self, server: K) -> bool:
        return in_background(partial(self._knock_until_answered, server), "knocking")

    def _knock_until_answered(self, server: K) -> None:
        backoff = Backoff(FIRST_KNOCK, LONGEST_KNOCK)
        try:
            while not self._closed:
                time.sleep(backoff.next())
                with suppress(exceptions.RedisError, OSError):
                    self._knock(server)
                    return
        finally:  # No other thread would do it.
            self.up(server)


class Lookup:
    """When the servers are asked again where everything is: by one caller for all, and not too often.

    ``look`` asks them, and returns whether anything has changed. While nothing is known yet, it
    raises redis-py's errors, or ``Unfit``. The known answer is used meanwhile: it is renewed in the
    background after ``every`` seconds, and callers wait for a new one only if it is older than
    ``stale`` seconds or is doubted. Where no thread can be started, callers look by themselves.
    """

    def __init__(self, look: Callable[[], bool], *, every: float, stale: float) -> None:
        self._look = look
        self._every = every
        self._stale = stale
        self._known = False
        self._failures = Repeats()
        self._guard = threading.RLock()
        self._looking = False
        self._asked_at = self._again_at = 0.0
        self._backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        self._doubted = True
        self._failure: Exception | None = None

    def ready(self) -> bool:
        """Return whether what is known can be used. If it is old, look again in the background."""
        now = time.monotonic()
        if not self._known or (self._doubted and now >= self._again_at):
            return False
        age = now - self._asked_at
        if age < self._every:
            return True
        if age >= self._stale:
            return False
        if self._looking:
            return True
        # Others need not begin the same.
        asked_at, self._asked_at = self._asked_at, time.monotonic()
        started = False
        try:
            started = in_background(self._look_quietly, "looking")
        finally:  # Also after an exception of a signal handler.
            if not started:
                self._asked_at = asked_at
        # A caller that looked by itself would stop its event loop.
        return started or running_loop() is not None

    def doubt(self) -> None:
        """Make the next caller look again, unless a lookup has failed just now."""
        self._doubted = True

    def refresh(self, *, anyway: bool = False) -> None:
        """Look again, unless another caller just has. Raises what ``look`` does."""
        with self._guard:
            if (
                self._looking
            ):  # A signal handler of this thread asks for something in the middle of it.
                raise exceptions.ConnectionError("this thread is already looking for the servers")
            self._looking = True  # Without a call before it, after which a handler could run.
            try:
                now = time.monotonic()
                age, pauses = now - self._asked_at, now < self._again_at
                if not anyway:
                    if self._known and age < self._every and (pauses or not self._doubted):
                        return  # Another caller has just looked.
                    if self._failure and pauses and not (self._known and age < self._stale):
                        raise self._failure
                self._tried(now)
            finally:
                self._looking = False

    def _tried(self, now: float) -> None:
        helped = not self._doubted
        try:
            helped = self._look() or helped
            self._failure = None
            self._known, self._doubted = True, False
        except (*FAILURES, RuntimeError) as error:
            self._failure = error
            if not self._known:
                raise
        finally:
            self._asked_at = now
            if helped:  # Or nobody has doubted what was known: the next doubt counts as the first.
                self._backoff.reset()
            self._again_at = time.monotonic() + self._backoff.next()

    def _look_quietly(self) -> None:
        try:
            self.refresh(anyway=True)
        except Exception:
            if times := self._failures.count():
                logger.exception(
                    "weblock could not find out where its servers are, and tries again (failure %d"
                    " in a row) [weblock.engine_unavailable]",
                    times,
                )


@contextmanager
def connecting() -> Iterator[None]:
    """Raise redis-py's ``ConnectionError`` for any failure to connect.

    A credential provider raises errors of its own, and ``ssl`` a ``TypeError`` for some settings.
    """
    try:
        yield
    except exceptions.ResponseError as error:
        # A server repeats the arguments of a command that it does not know: of HELLO, the password.
        error.args = (str(error).partition(", with args")[0],)
        raise
    except (exceptions.RedisError, OSError):
        raise
    except Exception as error:
        raise exceptions.ConnectionError(f"{type(error).__name__}: {error}") from error


@contextmanager
def opened(connection: redis.Connection) -> Iterator[redis.Connection]:
    """Yield a connection for a question or two."""
    try:
        with connecting():
            connection.connect()
        yield connection
    finally:
        connection.disconnect()


def asked(connection: redis.Connection, *command: str) -> Any:
    """Return the reply to one command."""
    connection.send_command(*command)
    return connection.read_response(disable_decoding=True)
