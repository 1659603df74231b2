"""Which releases of other packages weblock works with, as the metadata of the installed weblock says.

``pyproject.toml`` is the one place where the ranges are written: the installer reads them, and so does this.
"""

from __future__ import annotations

import importlib
import re
from functools import cache
from importlib import metadata
from typing import Final

from .errors import ConfigurationError

_REQUIREMENT: Final = re.compile(
    r"(?P<package>[\w.-]+)(\[[\w,-]+\])?\s*(?P<range>[^;]*);.*\bextra\s*==\s*['\"](?P<extra>[\w-]+)['\"]"
)
_MODULES: Final = {"opentelemetry-api": "opentelemetry.metrics"}
"""What is imported of a package, where it has another name."""

_NUMBERS: Final = re.compile(r"\d+(\.\d+)*")


def require(wanted: str, extra: str, *, instead: str | None = None) -> None:
    """Check that the packages of an extra are installed, each in a release that weblock works with.

    ``wanted`` is what needs them, for the message, and ``instead`` works with any release of them.
    Raises ``ConfigurationError``.
    """
    keeping = f", or keep your releases and use {instead}" if instead else ""
    for package, wanted_range in ranges(extra).items():
        try:
            found = metadata.version(package)
        except metadata.PackageNotFoundError:
            found = ""
        if found and not _within(found, wanted_range):
            raise ConfigurationError(
                f"{wanted} needs {package}{wanted_range}, but {package} {found} is installed."
                f" Run: pip install 'pyweblock[{extra}]'{keeping}",
                code="missing_package",
            )
        try:
            importlib.import_module(_MODULES.get(package, package))
        except ImportError as error:
            raise ConfigurationError(
                f"{wanted} needs {package}{wanted_range}, but {error.name or package} is not"
                f" installed. Run: pip install 'pyweblock[{extra}]'",
                code="missing_package",
            ) from error


@cache
def ranges(extra: str) -> dict[str, str]:
    """Return the packages of an extra, each with its range, such as ``{"redis": ">=5.0.1,<9"}``."""
    try:
        lines = metadata.requires("pyweblock") or []
    except metadata.PackageNotFoundError:  # A copy of the source that was not installed.
        lines = []
    matches = map(_REQUIREMENT.match, lines)
    return {
        match["package"]: ",".join(sorted(match["range"].strip().split(","), reverse=True))
        for match in matches
        if match and match["extra"] == extra
    }


def _within(version: str, wanted_range: str) -> bool:
    """Compare the numbers alone: a beta of the next major release counts as that release."""
    found = _numbers(version)
    for bound in wanted_range.split(","):
        least = bound.startswith(">=")
        if bound and (found >= _numbers(bound)) is not least:
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    match = _NUMBERS.search(version)
    numbers = [int(number) for number in match[0].split(".")] if match else []
    while numbers and not numbers[-1]:  # 5.0 is 5.
        numbers.pop()
    return tuple(numbers)
