"""Which directories are used, which are refused, and in what words."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.waiting import PATIENCE, eventually, waiters
from weblock import AlreadyHeld, AsyncLocks, ConfigurationError, EngineUnavailable, Locks
from weblock.stores import file as file_engine
from weblock.stores.file import default_directory, directory
from weblock.stores.file.directory import file_system_of, is_local

from .keys import record_of
from .processes import Child, Failed

MOUNTINFO = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
23 22 0:21 / /mnt/nfs rw,relatime shared:2 - nfs4 server:/export rw,vers=4.2
24 22 0:22 / /mnt/with\\040space rw - cifs //server/share rw
25 22 0:23 / /home/me/drive rw master:3 - fuse.sshfs me@there: rw
26 22 0:24 / /wsl rw - 9p C:\\134 rw
27 22 0:25 /@home /data rw - btrfs /dev/vdb rw
28 27 0:26 / /data/tmp rw - tmpfs tmpfs rw
"""


@pytest.mark.parametrize(
    ("path", "kind", "local"),
    [
        ("/var/lib/app", "ext4", True),
        ("/mnt/nfs/locks", "nfs4", False),
        ("/mnt/with space/locks", "cifs", False),
        ("/home/me/drive/locks", "fuse.sshfs", False),
        ("/home/me/drives/locks", "ext4", True),
        ("/wsl/locks", "9p", False),
        ("/data/locks", "btrfs", True),
        ("/data/tmp/locks", "tmpfs", True),
    ],
)
def test_file_systems_that_other_machines_may_share_are_told(
    tmp_path: Path, path: str, kind: str, local: bool
) -> None:
    """By the place that they are mounted at."""
    (tmp_path / "mountinfo").write_text(MOUNTINFO)
    assert file_system_of(path, tmp_path / "mountinfo") == kind
    assert is_local(kind) is local


def test_of_two_file_systems_at_one_place_the_last_counts(tmp_path: Path) -> None:
    """It hides the other."""
    mountinfo = tmp_path / "mountinfo"
    mountinfo.write_text(f"{MOUNTINFO}29 22 0:27 / /mnt/nfs rw - tmpfs tmpfs rw\n")
    assert file_system_of("/mnt/nfs/locks", mountinfo) == "tmpfs"


@pytest.mark.parametrize(
    "kind", ["nfs", "nfs4", "cifs", "9p", "fuse", "fuse.sshfs", "gpfs", "unknown", "ext"]
)
def test_a_shared_file_system_is_refused(
    url: str, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """So is an unknown one. The error names the directory, the file system and what to do."""
    monkeypatch.setattr(directory, "file_system_of", lambda path: kind)
    with pytest.raises(
        ConfigurationError, match=rf"/locks is on a file system \({kind}\) .*redis://"
    ):
        Locks.from_url(url)


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077, 0o277, 0o777])
def test_the_directory_is_0700_and_its_files_0600_whatever_the_umask(
    folder: Path, child: Callable[..., Child], mask: int
) -> None:
    """Neither more for others, nor less for ourselves."""
    child(before=f"os.umask({mask})").open().run("lease = locks.acquire('k')")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    found = {each.name: stat.S_IMODE(each.stat().st_mode) for each in folder.iterdir()}
    assert len(found) == 3
    assert set(found.values()) == {0o600}


@pytest.mark.parametrize("mode", [0o770, 0o777, 0o1777, 0o720])
def test_a_directory_that_others_can_write_to_is_refused(folder: Path, url: str, mode: int) -> None:
    """The error names its owner, its mode and the remedy."""
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(ConfigurationError, match=r"could be changed by others .* mode 0700"):
        Locks.from_url(url)


def test_a_symbolic_link_in_place_of_the_directory_is_refused(folder: Path, url: str) -> None:
    """Also where the URL ends in a slash, which would follow it."""
    folder.with_name("elsewhere").mkdir(0o700)
    folder.symlink_to("elsewhere")
    for each in (url, f"{url}/", f"{url}//"):
        with pytest.raises(ConfigurationError, match="not a directory itself"):
            Locks.from_url(each)


def test_a_file_in_place_of_the_directory_is_refused(folder: Path, url: str) -> None:
    """The error says that it is no directory."""
    folder.write_text("")
    with pytest.raises(ConfigurationError, match="not a directory itself"):
        Locks.from_url(url)


