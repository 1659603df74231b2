"""The database as a party of its own: every order of the steps of guarded sections.

The steps are those that are shipped (``weblock.contrib.kit.guarding``); the database is a model
of versions, snapshots and row locks, at one of four isolation levels. The engine is the worst
there can be: it grants the key to everybody, at any time, and its fences may go back. Nothing is
drawn by lot: all orders of two and three sections are tried.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from weblock.contrib.kit.guarding import (
    Check,
    Conflict,
    Look,
    Mark,
    Raise,
    Row,
    StaleFence,
    checking,
    raising,
)

READ_COMMITTED: Final = "READ COMMITTED"
REPEATABLE_READ: Final = "REPEATABLE READ"
INNODB: Final = "REPEATABLE READ of InnoDB"
SERIALIZABLE: Final = "SERIALIZABLE"
LEVELS: Final = (READ_COMMITTED, REPEATABLE_READ, INNODB, SERIALIZABLE)

Steps = Generator[Any, Any, None]


@dataclass
class Database:
    """What is committed: one row of a fence, and the items that sections have added."""

    level: str
    row: Row | None = None
    raised: int = 0
    """How often the row was written."""
    items: tuple[int, ...] = ()
    locked_by: Transaction | None = None


@dataclass(eq=False)
class Transaction:
    """One that is open: what it sees, and what it will commit."""

    snapshot: tuple[Row | None, int, tuple[int, ...]] | None = None
    added: list[int] = field(default_factory=list)


class Blocked(Exception):
    """The statement waits for a row that another has locked."""


class Section:
    """One holder: its steps, as a generator of what it asks the database."""

    def __init__(self, number: int, steps: Callable[[Section], Steps], fence: int) -> None:
        self.mark = Mark("digest", "default:key", fence, f"token {number}")
        self.number = number
        self.transaction = Transaction()
        self.seen: tuple[int, ...] | None = None
        self.outcome = ""
        self._steps = steps(self)
        self._next: Any = next(self._steps)

    def go(self, database: Database) -> None:
        """Takes the next step. Raises ``Blocked`` where it has to wait."""
        try:
            answer = _ask(database, self, self._next)
        except Conflict as conflict:
            self._advance(database, partial(self._steps.throw, conflict))
        else:
            self._advance(database, partial(self._steps.send, answer))

    def _advance(self, database: Database, on: Callable[[], Any]) -> None:
        try:
            self._next = on()
        except StopIteration:
            self.outcome = self.outcome or "committed"
        except (StaleFence, Conflict) as error:
            self.outcome = type(error).__name__
        if self.outcome:
            _unlock(database, self.transaction)


def _unlock(database: Database, transaction: Transaction) -> None:
    if database.locked_by is transaction:
        database.locked_by = None


def _ask(database: Database, section: Section, what: Any) -> Any:
    transaction = section.transaction
    match what:
        case Raise(mark):
            return _raise(database, transaction, mark)
        case Look():
            return database.row
        case Check():
            return _check(database, transaction)
        case "read unlocked":
            return _snapshot(database, transaction)[0]
        case "read":
            section.seen = _snapshot(database, transaction)[2]
        case "write":
            _snapshot(database, transaction)
            transaction.added.append(section.number)
        case "commit":
            _commit(database, transaction)
    return None


def _commit(database: Database, transaction: Transaction) -> None:
    if database.level == SERIALIZABLE and transaction.added:
        seen = _snapshot(database, transaction)[2]
        if seen != database.items:  # What was read is no longer so: a cycle, to a serializable one.
            raise Conflict(OSError("serialization failure"))
    database.items += tuple(transaction.added)
    _unlock(database, transaction)


def _snapshot(
    database: Database, transaction: Transaction
) -> tuple[Row | None, int, tuple[int, ...]]:
    now = database.row, database.raised, database.items
    if database.level == READ_COMMITTED:
        return now
    if transaction.snapshot is None:
        transaction.snapshot = now
    return transaction.snapshot


def _raise(database: Database, transaction: Transaction, mark: Mark) -> bool:
    """In a transaction of its own, which begins and ends here."""
    if database.locked_by not in (None, transaction):
        raise Blocked
    row = database.row
    if row is None or row.fence < mark.below or row.token == mark.token:
        database.row = Row(mark.fence, mark.token)
        database.raised += 1
        return True
    return False


def _check(database: Database, transaction: Transaction) -> Row | None:
    if database.locked_by not in (None, transaction):
        raise Blocked
    snapshot = _snapshot(database, transaction)
    # PostgreSQL refuses to lock a row that has changed since; InnoDB reads it as it is now.
    if database.level in (REPEATABLE_READ, SERIALIZABLE) and snapshot[1] != database.raised:
        raise Conflict(OSError("could not serialize access due to concurrent update"))
    database.locked_by = transaction
    return snapshot[0] if database.level in (REPEATABLE_READ, SERIALIZABLE) else database.row


def refuse_unless_ours(row: Row | None, mark: Mark) -> None:
    """Raises ``StaleFence`` for a row of another section, and for none."""
    if row is None or row.token != mark.token:
        raise StaleFence("key", fence=mark.fence, newest=None)


def guarded(section: Section) -> Steps:
    yield from raising(section.mark)
    yield "read"
    yield "write"
    yield from checking(section.mark)
    yield "commit"


def guarded_by_a_lost_engine(section: Section) -> Steps:
    """One whose engine says that it holds the key, whatever fence the database knows."""
    try:
        yield from raising(section.mark)
    except StaleFence as stale:
        section.mark = section.mark.after(stale.newest or 0)
        yield from raising(section.mark)
    yield "read"
    yield "write"
    yield from checking(section.mark)
    yield "commit"


def continued(section: Section) -> Steps:
    """One of several that took over one lease: it takes the place of whoever has its fence."""
    section.mark = replace(section.mark, continues=True)
    yield from guarded(section)


def never_raised(section: Section) -> Steps:
    """The first step is left out, and no row taken for one that is ours."""
    yield "read"
    yield "write"
    row = yield Check(section.mark)
    if row is not None:
        refuse_unless_ours(row, section.mark)
    yield "commit"


def raised_late(section: Section) -> Steps:
    """It is read before the fence is raised."""
    yield "read"
    yield from raising(section.mark)
    yield "write"
    yield from checking(section.mark)
    yield "commit"


def never_checked(section: Section) -> Steps:
    """The second step is left out."""
    yield from raising(section.mark)
    yield "read"
    yield "write"
    yield "commit"


def checked_early(section: Section) -> Steps:
    """The row is read without a lock, so that another may come in before COMMIT."""
    yield from raising(section.mark)
    yield "read"
    yield "write"
    row = yield "read unlocked"
    refuse_unless_ours(row, section.mark)
    yield "commit"


def without_tokens(section: Section) -> Steps:
    """The fences alone are compared, of which an engine that was set back gives one twice."""
    section.mark = replace(section.mark, token="")
    yield from guarded(section)


def raised_whatever_stands_there(section: Section) -> Steps:
    """A raise that was refused is taken for one that was not."""
    yield Raise(section.mark)
    yield "read"
    yield "write"
    row = yield Check(section.mark)
    if row is None or row.fence < section.mark.fence:
        raise StaleFence("key", fence=section.mark.fence, newest=None)
    yield "commit"


MUTANTS: Final = (
    never_raised,
    raised_late,
    never_checked,
    checked_early,
    without_tokens,
    raised_whatever_stands_there,
)


@dataclass(frozen=True)
class Run:
    """One order of steps, and what came of it."""

    order: tuple[int, ...]
    outcomes: tuple[str, ...]
    stale: bool


def runs(level: str, steps: Callable[[Section], Steps], fences: Sequence[int]) -> Iterator[Run]:
    """All orders in which sections with these fences may take their steps."""
    waiting: list[tuple[int, ...]] = [()]
    while waiting:
        order = waiting.pop()
        _, sections, stale = _replayed(level, steps, fences, order)
        able = [each.number for each in sections if not each.outcome]
        if not able:
            yield Run(order, tuple(each.outcome for each in sections), stale)
            continue
        orders = [(*order, number) for number in able]
        waiting += [each for each in orders if _could_go(level, steps, fences, each)]


def _replayed(
    level: str, steps: Callable[[Section], Steps], fences: Sequence[int], order: Sequence[int]
) -> tuple[Database, list[Section], bool]:
    database = Database(level)
    sections = [Section(number, steps, fence) for number, fence in enumerate(fences)]
    stale = False
    for number in order:
        before = database.items
        sections[number].go(database)
        if database.items != before:
            # Stale is what was committed on the strength of what was no longer so.
            stale = stale or sections[number].seen != before
    return database, sections, stale


def _could_go(
    level: str, steps: Callable[[Section], Steps], fences: Sequence[int], order: Sequence[int]
) -> bool:
    try:
        _replayed(level, steps, fences, order)
    except Blocked:
        return False
    return True
