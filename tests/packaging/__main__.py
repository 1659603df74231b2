"""Checks the wheel and the sdist in a folder: python -m tests.packaging dist.

Each is installed into an empty environment, where a handler that must not overlap has to run.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from email.parser import BytesParser
from email.policy import EmailPolicy
from pathlib import Path

from tests.servers import fresh_url

TOP = Path(__file__).parents[2]
PACKAGE = TOP / "src" / "weblock"
SMOKE = TOP / "tests" / "smoke.py"

# Checked by name, since a test of equality passes where the checkout lost them, too.
NEEDED = {
    "weblock/py.typed",
    "weblock/stores/redis/lua/acquire.lua",
    "weblock/cli/watchdog.py",
    "weblock/contrib/django/migrations/0001_initial.py",
    "weblock/contrib/django/static/weblock/locks.css",
    "weblock/contrib/django/templates/admin/weblock/locks.html",
    "weblock/contrib/status/status.html",
}


def check_wheel(wheel: Path) -> None:
    """All files of the package are in it, and nothing else."""
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    expected = {
        path.relative_to(PACKAGE.parent).as_posix()
        for path in PACKAGE.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert names == expected, f"{wheel.name}: {sorted(names ^ expected)} differ from src/weblock"
    assert names >= NEEDED, f"{wheel.name} lacks {sorted(NEEDED - names)}"


def check_description(wheel: Path) -> None:
    """Its links lead somewhere on a package page as well, and where they led in the checkout."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = BytesParser(policy=EmailPolicy(utf8=True)).parsebytes(archive.read(name))
    assert metadata["Name"] == "pyweblock", "``weblock`` is a distribution of another project"
    description = str(metadata.get_payload())
    links = re.findall(r"\]\(([^)]+)\)", description)
    assert links, "the description has no links"
    relative = [link for link in links if not re.match("https://|#", link)]
    assert not relative, f"links that lead nowhere on a package page: {relative}"
    home = re.compile(rf"https://.*/(?:blob|raw)/v{re.escape(metadata['Version'])}/([^#]+)")
    ours = [found[1] for link in links if (found := home.match(link))]
    gone = [path for path in ours if not (TOP / path).exists()]
    assert ours, "no link leads to the source of this version"
    assert not gone, f"links to files that do not exist: {gone}"


def check_sdist(sdist: Path) -> None:
    """All files of the checkout are in it, so that no test and no script lacks one, and nothing else."""
    with tarfile.open(sdist) as archive:
        names = {each.name.partition("/")[2] for each in archive if each.isfile()}
    assert names >= {"LICENSE", "tests/smoke.py", "scripts/test", ".github/workflows/ci.yml"}
    if (TOP / ".git").exists():
        known = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(known, cwd=TOP, capture_output=True, text=True, check=True).stdout
        expected = {name for name in listed.splitlines() if (TOP / name).exists()} | {"PKG-INFO"}
        assert names == expected, (
            f"{sdist.name}: {sorted(names ^ expected)} differ from git's files"
        )


def check_installed(distribution: Path, extras: str, handlers: dict[str, list[str]]) -> None:
    """Install it into an empty environment, and have handlers run there, by framework and URLs."""
    with tempfile.TemporaryDirectory(prefix="weblock-installed-") as folder:
        venv.create(folder, with_pip=False)
        python = f"{folder}/bin/python"
        pip = [
            sys.executable,
            "-m",
            "pip",
            "--python",
            python,
            "-qq",
            "--disable-pip-version-check",
        ]
        run(*pip, "install", f"{distribution}{extras}")
        run(*pip, "check")
        for framework, urls in handlers.items():
            for url in urls:
                # Isolated, it sees nothing of this checkout.
                run(python, "-I", str(SMOKE), framework, url)
                print(f"{distribution.name}{extras}: {framework} on {url.partition('://')[0]}://")


def run(*command: str) -> None:
    """Run a command, and end with what it said if it fails."""
    done = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")


def main(folder: Path) -> None:
    """Check all that was built."""
    (wheel,) = folder.glob("*.whl")
    (sdist,) = folder.glob("*.tar.gz")
    check_wheel(wheel)
    check_description(wheel)
    check_sdist(sdist)
    locks = Path(tempfile.mkdtemp(prefix="weblock-locks-"))
    try:
        here = f"file://{locks}"
        check_installed(sdist, "", {"threads": [here, "memory://"]})
        frameworks = ("core", "fastapi", "django")
        urls = [here, fresh_url()]
        check_installed(wheel, "[django,fastapi,redis]", dict.fromkeys(frameworks, urls))
    finally:
        shutil.rmtree(locks)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
