"""The database as a party of its own: every order of the steps of guarded sections.

The steps are those that are shipped (``weblock.contrib.kit.guarding``); the database is a model
of versions, snapshots and row locks, at one of four isolation levels. The engine is the worst
there can be: it grants the key to everybody, at any time, and its fences may go back. Nothing is
drawn by lot: all orders of two and three sections are tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from weblock.contrib.kit.guarding import Mark, Row, Runner, StaleFence
from weblock.contrib.kit.sql import LOOKING

READ_COMMITTED: Final = "READ COMMITTED"
REPEATABLE_READ: Final = "REPEATABLE READ"
INNODB: Final = "REPEATABLE READ of InnoDB"
SERIALIZABLE: Final = "SERIALIZABLE"
LEVELS: Final = (READ_COMMITTED, REPEATABLE_READ, INNODB, SERIALIZABLE)


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


class Conflict(Exception):
    """The database refused a statement because of another transaction."""

    sqlstate = "40001"


class Suspended(BaseException):
    """The section has asked what the database has not answered yet."""


class Section:
    """One holder, whose work is a function that asks the database.

    To go on after an answer, the work is done again from its beginning, with the answers so far.
    """

    def __init__(self, number: int, work: Callable[[Section], None], fence: int) -> None:
        self.number = number
        self.transaction = Transaction()
        self.seen: tuple[int, ...] | None = None
        self.outcome = ""
        self.engine_confirms = False
        self.mark = self._mark = Mark("digest", "default:key", fence, f"token {number}")
        self.runner = Runner("postgresql", 1.0, self._execute, lambda _: self.engine_confirms, "")
        self._work = work
        self._answers: list[Any] = []
        self._begin_again()

    def ask(self, what: str, values: Mapping[str, Any] | None = None) -> Any:
        """Return what the database answers."""
        answer = next(self._known, None)
        if answer is None:
            self._next = what, self.mark.values() if values is None else values
            raise Suspended
        if isinstance(answer, Conflict):
            raise answer
        return answer[0]

    def go(self, database: Database) -> None:
        """Take the next step. Raises ``Blocked`` where it has to wait."""
        try:
            self._answers.append((_ask(database, self, *self._next),))
        except Conflict as conflict:
            self._answers.append(conflict)
        self._begin_again()
        if self.outcome:
            _unlock(database, self.transaction)

    def _begin_again(self) -> None:
        self._known, self.mark = iter(self._answers), self._mark
        try:
            self._work(self)
        except Suspended:
            return
        except (StaleFence, Conflict) as error:
            self.outcome = type(error).__name__
        else:
            self.outcome = "committed"

    def _execute(self, statement: str, values: dict[str, Any]) -> tuple[int, Row | None]:
        dialect = self.runner.dialect
        names = {dialect.raising: "raise", dialect.checking: "check", LOOKING: "look"}
        answer = self.ask(names[statement], values)
        return (int(answer), None) if names[statement] == "raise" else (1, answer)


def _unlock(database: Database, transaction: Transaction) -> None:
    if database.locked_by is transaction:
        database.locked_by = None


def _ask(database: Database, section: Section, what: str, values: Mapping[str, Any]) -> Any:
    transaction = section.transaction
    match what:
        case "raise":
            return _raise(database, transaction, values)
        case "look":
            return database.row
        case "check":
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
            raise Conflict("serialization failure")
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


def _raise(database: Database, transaction: Transaction, values: Mapping[str, Any]) -> bool:
    """In a transaction of its own, which begins and ends here."""
    if database.locked_by not in (None, transaction):
        raise Blocked
    row = database.row
    if row is None or row.fence < values["below"] or row.token == values["token"]:
        database.row = Row(values["fence"], values["token"])
        database.raised += 1
        return True
    return False


def _check(database: Database, transaction: Transaction) -> Row | None:
    if database.locked_by not in (None, transaction):
        raise Blocked
    snapshot = _snapshot(database, transaction)
    # PostgreSQL refuses to lock a row that has changed since; InnoDB reads it as it is now.
    if database.level in (REPEATABLE_READ, SERIALIZABLE) and snapshot[1] != database.raised:
        raise Conflict("could not serialize access due to concurrent update")
    database.locked_by = transaction
    return snapshot[0] if database.level in (REPEATABLE_READ, SERIALIZABLE) else database.row


def refuse_unless_ours(row: Row | None, mark: Mark) -> None:
    """Raises ``StaleFence`` for a row of another section, and for none."""
    if row is None or row.token != mark.token:
        raise StaleFence("key", fence=mark.fence, newest=None)


def begin(section: Section) -> None:
    section.runner.begin(section.mark, None, may_sweep=False)


def guarded(section: Section) -> None:
    begin(section)
    section.ask("read")
    section.ask("write")
    section.runner.check(section.mark)
    section.ask("commit")


def guarded_by_a_lost_engine(section: Section) -> None:
    """One whose engine says that it holds the key, whatever fence the database knows."""
    section.engine_confirms = True
    guarded(section)


def continued(section: Section) -> None:
    """One of several that took over one lease: it takes the place of whoever has its fence."""
    section.mark = replace(section.mark, continues=True)
    guarded(section)


def never_raised(section: Section) -> None:
    """The first step is left out, and no row taken for one that is ours."""
    section.ask("read")
    section.ask("write")
    row = section.ask("check")
    if row is not None:
        refuse_unless_ours(row, section.mark)
    section.ask("commit")


def raised_late(section: Section) -> None:
    """It is read before the fence is raised."""
    section.ask("read")
    begin(section)
    section.ask("write")
    section.runner.check(section.mark)
    section.ask("commit")


def never_checked(section: Section) -> None:
    """The second step is left out."""
    begin(section)
    section.ask("read")
    section.ask("write")
    section.ask("commit")


def checked_early(section: Section) -> None:
    """The row is read without a lock, so that another may come in before COMMIT."""
    begin(section)
    section.ask("read")
    section.ask("write")
    refuse_unless_ours(section.ask("read unlocked"), section.mark)
    section.ask("commit")


def without_tokens(section: Section) -> None:
    """The fences alone are compared, of which an engine that was set back gives one twice."""
    section.mark = replace(section.mark, token="")
    guarded(section)


def raised_whatever_stands_there(section: Section) -> None:
    """A raise that was refused is taken for one that was not."""
    section.ask("raise")
    section.ask("read")
    section.ask("write")
    row = section.ask("check")
    if row is None or row.fence < section.mark.fence:
        raise StaleFence("key", fence=section.mark.fence, newest=None)
    section.ask("commit")


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


def runs(level: str, work: Callable[[Section], None], fences: Sequence[int]) -> Iterator[Run]:
    """All orders in which sections with these fences may take their steps."""
    waiting: list[tuple[int, ...]] = [()]
    while waiting:
        order = waiting.pop()
        _, sections, stale = _replayed(level, work, fences, order)
        able = [each.number for each in sections if not each.outcome]
        if not able:
            yield Run(order, tuple(each.outcome for each in sections), stale)
            continue
        orders = [(*order, number) for number in able]
        waiting += [each for each in orders if _could_go(level, work, fences, each)]


def _replayed(
    level: str, work: Callable[[Section], None], fences: Sequence[int], order: Sequence[int]
) -> tuple[Database, list[Section], bool]:
    database = Database(level)
    sections = [Section(number, work, fence) for number, fence in enumerate(fences)]
    stale = False
    for number in order:
        before = database.items
        sections[number].go(database)
        if database.items != before:
            # Stale is what was committed on the strength of what was no longer so.
            stale = stale or sections[number].seen != before
    return database, sections, stale


def _could_go(
    level: str, work: Callable[[Section], None], fences: Sequence[int], order: Sequence[int]
) -> bool:
    try:
        _replayed(level, work, fences, order)
    except Blocked:
        return False
    return True
