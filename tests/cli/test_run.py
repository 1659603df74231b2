"""``weblock run``: a command that holds a key, in real processes."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from uuid import uuid4

import pytest

from tests.servers import USER, a_redis, fresh_url, shared
from tests.support.waiting import eventually
from weblock import Locks

from .programs import Program

STUBBORN = "trap '' TERM; exec >fifo; echo ready; while :; do sleep 0.05; done"
"""A command that does not end when it is told to. What it has open, it alone has."""


@contextmanager
def disposition(number: signal.Signals, action: signal.Handlers) -> Iterator[None]:
    """What the processes that are started here do on a signal, whatever our own caller chose."""
    before = signal.signal(number, action)
    try:
        yield
    finally:
        signal.signal(number, before)


@pytest.fixture
def url(tmp_path: Path) -> str:
    """An engine that needs no server."""
    return f"file://{tmp_path}/locks?allow_container=true"


@pytest.fixture
def weblock(url: str) -> Program:
    return Program(url)


@pytest.fixture
def locks(url: str):
    with Locks.from_url(url) as locks:
        yield locks


@pytest.fixture
def output(tmp_path: Path):
    """Where a stubborn command writes, and what is at its end when all its processes are dead."""
    os.mkfifo(tmp_path / "fifo")
    fd = os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(fd, True)
    with os.fdopen(fd) as output:
        yield output


def readline(output) -> str:
    lines: list[str] = []
    eventually(lambda: lines.append(output.readline()) or lines[-1])
    return lines[-1]


def test_the_command_runs_inside_the_lock(weblock: Program, locks: Locks) -> None:
    """The command finds key and fence in its environment, and the key is free when it has ended."""
    before = locks.acquire("nightly")
    before.release()
    done = weblock.run(
        "run", "nightly", "--", "sh", "-c", "echo $WEBLOCK_KEY $WEBLOCK_FENCE; exit 3"
    )
    key, fence = done.stdout.split()
    assert (done.returncode, done.stderr, key) == (3, "", "nightly")
    assert before.fence
    assert int(fence) > before.fence
    assert locks.inspect("nightly") is None


def test_the_holder_is_named(weblock: Program, locks: Locks) -> None:
    """Others see the process and the command, without its arguments; --label says something else."""
    with weblock.start("run", "a", "--", "sh", "-c", "echo; read x", stdin=-1) as first:
        first.stdout.readline()
        info = locks.inspect("a")
        first.communicate("\n")
    assert info
    assert info.holder
    assert info.holder.endswith(f":{first.pid} sh")
    with weblock.start(
        "run", "a", "--label", "me", "--", "sh", "-c", "echo; read x", stdin=-1
    ) as one:
        one.stdout.readline()
        info = locks.inspect("a")
        one.communicate("\n")
    assert info
    assert info.holder == "me"


def test_a_busy_key_is_waited_for(weblock: Program, locks: Locks) -> None:
    """Without --wait the command waits for the key, and runs as soon as it is free."""
    lease = locks.acquire("nightly")
    with weblock.start("run", "nightly", "--", "echo", "ran") as waiting:
        eventually(lambda: (info := locks.inspect("nightly")) and info.waiters)
        lease.release()
        assert waiting.communicate() == ("ran\n", "")
    assert waiting.returncode == 0


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--skip-if-busy"], 0, "weblock: skipped: lock 'nightly' was not acquired"),
        (["--wait", "0"], 75, "weblock: lock 'nightly' was not acquired"),
        (["--skip-if-busy", "--wait", "0.01"], 0, "weblock: skipped: lock 'nightly'"),
    ],
)
def test_a_busy_key_is_not_waited_for(weblock, locks, options, code, said) -> None:
    """--wait limits the waiting, after which it exits with 75; with --skip-if-busy that is no error."""
    with locks.hold("nightly"):
        done = weblock.run("run", "nightly", *options, "--", "echo", "ran")
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith(said)
    # A user of the shell reads of ``--wait``, and not of an argument of Python.
    assert "raise --wait; lock 'nightly' is held by" in done.stderr
    assert "wait=" not in done.stderr


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["sh", "-c", "kill -9 $$"], 137),
        (["/no/such/command"], 127),
        ([str(Path(__file__).parent)], 126),
        ([""], 126),
        (["sh", "-c", "kill -TERM -$(ps -o pgid= -p $$ | tr -d ' ')"], 143),
    ],
    ids=["killed", "missing", "not executable", "empty", "group"],
)
def test_exit_codes_are_those_of_a_shell(weblock, locks, command, code) -> None:
    """A signal's number counts from 128; what cannot be run ends with 126 or 127, and frees the key."""
    assert weblock.run("run", "nightly", "--", *command).returncode == code
    assert locks.inspect("nightly") is None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGUSR1])