def test_a_symbolic_link_in_place_of_the_marker_is_refused(folder: Path, url: str) -> None:
    """What it points to is neither read nor written."""
    target = folder.with_name("target")
    target.write_text("precious")
    folder.mkdir(0o700)
    (folder / "weblock").symlink_to(target)
    with pytest.raises(ConfigurationError, match="weblock is a symbolic link: remove it"):
        Locks.from_url(url)
    assert target.read_text() == "precious"


def test_a_symbolic_link_in_place_of_a_record_file_is_refused(folder: Path, locks: Locks) -> None:
    """What it points to is neither read nor written."""
    target = folder.with_name("target")
    target.write_text("precious")
    record_of(folder, "k").symlink_to(target)
    with pytest.raises(EngineUnavailable, match="is a symbolic link: remove it"):
        locks.acquire("k", wait=0)
    assert target.read_text() == "precious"


def test_a_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    """The error names it, and what to do."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match=r"file/above/locks cannot be used: Not a dir"):
        Locks.from_url(f"file://{tmp_path}/file/above/locks")
    (tmp_path / "dangling").symlink_to("nowhere")
    with pytest.raises(ConfigurationError, match=r"dangling/locks cannot be used: No such file"):
        Locks.from_url(f"file://{tmp_path}/dangling/locks")


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077, 0o777])
def test_directories_above_are_made_and_nobody_else_may_write_to_them(
    tmp_path: Path, child: Callable[..., Child], mask: int
) -> None:
    """All that are missing, whatever the umask: the way to the directory is safe, too."""
    user = child(before=f"os.umask({mask})")
    user.run(f"Locks.from_url('file://{tmp_path}/a/b/locks').acquire('k').fence")
    for made in ("a", "a/b"):
        mode = stat.S_IMODE((tmp_path / made).stat().st_mode)
        assert mode & 0o722 == 0o700
    assert stat.S_IMODE((tmp_path / "a/b/locks").stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o777, 0o757, 0o702])
def test_a_directory_below_one_that_others_may_write_is_refused(
    tmp_path: Path, folder: Path, mode: int
) -> None:
    """However far above: they could put another directory in its place, and lock there."""
    above = tmp_path / "above"
    above.mkdir()
    above.chmod(mode)
    told = rf"above \(mode {mode:04o}\) may be written by others, .* \(chmod go-w"
    for below in (above / "locks", above / "x" / "locks"):
        below.mkdir(parents=True, mode=0o700)
        with pytest.raises(ConfigurationError, match=told):
            Locks.from_url(f"file://{below}")
    (tmp_path / "link").symlink_to(above)
    with pytest.raises(ConfigurationError, match=told):
        Locks.from_url(f"file://{tmp_path}/link/locks")
    above.chmod(0o1777)  # As /tmp: nobody may rename there what belongs to another.
    Locks.from_url(f"file://{above}/locks").close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_directory_below_a_strangers_is_refused(
    public: Path, child: Callable[..., Child]
) -> None:
    """Neither a directory nor a link on the way may be another user's; root may have them."""
    (public / "theirs").mkdir(mode=0o755)
    os.chown(public / "theirs", 12345, 12345)
    (public / "link").symlink_to("/")
    os.chown(public / "link", 12345, 12345, follow_symlinks=False)
    for path in (public / "theirs/locks", public / f"link{public}/locks"):
        with pytest.raises(ConfigurationError, match="belongs to user 12345, who could put"):
            Locks.from_url(f"file://{path}")
    (public / "given").mkdir()
    os.chown(public / "given", 65534, 65534)
    user = child(before="import weblock.stores.file; os.setgid(65534); os.setuid(65534)")
    assert user.run(f"Locks.from_url('file://{public}/given/locks').acquire('k').fence") > 0


