"""``LockedCommand``, and ``manage.py weblock run``."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from django.core.management import CommandError, call_command
from django.core.management.base import CommandParser
from django.http import HttpRequest, HttpResponse
from django.test import override_settings

from tests.servers import fresh_url
from tests.support.busy import busy
from tests.support.waiting import PATIENCE
from weblock import HoldOptions, LeaseLost, Locks
from weblock.contrib.django import locks
from weblock.contrib.django.database import LOCKED_READS
from weblock.contrib.django.management import LockedCommand

from .project.replica import REPLICA
from .project.shop.models import Item
from .requests import fetch

TOP = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def own_engine(url: str) -> Iterator[None]:
    with override_settings(WEBLOCK={"default": {"URL": url}}):
        yield


class Import(LockedCommand):
    lock = "import:{supplier}"
    lock_options: ClassVar[HoldOptions] = {"wait": 0}
    loses = False

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("supplier", type=int)

    def handle(self, *args: Any, **options: Any) -> str:
        (info,) = locks["default"].list()
        if self.loses:
            raise LeaseLost("import:7", fence=1, reason="taken")
        return info.key


class Skipping(Import):
    on_busy = "skip"
    at_least = 3600


def run(command: LockedCommand) -> tuple[str, str]:
    command.stdout._out = output = io.StringIO()
    command.stderr._out = errors = io.StringIO()
    call_command(command, "7")
    return output.getvalue().strip(), errors.getvalue().strip()


def test_a_command_holds_its_key() -> None:
    """It is made of the command's options, and is free when the command has ended."""
    assert run(Import()) == ("import:7", "")
    assert locks["default"].list() == []


@pytest.mark.parametrize("name", ["supplier", "suplier"])
def test_a_key_needs_its_options(name: str) -> None:
    """A command is refused whose key names an option that was not given, or does not exist."""

    class Optional(Import):
        lock = f"import:{{{name}}}"

        def add_arguments(self, parser: CommandParser) -> None:
            parser.add_argument("--supplier")

    with pytest.raises(CommandError, match=f"needs the option '{name}'") as refused:
        call_command(Optional())
    assert refused.value.returncode == 2


def test_a_busy_key_ends_a_command() -> None:
    """With an exit code of its own; or it is skipped, which is no error."""
    with busy(locks["default"], "import:7", "another"):
        with pytest.raises(CommandError, match="'import:7' was not acquired") as refused:
            run(Import())
        assert refused.value.returncode == 75
        assert run(Skipping()) == ("", "skipped: import:7 is busy")


def test_a_lost_lease_ends_a_command() -> None:
    """With an exit code of its own."""
    command = Import()
    command.loses = True
    with pytest.raises(CommandError, match="was lost") as lost:
        run(command)
    assert lost.value.returncode == 76


def test_the_key_may_stay_taken() -> None:
    """``at_least`` is for machines whose clocks differ."""
    assert run(Skipping()) == ("import:7", "")
    assert run(Skipping()) == ("", "skipped: import:7 is busy")


def test_a_key_that_cannot_stay_taken(tmp_path: Path) -> None:
    """Where all ends with the process, who relies on ``at_least`` is warned."""
    with override_settings(WEBLOCK={"default": {"URL": f"file://{tmp_path}/locks"}}):
        done, said = run(Skipping())
    assert done == "import:7"
    assert "at_least cannot keep a key locked there" in said


def test_run_is_for_the_command_line() -> None:
    """It becomes another process, which no caller in code expects."""
    with pytest.raises(CommandError, match="in code, use"):
        call_command("weblock", "run", "migrate", "check")


def project(folder: Path, url: str, command: str) -> None:
    (folder / "shop_settings.py").write_text(
        "INSTALLED_APPS = ['weblock.contrib.django', 'shop']\n"
        f"WEBLOCK = {{'default': {{'URL': {url!r}, 'NAMESPACE': 'shop'}}}}\n"
    )
    commands = folder / "shop" / "management" / "commands"
    commands.mkdir(parents=True)
    (commands / "holder.py").write_text(command)
    (folder / "manage.py").write_text(
        "import sys\nfrom django.core.management import execute_from_command_line\n"
        "execute_from_command_line(sys.argv)\n"
    )


def environment(folder: Path) -> dict[str, str]:
    path = {"PYTHONPATH": f"{TOP}:{folder}", "DJANGO_SETTINGS_MODULE": "shop_settings"}
    return {**os.environ, **path}