def test_signals_are_passed_on_to_all_processes(weblock: Program, number: signal.Signals) -> None:
    """What ``weblock`` gets, the command and its children get; then it ends as the command does."""
    inner = f"trap 'echo inner; exit' {number.value}; echo ready; while :; do sleep 0.02; done"
    script = f'trap "exit 5" {number.value}; sh -c "$INNER"; exit 4'
    with weblock.start("run", "k", "--", "sh", "-c", script, env={"INNER": inner}) as running:
        assert running.stdout.readline() == "ready\n"
        running.send_signal(number)
        assert running.communicate()[0] == "inner\n"
    assert running.returncode == 5


def test_a_signal_ends_the_waiting(weblock: Program, locks: Locks) -> None:
    """A signal while it waits for the key ends it, and it leaves the queue."""
    with locks.hold("nightly"):
        with weblock.start("run", "nightly", "--", "echo", "ran") as waiting:
            eventually(lambda: (info := locks.inspect("nightly")) and info.waiters)
            waiting.send_signal(signal.SIGTERM)
            assert waiting.communicate() == ("", "")
        info = locks.inspect("nightly")
        assert info
        assert info.waiters == ()
    assert waiting.returncode == 143


def test_a_command_whose_lease_is_taken_away_ends(weblock: Program, locks: Locks) -> None:
    """When the lease is lost, the command gets SIGTERM, and ``weblock`` exits with 76."""
    script = "trap 'echo told; exit 0' TERM; echo ready; while :; do sleep 0.02; done"
    arguments = ("--ttl", "6", "--kill-after", "3", "--", "sh", "-c", script)
    with weblock.start("run", "nightly", *arguments) as running:
        assert running.stdout.readline() == "ready\n"
        assert locks.force_release("nightly")
        out, err = running.communicate()
    assert (running.returncode, out) == (76, "told\n")
    assert "the lease of 'nightly' was lost: the command is being stopped" in err


def test_a_command_that_does_not_end_is_killed(weblock, locks, output, tmp_path) -> None:
    """A command that ignores SIGTERM is killed when its lease is lost, and another gets the key."""
    arguments = ("--ttl", "6", "--kill-after", "0.5", "--json")
    command = ("--", "sh", "-c", STUBBORN)
    with weblock.start("run", "nightly", *arguments, *command, cwd=tmp_path) as running:
        assert readline(output) == "ready\n"
        assert locks.force_release("nightly")
        assert output.read() == ""  # No process has it open any more.
        locks.acquire("nightly", wait=None).release()
        told = json.loads(running.communicate()[1])
    assert (running.returncode, told["exit_code"], told["outcome"]) == (76, 76, "lost")
    assert told["held_for"] > 0


def test_a_command_may_not_run_for_longer_than_it_may_hold(weblock: Program, locks: Locks) -> None:
    """With --max-hold, a command that ignores SIGTERM is killed near the end, and another gets the key."""
    arguments = ("--ttl", "4", "--kill-after", "0.5", "--max-hold", "1", "--json")
    # On a slow machine it is told to end before it can ignore that, and ends all the same.
    command = ("--", "sh", "-c", "trap '' TERM; while :; do sleep 0.05; done")
    with weblock.start("run", "nightly", *arguments, *command) as running:
        told = json.loads(running.communicate()[1])
    locks.acquire("nightly", wait=0).release()
    assert (running.returncode, told["exit_code"], told["outcome"]) == (76, 76, "lost")


def test_nothing_outlives_weblock(weblock, output, tmp_path) -> None:
    """Where ``weblock`` itself is killed with SIGKILL, the command and its children die with it."""
    command = ("--", "sh", "-c", f"{STUBBORN} & {STUBBORN}")
    with weblock.start("run", "nightly", *command, cwd=tmp_path) as running:
        assert readline(output) == "ready\n"
        running.kill()
        output.read()


def test_a_weblock_that_hangs_lets_nothing_run_on(weblock, output, tmp_path) -> None:
    """While ``weblock`` itself is stopped, the command is killed when the lease ends."""
    arguments = ("--ttl", "4", "--kill-after", "0.1", "--", "sh", "-c", STUBBORN)
    with weblock.start("run", "nightly", *arguments, cwd=tmp_path) as running:
        assert readline(output) == "ready\n"
        running.send_signal(signal.SIGSTOP)
        assert output.read() == ""
        running.send_signal(signal.SIGCONT)
        running.communicate()
    assert running.returncode == 76