@pytest.mark.parametrize(
    ("owner", "group", "mode", "passes"),
    [
        (0, 0, 0o755, True),
        (1000, 1000, 0o775, True),  # the user's own group, as many systems give each user one
        (1000, 100, 0o775, False),
        (1000, 50, 0o775, False),
        (0, 0, 0o775, True),
        (1000, 1000, 0o757, False),
        (0, 0, 0o1777, True),
        (65534, 65534, 0o755, True),  # what is outside of our user namespace
        (1001, 1001, 0o700, False),
    ],
)
def test_who_may_write_above_the_directory(
    monkeypatch: pytest.MonkeyPatch, owner: int, group: int, mode: int, passes: bool
) -> None:
    """This user, root and their own groups may; in a user namespace so may what is outside."""
    groups = {0: ("root", []), 1000: ("me", []), 100: ("users", []), 50: ("me too", ["you"])}
    info = os.stat_result((stat.S_IFDIR | mode, 1, 1, 1, owner, group, 0, 0, 0, 0))
    monkeypatch.setattr(directory.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(directory.os, "lstat", lambda path: info)
    monkeypatch.setattr(directory, "_uid_map", lambda: "0 0 1\n1000 1000 1\n1001 1001 1\n")
    monkeypatch.setattr(
        directory.grp,
        "getgrgid",
        lambda gid: SimpleNamespace(gr_name=groups[gid][0], gr_mem=groups[gid][1]),
    )
    monkeypatch.setattr(
        directory.pwd, "getpwuid", lambda uid: SimpleNamespace(pw_name="me", pw_gid=1000)
    )
    assert (directory.stranger_above("/a/locks") is None) == passes


@pytest.fixture
def public() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        yield Path(place)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_strangers_directory_is_refused(public: Path, child: Callable[..., Child]) -> None:
    """Whatever its mode: its owner could change everything in it."""
    (public / "locks").mkdir(0o755)
    stranger = child(before="import weblock.stores.file; os.setgid(65534); os.setuid(65534)")
    with pytest.raises(Failed, match=r"owner 0, mode 0755\) could be changed by others") as refusal:
        stranger.run(f"Locks.from_url('file://{public}/locks')")
    assert refusal.value.name == "ConfigurationError"
    with pytest.raises(Failed, match="more cannot be used: Permission denied"):
        stranger.run(f"Locks.from_url('file://{public}/more')")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_directory_that_cannot_be_written_is_refused(
    public: Path, child: Callable[..., Child]
) -> None:
    """Its own directory, without the right to write to it."""
    (public / "locks").mkdir()
    os.chown(public / "locks", 65534, 65534)
    (public / "locks").chmod(0o500)
    user = child(before="import weblock.stores.file; os.setgid(65534); os.setuid(65534)")
    with pytest.raises(Failed, match="cannot be written: Permission denied; give it to") as refusal:
        user.run(f"Locks.from_url('file://{public}/locks')")
    assert refusal.value.name == "ConfigurationError"


def test_a_directory_of_another_version_is_refused(folder: Path, url: str) -> None:
    """The error names both versions."""
    folder.mkdir(0o700)
    (folder / "weblock").write_text("weblock 99\n")
    with pytest.raises(ConfigurationError, match="'weblock 99', and this one writes 'weblock 1'"):
        Locks.from_url(url)


def test_a_record_file_of_another_version_is_refused(folder: Path, locks: Locks) -> None:
    """The error names the file; nothing in it is overwritten."""
    record = record_of(folder, "k")
    record.write_bytes(b"WLR9".ljust(32768, b"x"))
    with pytest.raises(EngineUnavailable, match="of another version of weblock"):
        locks.acquire("k", wait=0)
    assert record.read_bytes().startswith(b"WLR9x")


def test_a_deep_directory_works(tmp_path: Path, child: Callable[..., Child]) -> None:
    """Waking and noticing a death do not depend on how long the path is."""
    deep = tmp_path.joinpath(*["a directory with a long name"] * 6)
    deep.mkdir(parents=True)
    with Locks.from_url(f"file://{deep}/locks") as locks:
        holder, waiter = [child(before=f"url = 'file://{deep}/locks'").open() for _ in range(2)]
        holder.run("lease = locks.acquire('k', ttl=3600)")
        waiter.begin("locks.acquire('k', wait=None, ttl=3600).fence")
        eventually(lambda: waiters(locks, "k") == 1)
        holder.run("lease.release()")
        assert waiter.outcome() > 0
        waiter.kill()
        locks.acquire("k", wait=PATIENCE).release()


@pytest.mark.parametrize("spelling", ["{0}/locks/", "{0}/./locks", "{0}/locks/.", "{0}//locks"])
def test_two_spellings_of_one_path_are_one_engine(
    tmp_path: Path, locks: Locks, spelling: str
) -> None:
    """Whoever waits for itself by another spelling is told, too, and both are closed on their own."""
    other = Locks.from_url(f"file://{spelling.format(tmp_path)}")
    with locks.hold("k") as lease:
        with pytest.raises(AlreadyHeld):
            other.acquire("k", wait=1)
        other.close()
        lease.check()
    locks.acquire("k").release()


def test_a_second_path_of_one_directory_is_refused(tmp_path: Path, locks: Locks) -> None:
    """In one process. It could not see that it waits for itself, and a link can be moved."""
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(ConfigurationError, match="are the same directory: use one path"):
        Locks.from_url(f"file://{tmp_path}/link/locks")
    locks.acquire("k").release()


OTHER_BOOT = """
from weblock.stores.file import directory
directory._boot_digest = lambda: "{:016x}"
"""


def test_a_container_with_another_boot_is_rejected(
    url: str, folder: Path, child: Callable[..., Child]
) -> None:
    """A newcomer gets nothing while a process of another boot lives, even a stopped one; later it does."""
    here = child().open(ttl=300)
    fence = here.run("lease = locks.acquire('k'); lease.fence")
    here.stop()
    there = child(before=OTHER_BOOT.format(1))
    with pytest.raises(Failed, match="another container of this machine uses"):
        there.open()
    here.resume()
    here.run("lease.extend(0); locks.acquire('b').release()")
    assert len([*folder.glob("*.bell")]) == 1
    here.kill()
    assert there.open().run("locks.acquire('k', wait=0).fence") > fence
    with pytest.raises(Failed, match="another container of this machine uses"):
        child().open()


def test_a_boot_of_the_machine_voids_leases_and_keeps_fences(child: Callable[..., Child]) -> None:
    """What was held before it is free, and no fence is given twice."""
    before = child(before=OTHER_BOOT.format(1)).open(ttl=300)
    fence = before.run("lease = locks.acquire('k'); lease.fence")
    before.kill()
    after = child(before=OTHER_BOOT.format(2) + "time.time = lambda: 1.0").open()
    assert after.run("locks.acquire('k', wait=0).fence") > fence


def test_fences_increase_when_all_state_is_lost_and_over_restarts(
    folder: Path, child: Callable[..., Child]
) -> None:
    """They start from the clock, so that they need not remember to increase."""
    fences = []
    for _ in range(3):
        one = child().open()
        fences += [one.run("with locks.hold('k') as lease: pass\nlease.fence") for _ in range(3)]
        one.kill()
        for each in folder.iterdir():
            each.unlink()
    assert fences == sorted(set(fences))


def test_jumps_of_the_wall_clock_change_nothing(locks: Locks, child: Callable[..., Child]) -> None:
    """Leases are as long as before, and fences increase also when the clock is set back."""
    jumper = child().open(ttl=300)
    fence = jumper.run("first = locks.acquire('k'); first.fence")
    for time in ("1.0", "1e10", "2.0"):
        jumper.run(f"time.time = lambda: {time}")
        assert jumper.run("first.check(); first.remaining()") > 200
        assert locks.try_acquire("k") is None
    jumper.run("first.release()")
    assert jumper.run("lease = locks.acquire('k'); lease.release(); lease.fence") > fence


def test_without_a_url_the_directory_is_one_of_this_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same for all processes of a user, in any environment."""
    assert default_directory() == f"/tmp/weblock-{os.geteuid()}"
    monkeypatch.setattr(file_engine, "default_directory", lambda: f"{tmp_path}/default")
    with Locks.from_url() as locks:
        assert locks.engine == f"file://{tmp_path}/default"
        assert locks.scope == "host"


@pytest.mark.parametrize("locks", [Locks, AsyncLocks])
def test_an_engine_of_one_host_is_refused_where_a_cluster_is_required(
    url: str, locks: type[Locks | AsyncLocks]
) -> None:
    """The error names the setting and an engine that would do."""
    with pytest.raises(ConfigurationError, match=r"require_scope='cluster'.*redis://"):
        locks.from_url(url, require_scope="cluster")
