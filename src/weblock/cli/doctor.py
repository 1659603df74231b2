"""``weblock doctor``, ``ping`` and ``ddl``: whether the engine answers, what is wrong with it, and its table."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Final

import click

from .. import ConfigurationError, EngineRecovering, EngineUnavailable, Locks, LockTimeout
from .._adapting import key_space_of
from .._engines import engine_for
from .._platform.logs import printable
from .._requirements import require
from ..stores.findings import Finding, Level, problem, warning
from . import Code
from .app import Session, command, pass_session, say
from .bench import hand_offs, millis, new_key

SLOW: Final = 0.1
"""Seconds of a round trip from which locks are slower than the work that most of them guard."""

_COLOURS: Final = {Level.OK: "green", Level.WARNING: "yellow", Level.PROBLEM: "red"}

_LARGER: Final = "Use file:// for one machine, or redis:// for several."

_SCOPES: Final = {
    "none": problem("scope", "It never locks: every caller gets every key.", _LARGER),
    "process": warning(
        "scope", "Its leases apply to one process only: other workers are not excluded.", _LARGER
    ),
    "host": Finding(
        "scope", "Its leases apply to all processes of this machine, and to no other machine."
    ),
    "cluster": Finding("scope", "Its leases apply to all machines that use this URL."),
}


@command("doctor")
@click.option(
    "--check",
    is_flag=True,
    help="Print only problems and warnings, and exit with 1 for a problem; for probes.",
)
@click.option(
    "--ttl",
    type=click.FloatRange(min=0, min_open=True),
    default=10.0,
    show_default=True,
    help="The longest ttl, in seconds, that your programs use.",
)
@pass_session
def doctor_command(session: Session, *, check: bool, ttl: float) -> None:
    """Examines the engine, and reports what is wrong with it and what to do.

    The second column is the code of a finding, by which the page on troubleshooting explains it.
    Exits with 69 if it does not answer. With --check, exits with 1 if there is a problem; a warning is not a problem.
    """
    with session.locks() as locks:
        engine = locks.engine
        findings = list(_found(locks, ttl, measure=not check))
    shown = [each for each in findings if not check or each.level is not Level.OK]
    worst = max((each.level for each in findings), key=list(Level).index)
    if session.json:
        facts = [each._asdict() for each in shown]
        session.say("", {"engine": engine, "level": worst, "findings": facts})
    else:
        say(printable(engine))
        where = ""
        for each in shown:
            if each.where != where:
                where = each.where
                say(printable(where or "all"))
            level = click.style(f"{each.level:<8}", fg=_COLOURS[each.level])
            say(f"  {level} {each.code:<12} {printable(each.text)}")
            if each.remedy:
                say(f"{'':24}{printable(each.remedy)}")
    if any(map(_is_fatal, findings)):
        raise SystemExit(Code.UNAVAILABLE)
    if check and worst is Level.PROBLEM:
        raise SystemExit(Code.NO)


def _found(locks: Locks, ttl: float, *, measure: bool) -> Iterator[Finding]:
    yield _SCOPES[locks.scope]
    engine = key_space_of(locks).engine
    # Where recovery is off, the engine says what that means.
    if engine.recovery and (recovery := engine.recovery.seconds):
        text = f"After a loss of data it grants nothing for {recovery:g} s (recovery)"
        if ttl <= recovery:
            yield Finding("ttl", f"{text}, and no lease of up to {ttl:g} s lasts longer.")
        else:
            yield warning(
                "ttl",
                f"{text}, and a lease of {ttl:g} s can last longer: a second caller could get its"
                " key, if the first caller after the loss is another program with a shorter ttl.",
                f"Add recovery={ttl:g} to the URL, in all programs that lock the same keys.",
            )
    of_engine = list(engine.diagnose())
    yield from of_engine
    if any(map(_is_fatal, of_engine)):
        return
    try:  # To lock a key, as an application would.
        trip = statistics.median(locks.ping() for _ in range(20))
        text = f"An answer takes {millis(trip)} (median of 20)."
        slow = warning("round_trip", text, "Run the server closer to the application.")
        yield Finding("round_trip", text) if trip < SLOW else slow
        locks.acquire(new_key(), wait=0).release()
        if locks.scope == "none":
            return
        yield Finding("locking", "A key was acquired and released.")
        if measure:
            handed_over = millis(statistics.median(hand_offs(locks, 0.5, most=20)))
            yield Finding("hand_off", f"A waiter has the key {handed_over} after its release.")
    except (EngineRecovering, LockTimeout) as error:
        left = error.retry_after or 0.0
        yield warning(
            "recovery",
            f"It might have lost leases, and grants none for another {left:.0f} s (recovery).",
            "Wait. If this happens repeatedly, find out what restarts it.",
        )
    except ConfigurationError as error:
        yield problem("locking", f"It does not lock: {error.message}.", "See above.")
    except EngineUnavailable as error:
        yield problem("reachable", f"It does not lock: {error.reason}.", "See above, or its log.")


def _is_fatal(finding: Finding) -> bool:
    """Return whether the engine, or a part of it that nothing replaces, does not answer."""
    return finding.code == "reachable" and finding.level is Level.PROBLEM


@command("ping")
@pass_session
def ping_command(session: Session) -> None:
    """Sends the engine a request, and prints how long the answer took.

    Exits with 69 if the engine does not answer. Kubernetes can use it as a probe.
    """
    with session.locks() as locks:
        locks.ping()  # The first one connects, too.
        engine, took = locks.engine, locks.ping()
    session.say(f"{engine} answers in {took * 1000:.2f} ms", {"engine": engine, "seconds": took})


@command("ddl")
@click.option(
    "--answers",
    type=click.Choice(["postgresql", "mysql", "sqlite"]),
    help=(
        "Instead, the table of answers to idempotent requests, in a database of this kind (mysql:"
        " also MariaDB)."
    ),
)
@pass_session
def ddl_command(session: Session, answers: str | None) -> None:
    """Prints the SQL that creates the table of a postgresql:// engine.

    Connects to nothing. Pipe it to psql, or put it into a migration.
    """
    if answers:
        require("weblock ddl --answers", "sqlalchemy")
        from ..contrib.sqlalchemy.idempotency import answers_ddl

        sql = answers_ddl(answers)
        session.say(sql, {"ddl": sql})
        return
    urls = session.urls()
    engine = engine_for(urls[0]) if len(urls) == 1 else None
    ddl = engine.ddl() if engine else None
    if ddl is None:
        given = engine.name if engine else f"{len(urls)} URLs" if urls else "not given"
        raise ConfigurationError(
            f"only an engine in a database has a table, and --url is {given}: write"
            " weblock ddl --url postgresql://host/database"
        )
    session.say(ddl.rstrip(), {"ddl": ddl})
