"""``weblock list``, ``show``, ``watch`` and ``ping``: looking on changes nothing."""

from __future__ import annotations

import io
import json
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from rich.console import Console

from tests.support.busy import busy
from tests.support.pictures import PICTURES
from weblock import Locks
from weblock.cli.watch import Looks, screen


def test_list_is_a_table(run, locks: Locks) -> None:
    """Keys stand in a table with their holders, fences and queues, in the order of their names."""
    with busy(locks, "item:2", "web-2"), busy(locks, "item:1", "web-1", "web-3", "web-4"):
        done = run("list")
    header, first, second = done.stdout.splitlines()
    assert header.split() == ["KEY", "HOLDER", "FENCE", "HELD", "LEFT", "WAITING"]
    assert first.split()[:2] == ["item:1", "web-1"]
    assert first.endswith("  2")
    assert second.split()[:2] == ["item:2", "web-2"]


def test_list_takes_a_prefix_and_a_limit(run, told, locks: Locks) -> None:
    """Only the keys that begin with the prefix are listed; where there may be more, that is said."""
    with busy(locks, "item:1", "a"), busy(locks, "item:2", "b"), busy(locks, "order", "c"):
        assert [each["key"] for each in told("list", "item:")] == ["item:1", "item:2"]
        assert "Only 1 keys are shown" in run("list", "--limit", "1").stderr
    assert run("list").stdout == "No key is held or waited for.\n"
    assert told("list") == []


def test_show_has_the_queue_in_order(run, told, locks: Locks) -> None:
    """One key is shown with its fence, and its waiters in the order of their turn."""
    with busy(locks, "item:1", "web-1", "web-3", "web-2"):
        output = run("show", "item:1").stdout
        facts = told("show", "item:1")
    assert f"fence:   {facts['fence']}\n" in output
    assert output.endswith("        1. web-3\n        2. web-2\n")
    assert (facts["holder"], facts["waiters"]) == ("web-1", ["web-3", "web-2"])


def test_show_tells_what_holders_share(run, locks: Locks) -> None:
    """A key that may have several holders is shown with each of them and its limit, also where there is one."""
    with locks.hold("item:1", limit=3, label="web-1") as lease:
        alone = f"{'-':>10} web-1 (fence {lease.fence}, limit 3): "
        assert alone in run("show", "item:1").stdout
        with ThreadPoolExecutor(1) as thread:
            other = thread.submit(locks.acquire, "item:1", shared=True, label="web-2").result()
            output = run("show", "item:1").stdout
            thread.submit(other.release).result()
    assert "holder:  web-1 (+1)\n" in output
    assert alone in output
    assert f"{'-':>10} web-2 (fence {other.fence}, shared): " in output
    with locks.hold("item:1", label="web-1"):
        assert "limit" not in run("show", "item:1").stdout


def test_a_free_key_is_the_answer_no(run) -> None:
    """``show`` exits with 1 for a key that nobody holds, and tells programs null."""
    done = run("show", "item:1")
    assert (done.exit_code, done.stderr) == (1, "weblock: item:1 is free\n")
    done = run("show", "item:1", "--json")
    assert (done.exit_code, json.loads(done.stdout)) == (1, None)


def test_a_namespace_is_chosen(run, url: str) -> None:
    """--namespace, before the command or behind it, and $WEBLOCK_NAMESPACE choose the application."""
    with Locks.from_url(url, namespace="shop") as shop, busy(shop, "cart", "web-1"):
        assert "cart" not in run("list").stdout
        assert "cart" in run("list", "--namespace", "shop").stdout
        assert "cart" in run("--namespace", "shop", "list").stdout
        assert "cart" in run("list", env={"WEBLOCK_NAMESPACE": "shop"}).stdout


def test_ping_tells_the_round_trip(run, told, url: str) -> None:
    """``ping`` tells how long the engine took, in milliseconds for people and seconds for programs."""
    assert run("ping").stdout.startswith(f"{url} answers in ")
    assert 0 < told("ping")["seconds"] < 60


@pytest.mark.parametrize(
    "command", [["list"], ["show", "x"], ["ping"], ["release", "x", "--force"]]
)
def test_an_engine_that_is_down_is_named(run, command: list[str]) -> None:
    """A command whose engine does not answer exits with 69 and one line, without the password."""
    done = run(*command, "--url", "redis://:s3cret@127.0.0.1:1")
    assert done.exit_code == 69
    assert done.stderr.startswith("weblock: lock engine redis://127.0.0.1:1 is unavailable")
    assert done.stderr.count("\n") == 1
    assert "s3cret" not in done.output


