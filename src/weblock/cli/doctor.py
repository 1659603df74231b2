"""``weblock doctor``: what is wrong with the engine, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import click

from .. import ConfigurationError, EngineRecovering, EngineUnavailable, Locks, LockTimeout
from .._adapting import place_of
from .._platform.logs import printable
from ..stores.findings import Finding, Level, problem, warning
from .app import Session, command, pass_session
from .measuring import Times, hand_offs, new_key
from .output import say

SLOW: Final = 0.1
"""Seconds of a round trip from which locks are slower than the work that most of them guard."""

_COLOURS: Final = {Level.OK: "green", Level.WARNING: "yellow", Level.PROBLEM: "red"}

_SCOPES: Final = {
    "none": problem(
        "scope",
        "It never locks: everybody gets every key.",
        "Use file:// for one machine, or redis:// for several.",
    ),
    "process": warning(
        "scope",
        "Its leases reach as far as one process: other workers are not excluded.",
        "Use file:// for one machine, or redis:// for several.",
    ),
    "host": Finding(
        "scope", "Its leases reach all processes of this machine, and no other machine."
    ),
    "cluster": Finding("scope", "Its leases reach all machines that use this URL."),
}


@command("doctor")
@click.option(
    "--check",
    is_flag=True,
    help="Say only what is wrong, and exit with 1 for a problem; for probes.",
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
    """Examines the engine, and says in plain sentences what is wrong with it and what to do.

    Exits with 69 if it does not answer. With --check, exits with 1 if there is a problem; a warning is none.
    """
    with session.locks() as locks:
        engine = locks.engine
        findings = list(_found(locks, ttl, measure=not check))
    shown = [each for each in findings if not check or each.level is not Level.OK]
    worst = max((each.level for each in findings), key=list(Level).index)
    if session.json:
        session.say("", {"engine": engine, "level": worst, "findings": list(map(_facts, shown))})
    else:
        for line in _lines(engine, shown):
            say(line)
    if any(map(_is_fatal, findings)):
        raise SystemExit(69)
    if check and worst is Level.PROBLEM:
        raise SystemExit(1)


def _found(locks: Locks, ttl: float, *, measure: bool) -> Iterator[Finding]:
    yield _SCOPES[locks.scope]
    engine = place_of(locks).engine
    if (
        engine.recovery and engine.recovery.seconds
    ):  # Where it is off, the engine says what that means.
        yield _of_ttl(ttl, engine.recovery.seconds)
    of_engine = list(engine.diagnose())
    yield from of_engine
    if not any(map(_is_fatal, of_engine)):
        yield from _tried(locks, measure=measure)


def _of_ttl(ttl: float, recovery: float) -> Finding:
    """Return whether all leases have ended when keys are granted again after a loss of data."""
    text = f"After a loss of data it grants nothing for {recovery:g} s (recovery)"
    if ttl <= recovery:
        return Finding("ttl", f"{text}, and no lease of up to {ttl:g} s lasts longer.")
    return warning(
        "ttl",
        f"{text}, and a lease of {ttl:g} s can last longer: a second caller could get its key, if the"
        " first caller after the loss is another program with a shorter ttl.",
        f"Add recovery={ttl:g} to the URL, in all programs that lock the same keys.",
    )


def _is_fatal(finding: Finding) -> bool:
    """Return whether the engine, or a part of it that nothing replaces, does not answer."""
    return finding.subject == "reachable" and finding.level is Level.PROBLEM


def _tried(locks: Locks, *, measure: bool) -> Iterator[Finding]:
    """Locks a key, as an application would."""
    try:
        yield _trip(Times([locks.ping() for _ in range(20)]))
        locks.acquire(new_key(), wait=0).release()
        if locks.scope == "none":
            return
        yield Finding("locking", "A key was acquired and released, so all rights are there.")
        if measure:
            times = hand_offs(locks, 0.5, most=20)
            yield Finding(
                "hand-off", f"A waiter has the key {_millis(times.median)} after its release."
            )
    except (EngineRecovering, LockTimeout) as error:
        left = error.retry_after or 0.0
        yield warning(
            "recovery",
            f"It may have forgotten leases, and grants none for {left:.0f} s more (recovery).",
            "Wait. If that comes again and again, find out what restarts it.",
        )
    except ConfigurationError as error:
        yield problem("locking", f"It does not lock: {error}.", "See above.")
    except EngineUnavailable as error:
        yield problem("reachable", f"It does not lock: {error.reason}.", "See above, or its log.")


def _trip(times: Times) -> Finding:
    text = f"An answer takes {_millis(times.median)} (median of {len(times.all)})."
    if times.median < SLOW:
        return Finding("round trip", text)
    return warning("round trip", text, "Run it nearer to the application.")


def _millis(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms"


def _facts(finding: Finding) -> dict[str, Any]:
    return finding._asdict()


def _lines(engine: str, findings: Iterable[Finding]) -> Iterator[str]:
    yield printable(engine)
    where = ""
    for each in findings:
        if each.where != where:
            where = each.where
            yield printable(where or "all")
        level = click.style(f"{each.level:<8}", fg=_COLOURS[each.level])
        yield f"  {level} {each.subject:<12} {printable(each.text)}"
        if each.remedy:
            yield f"{'':24}{printable(each.remedy)}"