def test_sigterm_releases_the_key_of_a_command(tmp_path: Path) -> None:
    """The command ends by the signal, as without weblock, and leaves no key behind."""
    url = fresh_url(recovery="off")
    project(
        tmp_path,
        url,
        "from weblock.contrib.django.management import LockedCommand\n"
        "class Command(LockedCommand):\n"
        "    lock = 'nightly'\n"
        "    lock_options = {'ttl': 600}\n"
        "    def handle(self, **options):\n"
        "        self.stdout.write('begun')\n"
        "        self.stdout.flush()\n"
        "        import time\n"
        "        time.sleep(600)\n",
    )
    command = [sys.executable, "manage.py", "holder", "--skip-checks"]
    with (
        Locks.from_url(url, namespace="shop") as others,
        subprocess.Popen(
            command, cwd=tmp_path, env=environment(tmp_path), stdout=subprocess.PIPE
        ) as process,
    ):
        assert process.stdout
        assert process.stdout.readline() == b"begun\n"
        assert [each.key for each in others.list()] == ["nightly"]
        process.terminate()
        assert process.wait(PATIENCE) == -signal.SIGTERM
        assert others.list() == []


HOLDER = ("--", "holder", "--code", "7")


def test_run_runs_a_command_of_django_under_a_key(tmp_path: Path) -> None:
    """With the engine and the namespace of the settings, its own options, and the command's exit code."""
    url = fresh_url(recovery="off")
    project(
        tmp_path,
        url,
        "from django.core.management import BaseCommand, CommandError\n"
        "from weblock.contrib.django import locks\n"
        "class Command(BaseCommand):\n"
        "    def add_arguments(self, parser):\n"
        "        parser.add_argument('--code', type=int)\n"
        "    def handle(self, *, code, **options):\n"
        "        self.stdout.write(str([each.key for each in locks['default'].list()]))\n"
        "        raise CommandError('as asked', returncode=code)\n",
    )

    def manage(
        *arguments: str, command: Sequence[str] = HOLDER
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "manage.py", "weblock", "run", *arguments, *command],
            cwd=tmp_path,
            env=environment(tmp_path),
            capture_output=True,
            text=True,
            check=False,
        )

    ran = manage("nightly", "--wait", "30")
    assert (ran.returncode, ran.stdout) == (7, "['nightly']\n"), ran.stderr
    with Locks.from_url(url, namespace="shop") as others, others.hold("nightly"):
        ran = manage("nightly", "--skip-if-busy")
        assert (ran.returncode, ran.stdout) == (0, "")
        assert "skipped" in ran.stderr
    with Locks.from_url(url, namespace="shop") as others, others.hold("nightly", limit=2):
        ran = manage("nightly", "--skip-if-busy", "--limit", "2")
        assert (ran.returncode, ran.stdout) == (7, "['nightly']\n"), ran.stderr
    with Locks.from_url(url, namespace="shop") as others, others.hold("nightly", shared=True):
        ran = manage("nightly", "--skip-if-busy", "--shared")
        assert (ran.returncode, ran.stdout) == (7, "['nightly']\n"), ran.stderr
    assert "--kill-after" in manage("--help", command=()).stdout
    for misplaced in (["nightly", "holder"], ["--", "holder"], ["--wait", "3", "--", "holder"]):
        assert "write the key first" in manage(command=misplaced).stderr
    assert "no alias 'jobs'" in manage("nightly", "--alias", "jobs").stderr


def test_a_busy_command_of_a_view_is_answered(serve: Any) -> None:
    """A view that calls a command whose key is busy is answered with 409, as for a key of its own."""

    def view(request: HttpRequest) -> HttpResponse:
        call_command(Import(), "7")
        return HttpResponse()

    serve(items=view)
    with busy(locks["default"], "import:7", "another"):
        response = fetch("/items")
    assert (response.status_code, response.json()["code"]) == (409, "lock_timeout")


class Reading(Import):
    def handle(self, *args: Any, **options: Any) -> str:
        return str(Item.objects.all().db)


def test_a_locked_command_reads_the_database_that_is_written(settings: Any) -> None:
    """A command does not read a replica inside its lock, and what follows it does."""
    settings.DATABASE_ROUTERS = [LOCKED_READS, REPLICA]
    assert run(Reading()) == ("default", "")
    assert Item.objects.all().db == "other"
