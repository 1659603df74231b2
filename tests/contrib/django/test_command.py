"""``manage.py weblock``: what operators see, and what they take away."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.core.management.base import SystemCheckError
from django.http import HttpRequest, HttpResponse
from django.test import override_settings
from django.urls import path

from tests.support.busy import busy
from weblock.contrib.django import lock, locks
from weblock.contrib.django.management.commands.weblock import Command

TOP = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def own_engine(url: str) -> Iterator[None]:
    with override_settings(
        WEBLOCK={"default": {"URL": url}, "jobs": {"URL": url, "NAMESPACE": "jobs"}}
    ):
        yield


def run(*arguments: str) -> str:
    output = io.StringIO()
    call_command("weblock", *arguments, stdout=output)
    return output.getvalue()


def test_it_serves_in_an_emergency(settings: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """A project in which the checks find errors can still be looked into."""
    settings.ROOT_URLCONF = (path("items", item),)  # Its key needs a part of the URL.
    with pytest.raises(SystemCheckError, match=r"weblock\.E004"):
        call_command("check")
    Command().run_from_argv(["manage.py", "weblock", "list"])
    assert capsys.readouterr().out == "No key is held or waited for.\n"


def test_programs_read_json() -> None:
    """With --json, a list is one of objects, and a key that is free is null."""
    with busy(locks["default"], "item:1", "web-1", "web-2"):
        (listed,) = json.loads(run("list", "--json"))
        assert json.loads(run("show", "item:1", "--json"))["waiters"] == ["web-2"]
    assert (listed["key"], listed["holder"]) == ("item:1", "web-1")
    assert json.loads(run("show", "item:1", "--json")) is None


def test_each_alias_has_its_own() -> None:
    """--alias says which locks are meant, and one that there is not is refused."""
    with busy(locks["jobs"], "nightly", "cron-1"):
        assert "nightly" not in run("list")
        assert "nightly" in run("list", "--alias", "jobs")
    with pytest.raises(CommandError, match="invalid choice: 'other'"):
        run("list", "--alias", "other")


def test_a_holder_that_goes_on_loses_its_key_by_force(caplog: pytest.LogCaptureFixture) -> None:
    """With --gently it is asked first, and keeps its key; the log says who took it with --force."""
    gently = ("release", "item:1", "--gently", "--timeout", "0")
    with busy(locks["default"], "item:1", "web-1"):
        with pytest.raises(CommandError, match="still held by web-1, which was asked") as still:
            run(*gently)
        assert still.value.returncode == 75
        with caplog.at_level(logging.WARNING, "weblock.audit"):
            assert run(*gently, "--force") == "Released item:1, taken from web-1.\n"
    (line,) = [each.getMessage() for each in caplog.records if each.name == "weblock.audit"]
    assert "(manage.py)' took the lease of 'item:1' from 'web-1' by force (fence" in line


def test_an_engine_that_is_down_is_named() -> None:
    """An engine that does not answer is an error of one line, without the password."""
    with (
        override_settings(WEBLOCK={"default": {"URL": "redis://:s3cret@127.0.0.1:1"}}),
        pytest.raises(CommandError, match=r"redis://127\.0\.0\.1:1 is unavailable") as caught,
    ):
        run("list")
    assert "s3cret" not in str(caught.value)


PROJECT = "INSTALLED_APPS = ['weblock.contrib.django']"


def manage(folder: Path, *arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "django", "weblock", *arguments],
        env={
            **os.environ,
            **environment,
            "DJANGO_SETTINGS_MODULE": "settings",
            "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]),
        },
        cwd=TOP,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    return done.stdout


def test_an_ascii_terminal_can_show_any_key(tmp_path: Path) -> None:
    """What a terminal does not know is escaped, and so are characters that turn a line around."""
    url = f"file://{tmp_path}/locks"
    (tmp_path / "settings.py").write_text(
        f"{PROJECT}\nWEBLOCK = {{'default': {{'URL': {url!r}}}}}\n"
    )
    with (
        override_settings(WEBLOCK={"default": {"URL": url}}),
        busy(locks["default"], "item:ä\u202e", "you"),
    ):
        for arguments in (["list"], ["show", "item:ä\u202e"]):
            output = manage(tmp_path, *arguments, PYTHONIOENCODING="ascii", LC_ALL="C.UTF-8")
            assert "item:\\xe4\\u202e" in output
            output = manage(tmp_path, *arguments, PYTHONIOENCODING="utf-8")
            assert "item:ä\\u202e" in output


def of_user(request: HttpRequest) -> str:
    raise AssertionError


@lock("item:{pk}", of_user, wait=1)
def item(request: HttpRequest, pk: int) -> HttpResponse:
    return HttpResponse()


def test_what_is_locked_is_listed(settings: Any) -> None:
    """Each view that @lock marks and each rule; of a request, the rule of each alias and the view."""
    settings.ROOT_URLCONF = (path("items/<int:pk>", item, name="item"),)
    settings.WEBLOCK["default"]["RULES"] = [
        {"view": "item", "methods": ["PUT"], "key": "put"},
        {"route": "items/<int:pk>", "key": "row:{pk}:{query.x}"},
        {"view": "item", "exempt": True},
    ]
    settings.WEBLOCK["jobs"]["RULES"] = [{"view": "item", "key": "job"}]
    settings.DEBUG = True  # Else the engine of these tests is found.
    view = f"{__name__}.item at 'items/<int:pk>'"
    output = run("check")
    assert output.split("\n  ")[:3] == [
        view,
        f"keys:    item:{{pk}}, {of_user.__qualname__}",
        "options: wait=1",
    ]
    rules = [line for line in output.splitlines() if line.startswith("WEBLOCK")]
    assert rules == [
        "WEBLOCK['default']['RULES'][0]: view 'item', methods ['PUT']",
        "WEBLOCK['default']['RULES'][1]: route 'items/<int:pk>'",
        "WEBLOCK['default']['RULES'][2]: view 'item', exempt",
        "WEBLOCK['jobs']['RULES'][0]: view 'item'",
    ]
    heads = [line for line in run("check", "post", "/items/7?x=1").splitlines() if line[0] != " "]
    assert heads == [rules[1], rules[3], "item at 'items/<int:pk>'"]


def test_what_the_checks_find_ends_the_listing(settings: Any) -> None:
    """Errors and warnings of weblock's system checks are said, and the command fails."""
    settings.ROOT_URLCONF = (path("items/<int:pk>", item, name="item"),)
    settings.DEBUG = True
    settings.WEBLOCK["default"]["RULES"] = [{"view": "nowhere", "key": "x"}]
    with pytest.raises(CommandError, match="matches no view that a URL leads to"):
        run("check")
    settings.SILENCED_SYSTEM_CHECKS = ["weblock.W005"]
    run("check")
    settings.WEBLOCK["default"]["RULES"] = [{"view": "item", "exempt": True}]
    settings.ROOT_URLCONF = (path("items/<int:pk>", lambda request, pk: None, name="item"),)
    with pytest.raises(CommandError, match="nothing locks GET /items/7"):
        run("check", "GET", "/items/7")
    with pytest.raises(CommandError, match="a request is a method and a path"):
        run("check", "GET")
