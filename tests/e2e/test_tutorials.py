"""The tutorials, step by step as a reader takes them: files are written and commands are run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers import Server
from tests.servers.ports import free_port
from tests.support.waiting import PATIENCE

PAGES = Path(__file__).parents[2] / "docs" / "tutorial"
_BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
_END = "--- end of a step ---"
_LIST = {
    "fastapi": "python -m weblock --namespace tutorial list",
    "django": "python manage.py weblock list",
    "flask": "flask --app shop weblock list",
}
"""How to see that a request holds the lock: it may need more than the second that the pages give it."""
_IN_HASTE = "curl -s -X POST localhost:8000/items\n"
"""The request that is to find the lock busy: no other is to give up."""
_HANDLER = re.compile(r'^(@.*)lock\("create_item"\)(.*)$', re.MULTILINE)
"""What a page puts above the function that it locks."""


@pytest.mark.timeout(10 * PATIENCE)
@pytest.mark.parametrize(
    "name",
    [
        "fastapi",
        *(
            pytest.param(
                name,
                marks=pytest.mark.skipif(
                    not os.environ.get("WEBLOCK_LONG"), reason="a long test: WEBLOCK_LONG=1"
                ),
            )
            for name in ("django", "flask")
        ),
    ],
)
def test_a_tutorial_does_what_it_says(name: str, tmp_path: Path) -> None:
    """Each command prints what the page shows below it, in any order; dots stand for anything."""
    server = Server()
    until_held = f"until {_LIST[name]} | grep -q create_item; do sleep 0.1; done"
    script, expected, files = "set -m\n", [], {}
    for language, title, text in _BLOCK.findall((PAGES / f"{name}.md").read_text()):
        if title:
            files[title] = _changed(files[title], text) if language == "diff" else text
            script += f"mkdir -p {Path(title).parent}\n"
            script += f"cat > {title} <<'END-OF-FILE'\n{files[title]}END-OF-FILE\n"
        elif language == "bash":
            script += f"{text}\necho; echo '{_END}'\n"
            expected.append("")
        elif language == "text":
            expected[-1] = text
    script = script.replace("\nsleep 1\n", f"\n{until_held}\n")
    # On a busy machine, what happens meanwhile needs more time.
    script = re.sub(r"\bwork=(\d)\b", lambda seconds: f"work={3 * int(seconds[1])}", script)
    script = _patient(script)
    script = script.replace("8000", str(free_port())).replace("6379", str(server.port))
    (tmp_path / "steps").write_text(script)
    try:
        ran = subprocess.run(
            ["bash", "-c", "trap 'kill $(jobs -p) 2>/dev/null' EXIT; . ./steps"],
            cwd=tmp_path,
            env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        server.close()
    printed = ran.stdout.split(_END)[:-1]
    assert len(printed) == len(expected), ran.stderr
    for step, (shown, wanted) in enumerate(zip(printed, expected, strict=True)):
        assert _matches(shown, wanted), f"step {step}: {shown}\nwanted: {wanted}\n{ran.stderr}"


def _changed(file: str, diff: str) -> str:
    """The file after a change: each part of ``diff`` between two ``@@`` applies once."""
    for part in diff.split("@@\n"):
        before, after = (
            "".join(line[1:] for line in part.splitlines(keepends=True) if line[0] in kept)
            for kept in (" -", " +")
        )
        assert file.count(before) == 1, before
        file = file.replace(before, after)
    return file


def _patient(script: str) -> str:
    """Has requests wait for their turn for as long as a busy machine takes; one in haste does as the page says."""
    patient = rf'\1lock("create_item", wait={PATIENCE:g})\2'
    if _IN_HASTE not in script:
        return _HANDLER.sub(patient, script)
    script = script.replace(_IN_HASTE, _IN_HASTE.replace("/items", "/in-haste"))
    return _HANDLER.sub(lambda line: f"{line.expand(patient)}\n{_in_haste(line[0])}", script)


def _in_haste(handler: str) -> str:
    assert '"/items"' in handler
    return handler.replace('"/items"', '"/in-haste"')


def _matches(shown: str, wanted: str) -> bool:
    lines = sorted(line for line in shown.splitlines() if line.strip())
    patterns = [re.escape(line).replace(r"\.\.\.", ".*") for line in sorted(wanted.splitlines())]
    return not patterns or (
        len(lines) == len(patterns)
        and all(re.fullmatch(*pair) for pair in zip(patterns, lines, strict=True))
    )
