"""A container, or one of many machines, where ``file://`` may lock for itself alone: it warns."""

from __future__ import annotations

from pathlib import Path

import pytest

from weblock import Locks, _engines
from weblock.stores import file as file_engine
from weblock.stores.file import checks


@pytest.fixture(autouse=True)
def ordinary(monkeypatch: pytest.MonkeyPatch) -> None:
    """An ordinary machine, which the tests then make something else of."""
    for mark in checks._MANY_MACHINES:
        monkeypatch.delenv(mark, raising=False)
    monkeypatch.setattr(checks, "_CONTAINERS", {})
    monkeypatch.setattr(checks, "_cgroups", lambda: "0::/user.slice/session-1.scope")
    monkeypatch.setattr(checks, "told", [])


@pytest.fixture
def in_docker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_CONTAINERS", {"/": "a Docker container"})


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each for each in caplog.messages if "this looks like" in each]


@pytest.mark.parametrize(
    ("mark", "platform"), [("KUBERNETES_SERVICE_HOST", "Kubernetes"), ("DYNO", "Heroku")]
)
def test_one_of_many_checks_is_warned_of_once(
    url: str,
    mark: str,
    platform: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """By the first process that opens the directory, also where the engine was chosen by name."""
    monkeypatch.setenv(mark, "x")
    for _ in range(2):
        Locks.from_url(url).close()
    checks.told.clear()  # As another worker would begin.
    Locks.from_url(url).close()
    (told,) = warnings_in(caplog)
    assert (
        f"this looks like {platform}: other containers or machines might run the same application"
        in told
    )
    assert "redis://" in told


@pytest.mark.parametrize(
    "cgroup",
    [
        "12:pids:/docker/3f4e8b0c1d2e3f4e8b0c1d2e",
        "0::/system.slice/docker-3f4e8b0c1d2e3f4e8b0c.scope",
        "4:memory:/kubepods/burstable/pod1/2",
        "0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-3f4e8b0c1d2e.scope",
        "0::/machine.slice/libpod-3f4e8b0c1d2e3f4e.scope",
        "0::/lxc.payload.web/init.scope",
    ],
)
def test_a_container_is_known_by_its_cgroup(
    url: str, cgroup: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where no file marks it."""
    monkeypatch.setattr(checks, "_cgroups", lambda: cgroup)
    Locks.from_url(url).close()
    assert "this looks like a container" in warnings_in(caplog)[0]


@pytest.mark.parametrize(
    "cgroup", ["0::/", "0::/system.slice/docker.service", "1:cpu:/user/lxc-net"]
)
def test_an_ordinary_machine_is_not_warned_of(
    url: str, cgroup: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Not even where it runs containers itself."""
    monkeypatch.setattr(checks, "_cgroups", lambda: cgroup)
    Locks.from_url(url).close()
    assert not warnings_in(caplog)


def test_the_remedy_for_the_default_directory_is_its_url(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    in_docker: None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The default directory has no path in it."""
    monkeypatch.setattr(file_engine, "default_directory", lambda: f"{tmp_path}/default")
    monkeypatch.setattr(_engines, "_registry", _engines._Registry())  # The default may be in use.
    Locks.from_url().close()
    (told,) = warnings_in(caplog)
    assert told.endswith(" set file://?allow_container=true [weblock.container]")


def test_the_remedy_for_a_named_directory_is_its_url(
    url: str, in_docker: None, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing tells whether others mount the same volume, unless the user does."""
    Locks.from_url(f"{url}-shared?allow_container=true").close()
    assert not warnings_in(caplog)
    Locks.from_url(url).close()
    assert warnings_in(caplog)[0].endswith(f" set {url}?allow_container=true [weblock.container]")