def test_what_our_caller_ignores_is_ignored(weblock: Program) -> None:
    """Under nohup, a hangup reaches neither ``weblock`` nor the command."""
    script = "echo ready; read x; kill -HUP $$; echo alive"
    with (
        disposition(signal.SIGHUP, signal.SIG_IGN),
        weblock.start("run", "k", "--", "sh", "-c", script, stdin=-1) as running,
    ):
        assert running.stdout.readline() == "ready\n"
        running.send_signal(signal.SIGHUP)
        assert running.communicate("\n")[0] == "alive\n"
    assert running.returncode == 0


@pytest.mark.parametrize(
    ("option", "beside"), [("--limit=2", {"limit": 2}), ("--shared", {"shared": True})]
)
def test_commands_hold_a_key_together(weblock, locks, option, beside) -> None:
    """With --limit or --shared a command runs beside a holder of its kind, and not beside an exclusive one."""
    again = ("run", "--skip-if-busy", option, "k", "--", "echo", "ran")
    first = ("run", option, "k", "--", "sh", "-c", "echo; read x")
    with locks.hold("k", **beside), weblock.start(*first, stdin=-1) as one:
        one.stdout.readline()
        assert len(locks.inspect("k").holders) == 2
        # Three at once are too many for one of them, and any number of readers are not.
        assert weblock.run(*again).stdout == ("" if option == "--limit=2" else "ran\n")
        one.communicate("\n")
    with locks.hold("k"):
        assert weblock.run(*again).stdout == ""


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--limit", "0"], "'--limit': 0 is not in the range"),
        (["--limit", "3", "--shared"], "--limit 3 and --shared exclude each other: --limit 3 lets"),
        (["--ttl", "4", "--kill-after", "3"], "--kill-after 3 is more than half of --ttl 4"),
        (["--wait", "-1"], "'--wait': -1.0 is not in the range"),
        (["--at-least", "9", "--max-hold", "5"], "not be more than --max-hold"),
        (["--ttl", "soon"], "not a valid float"),
        (["--kill-after", "nan"], "'--kill-after': nan is not a number"),
    ],
)
def test_options_that_cannot_work_are_refused(run, options, said) -> None:
    """What cannot work exits with 2 before anything is locked or run."""
    done = run("run", "nightly", *options, "--", "echo", "ran")
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr


def test_a_key_stays_locked_after_its_command() -> None:
    """With ``--at-least``, the key is busy when command and ``weblock`` have ended, and not run again."""
    url = fresh_url(a_redis())
    again = ("run", "--skip-if-busy", "--at-least", "600", "nightly", "--", "echo", "ran")
    assert Program(url).run(*again).stdout == "ran\n"
    done = Program(url).run(*again)
    assert (done.returncode, done.stdout) == (0, "")
    with Locks.from_url(url) as locks:
        assert locks.inspect("nightly").remaining > 300


@pytest.mark.parametrize(
    ("recovery", "options", "refused"),
    [
        ({"recovery": 5}, (), False),
        ({"recovery": 5}, ("--ttl", "9"), True),
    ],
)
def test_defaults_fit_the_recovery_of_the_server(recovery, options, refused) -> None:
    """A ttl that nobody has named is never longer than the recovery."""
    url = shared(a_redis()).url(user=USER, prefix=f"weblock:{uuid4().hex}", **recovery)
    done = Program(url).run("run", *options, "nightly", "--wait", "0", "--", "true")
    # A server that was started just now is recovering.
    assert done.returncode in ((2,) if refused else (0, 69)), done.stderr
    assert ("--ttl 9 is longer than recovery=5" in done.stderr) == refused


def test_files_cannot_keep_a_key_locked(weblock: Program) -> None:
    """``file://`` frees a key when its process has ended, so ``--at-least`` is refused there."""
    done = weblock.run("run", "nightly", "--at-least", "60", "--", "echo", "ran")
    assert (done.returncode, done.stdout) == (2, "")
    assert "use an engine that several machines share" in done.stderr


def test_a_command_that_would_wait_for_itself_is_refused(weblock: Program) -> None:
    """A command inside ``weblock run`` may hold another key, but not one that is held around it."""
    again = f"{quote(sys.executable)} -m weblock run"
    done = weblock.run("run", "k", "--", "sh", "-c", f"{again} b -- {again} k -- echo ran")
    assert (done.returncode, done.stdout) == (2, "")
    assert "an outer weblock run holds 'k'" in done.stderr


@pytest.mark.parametrize(("url", "code"), [("memory://", 2), ("noop://", 0)])
def test_an_engine_that_excludes_nobody_is_refused(url: str, code: int) -> None:
    """``memory://`` would lock nothing, and is refused; ``noop://`` says so itself."""
    done = Program(url).run("run", "k", "--", "true")
    assert done.returncode == code
    assert ("excludes no other command" in done.stderr) == (code == 2)
