"""What the pages and the settings of the checkout say of one another."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import weblock

TOP = Path(__file__).parents[1]
PAGES = sorted([*TOP.glob("*.md"), *TOP.glob("docs/**/*.md")])
_LINK = re.compile(r"\]\((?![a-z]+:)([^)#]*)(?:#([^)]+))?\)")
_SCHEMES = {"only-light", "only-dark"}
"""What an image's anchor says to the site: when it is shown."""
_FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", _FENCED.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(TOP)) for page in PAGES])
def test_links_lead_somewhere(page) -> None:
    """A link into the checkout names a file that there is, and a heading that is in it."""
    for path, anchor in _LINK.findall(_FENCED.sub("", page.read_text())):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), path
        known = _SCHEMES if target.suffix == ".png" else anchors(target) if anchor else ()
        assert not anchor or anchor in known, f"{path}#{anchor}"


@pytest.mark.parametrize("link", ["nowhere.md", "#nowhere", "../nowhere.py", "index.md"])
def test_the_site_is_not_built_with_a_link_that_leads_nowhere(link, tmp_path) -> None:
    """``scripts/docs --build`` fails for a page, a heading or a file of the checkout that there is not."""
    build = re.search(r"exec (mkdocs build .*) ;;", (TOP / "scripts/docs").read_text())
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/index.md").write_text(f"# Title\n\n[A link]({link})\n")
    settings = (
        f"INHERIT: {TOP}/mkdocs.yml\nhooks: [{TOP}/scripts/site.py]\nplugins: []\nnav:\n"
        "  - index.md\n"
    )
    (tmp_path / "mkdocs.yml").write_text(settings)
    command = [sys.executable, "-m", *build[1].split(), "--config-file", tmp_path / "mkdocs.yml"]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    ran = subprocess.run(command, cwd=TOP, env=env, capture_output=True, text=True, check=False)
    assert (ran.returncode == 0) == (link == "index.md"), ran.stderr
    assert link == "index.md" or link.rpartition("/")[2] in ran.stderr
    if link == "index.md":
        assert "/weblock/): A link." in (tmp_path / "site/llms.txt").read_text()


def test_each_test_says_what_it_proves() -> None:
    """A test has a docstring; of helpers, ruff wants none."""
    silent = []
    for path in TOP.glob("tests/**/test_*.py"):
        body = ast.parse(path.read_text()).body if "redis_py" not in path.parts else []
        classes = [each for each in body if isinstance(each, ast.ClassDef)]
        suites = [each.body for each in classes if each.name.startswith("Test")]
        for node in (each for part in (body, *suites) for each in part):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not ast.get_docstring(
                node
            ):
                silent += [f"{path.name}: {node.name}"] if node.name.startswith("test_") else []
    assert silent == []


def test_a_test_that_a_page_names_exists() -> None:
    """A page that says which test shows a promise names one that is in the suite."""
    suite = "".join(path.read_text() for path in TOP.glob("tests/**/test_*.py"))
    tests = set(re.findall(r"def (test_\w+)", suite)) | {
        path.stem for path in TOP.glob("tests/**/*.py")
    }
    for page in PAGES:
        assert not set(re.findall(r"`(test_\w+)`", page.read_text())) - tests, page


def test_a_message_that_a_page_quotes_is_one_of_ours() -> None:
    """The lines by which troubleshooting tells why a lease was lost are parts of messages, as they are."""
    page = (TOP / "docs/troubleshooting.md").read_text().partition("### `lease_lost`")[2]
    page = page.partition("\n### ")[0]
    symptoms = re.findall(r"^\| (`.*?\|.*?)\|", page, re.MULTILINE)
    assert symptoms
    texts = "\n".join(text for path in TOP.glob("src/**/*.py") for text in _texts(path))
    for part in (part for row in symptoms for part in re.findall(r"`([^`]+)`", row)):
        assert part in texts, part


def _texts(path: Path) -> list[str]:
    """The strings of a module; what an f-string fills in ends one."""
    nodes = ast.walk(ast.parse(path.read_text()))
    return [
        node.value
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]


def test_the_interpreters_are_the_same_everywhere() -> None:
    """The package claims the versions that scripts/test knows and that the workflow tests."""
    project = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]
    claimed = re.findall(r"Python :: (3\.\d+)", " ".join(project["classifiers"]))
    known = re.search(r'supported_pythons="(.*)"', (TOP / "scripts/_interpreters").read_text())
    tested = re.search(r"python: \[(.*)\]", (TOP / ".github/workflows/ci.yml").read_text())
    assert known
    assert tested
    assert known[1].split() == claimed
    assert re.findall(r"[\d.]+", tested[1]) == claimed
    assert project["requires-python"] == f">={claimed[0]}"


def test_the_project_s_urls_are_in_one_place() -> None:
    """``pyproject.toml`` has them, the settings of the site have the same, and no other file has one."""
    urls = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]["urls"]
    site = (TOP / "mkdocs.yml").read_text()
    assert re.findall(r"^(?:site|repo)_url: (.*)$", site, re.MULTILINE) == [
        urls["Documentation"],
        urls["Source"],
    ]
    ours = re.compile("|".join(map(re.escape, (urls["Documentation"], urls["Source"]))))
    globs = ("*.md", "docs/**/*.md", "src/**/*.py", "scripts/*", "demo/**/*.py", ".github/**/*.yml")
    files = [path for glob in globs for path in TOP.glob(glob) if path.is_file()]
    assert [path for path in files if ours.search(path.read_text())] == []


def test_the_version_is_one_that_installers_understand() -> None:
    """``weblock.__version__``, from which the package gets its own, has three numbers."""
    assert re.fullmatch(r"\d+\.\d+\.\d+", weblock.__version__)


_STRANGERS_PACKAGE = re.compile(
    r"(?<![\w/])weblock(?:\[\w|[<>=~!]=)|\b(?:install|add)\b[^`\n]*[ '\"]weblock(?:['\"`\n]| [a-z\"]|$)"
)
"""``weblock`` where an installer would take it for a distribution."""


@pytest.mark.parametrize(
    "path",
    [
        path
        for glob in ("*.md", "*.toml", "docs/**/*.md", "src/**/*.py", ".github/**/*.yml")
        for path in TOP.glob(glob)
    ],
    ids=lambda path: str(path.relative_to(TOP)),
)
def test_no_text_recommends_the_package_of_a_stranger(path: Path) -> None:
    """Pages, messages and workflows install ``pyweblock``, because ``weblock`` is another project."""
    assert not _STRANGERS_PACKAGE.findall(path.read_text())
