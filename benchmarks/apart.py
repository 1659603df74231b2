"""Peers that cannot be installed beside the others: of one module name, or with old requirements.

Each lies in a folder of its own, and only the processes that measure it have that on their path.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType

_FOLDER = Path(sys.prefix) / "apart"


def install(requirement: str, *more: str) -> bool:
    """Puts a package, and what else it needs, into its folder. Whether it is there."""
    folder = _FOLDER / requirement
    if not folder.exists():
        pip = [sys.executable, "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
        command = [*pip, "--no-deps", "--target", str(folder), requirement, *more]
        return subprocess.run(command, check=False).returncode == 0
    return True


def imported(requirement: str, module: str) -> ModuleType:
    """The module of a package that lies apart."""
    folder = str(_FOLDER / requirement)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return importlib.import_module(module)
