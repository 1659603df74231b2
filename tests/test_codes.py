"""Each error and warning ends with a code, and each finding of the doctor has one: troubleshooting explains them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from weblock import errors
from weblock.stores.file import open_engine

TOP = Path(__file__).parents[1]
MODULES = sorted(TOP.glob("src/weblock/**/*.py"))
PAGE = (TOP / "docs/troubleshooting.md").read_text()
_IN_A_TEXT = re.compile(r"\[weblock\.(\w+)\]$")


NODES = {path: list(ast.walk(ast.parse(path.read_text()))) for path in MODULES}
WARNS = {"warning", "error", "exception", "critical", "warn", "_warn_once", "_report_forgotten"}


def _codes_of(path: Path) -> Iterator[str]:
    """The codes of error classes, of single errors, in texts, of responses, and of Django's checks."""
    for node in NODES[path]:
        match node:
            case ast.Assign(
                targets=[ast.Name("code") | ast.Attribute(attr="code")],
                value=ast.Constant(str(code)),
            ):
                yield code
            case ast.keyword("code", ast.Constant(str(code))) if code:
                yield code
            case ast.keyword("id", ast.Constant(str(code))) if code.startswith("weblock."):
                yield code.removeprefix("weblock.")
            case ast.Constant(str(text)) if found := _IN_A_TEXT.search(text):
                yield found[1]


def test_each_code_has_a_heading_and_each_heading_its_code() -> None:
    """The page on troubleshooting explains all codes of the source, each once, and no others."""
    headings = re.findall(r"^### `(\w+)`$", PAGE, re.MULTILINE)
    codes = {code for path in MODULES for code in _codes_of(path)}
    assert sorted(headings) == sorted(codes)
    classes = [each for each in vars(errors).values() if isinstance(each, type)]
    own = [each for each in classes if issubclass(each, errors.WeblockError)]
    assert [each for each in own if each.code == "error"] == [errors.WeblockError]


def test_each_finding_of_the_doctor_has_a_row() -> None:
    """The table of findings has the codes of all warnings and problems of the engines, and no others."""
    found = re.compile(r'(?:\b(?:warning|problem|unfit|share)|\))\(\s*"([a-z_]+)",')
    sources = [TOP / "src/weblock/cli/doctor.py", *TOP.glob("src/weblock/stores/**/*.py")]
    table = PAGE.partition("### What `weblock doctor` finds")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    codes = {code for path in sources for code in found.findall(path.read_text())}
    assert sorted(re.findall(r"`(\w+)`", " ".join(cells))) == sorted(codes)


@pytest.mark.parametrize(
    "path",
    [each for each in MODULES if not {"cli", "compat"} & {*each.relative_to(TOP).parts}],
    ids=lambda path: str(path.relative_to(TOP / "src")),
)
def test_each_warning_has_a_code(path: Path) -> None:
    """What is warned of, or logged at WARNING and above, ends with a code, or is the text of an error."""
    constants = {
        node.target.id: node.value
        for nodes in NODES.values()
        for node in nodes
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and node.target.id.isupper()
    }
    for node in NODES[path]:
        match node:
            case (
                ast.Call(ast.Attribute(ast.Name("logger"), name), [text, *_])
                | ast.Call(ast.Attribute(ast.Name("self"), name), [text, *_])
                | ast.Call(ast.Name("warn" | "_warn_once" as name), [text, *_])
            ) if name in WARNS:
                text = constants.get(text.id) if isinstance(text, ast.Name) else text
            case ast.Call(ast.Name("_Line"), [ast.Attribute(attr="WARNING"), text], keywords):
                assert "code" in [each.arg for each in keywords], ast.unparse(text)
                continue
            case _:
                continue
        if text is not None and ast.unparse(text) != "'%s'":  # Or it is passed on.
            ends = [each for each in ast.walk(text) if isinstance(each, ast.Constant)]
            assert any(_IN_A_TEXT.search(str(each.value)) for each in ends), ast.unparse(text)


def test_an_error_that_explains_another_has_one_code(tmp_path: Path) -> None:
    """An outage that is caused by a wrong directory ends with its own code alone."""
    engine = open_engine(f"file://{tmp_path}/locks?allow_container=true")
    with pytest.raises(errors.EngineUnavailable) as caught:
        engine.fail(errors.ConfigurationError("its directory is gone", code="lock_directory"))
    engine.close()
    assert str(caught.value).endswith("its directory is gone [weblock.engine_unavailable]")