def test_programs_are_told_of_errors_in_json(run) -> None:
    """With --json, an error is an object on standard error."""
    done = run("list", "--json", "--url", "redis://:s3cret@127.0.0.1:1")
    told = json.loads(done.stderr)
    assert (done.exit_code, told["error"]) == (69, "EngineUnavailable")
    assert "s3cret" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["list", "--url", "rediss:/:s3cret@x"], "this one has no scheme"),
        (["list", "--url", "redsi://:s3cret@x"], "did you mean 'redis://'?"),
        (["show", "a\nb"], "control character"),
        (["redis://:s3cret@x", "list"], "give the engine's URL with --url"),
        (["doctor", "redis://:s3cret@x"], "give the engine's URL with --url"),
        (["ping", "again"], "unexpected argument: again"),
        (["lst"], "No such command"),
        (["bench", "--seconds", "nan"], "'--seconds': nan is not a number"),
        (["watch", "--interval", "nan"], "'--interval': nan is not a number"),
        (["watch", "--interval", "inf"], "'--interval': inf is not in the range"),
        (["release", "k", "--gently", "--timeout", "nan"], "'--timeout': nan is not a number"),
    ],
)
def test_what_cannot_work_is_refused(run, arguments: list[str], said: str) -> None:
    """A URL, a key or a command that cannot work exits with 2 and says why, without the password."""
    done = run(*arguments)
    assert done.exit_code == 2
    assert said in done.stderr
    assert "s3cret" not in done.output


def test_watch_shows_the_longest_queue_first(run, locks: Locks) -> None:
    """``watch`` writes look after look where there is no terminal, with how many waited in each."""
    with busy(locks, "a", "web-1"), busy(locks, "b", "web-2", "web-3"):
        done = run("watch", "--count", "3", "--interval", "0")
    looks = done.stdout.split("\n\n")[:3]
    assert [look.splitlines()[0].partition(" ")[2] for look in looks] == ["2 held, 1 waiting"] * 3
    _, header, first, second = looks[2].splitlines()
    assert header.split()[-1] == "WAITS"
    assert first.startswith("b ")
    assert first.endswith("███")
    assert second.startswith("a ")


def test_the_screen_of_watch_has_all_keys(locks: Locks, tmp_path: Path) -> None:
    """On a terminal, ``watch`` draws a heading and a table of the keys, the longest queue first."""
    looks = Looks()
    drawn = Console(record=True, width=104, file=io.StringIO(), color_system="truecolor")
    with ExitStack() as stack:
        stack.enter_context(busy(locks, "order:1042", "web-3:812 POST /orders/1042"))
        looks.look(locks, "", 200)
        for number in range(2, 6):  # Each look sees one more who waits.
            shop = [f"web-{each}:977 POST /items" for each in range(1, number)]
            with busy(locks, "shop:7", *shop):
                looks.look(locks, "", 200)
        with busy(locks, "shop:7", "web-1:4242 POST /items", "web-2:977 POST /items"):
            looks.look(locks, "", 200)
            drawn.print(screen("redis://cache.internal:6379/0", looks))
    picture = drawn.export_svg(title="weblock watch", clear=False)
    picture = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)  # From another host.
    Path(PICTURES or tmp_path, "watch.svg").write_text(picture)
    head, _, header, _, first, second, *_ = drawn.export_text().splitlines()
    assert head.split()[1:] == ["2", "held,", "1", "waiting", "redis://cache.internal:6379/0"]
    assert header.split()[-1] == "WAITS"
    assert first.split()[0] == "shop:7"
    assert second.split()[0] == "order:1042"


def test_watch_writes_a_line_of_json_for_each_look(run, locks: Locks) -> None:
    """With --json, each look is one line, also where the engine does not answer."""
    with busy(locks, "a", "web-1"):
        lines = run("watch", "--count", "2", "--interval", "0", "--json").stdout.splitlines()
    assert [[key["key"] for key in json.loads(line)["keys"]] for line in lines] == [["a"], ["a"]]
    down = run("watch", "--count", "1", "--json", "--url", "redis://127.0.0.1:1")
    assert "redis://127.0.0.1:1 is unavailable" in json.loads(down.stdout)["error"]
    assert down.exit_code == 0


def test_a_stranger_cannot_move_the_cursor(run, locks: Locks) -> None:
    """Control and format characters of keys and labels reach the terminal escaped."""
    with busy(locks, "item:\u202e1", "GET /\x1b[2J[red]", "x\r\n"):
        for command in (["list"], ["show", "item:\u202e1"], ["watch", "--count", "1"]):
            output = run(*command).stdout
            assert "\\u202e" in output
            assert "GET /\\x1b[2J[red]" in output
            assert not {"\x1b", "\u202e", "\r"} & set(output)
