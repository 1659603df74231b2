"""The frameworks that the application is written in: the same one, with the same lock."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Final

UVICORN: Final = (
    *(sys.executable, "-m", "uvicorn", "--no-access-log"),
    *("--port", "0", "--workers", "1"),
)
FLASK: Final = (
    *(sys.executable, "-m", "flask", "--app", "demo.flask"),
    *("run", "--port", "0", "--no-reload"),
)


@dataclass(frozen=True)
class Framework:
    """How the application is run, and the line in it that is the lock."""

    name: str
    command: tuple[str, ...]
    file: str
    line: str


FRAMEWORKS: Final = {
    "fastapi": Framework(
        "FastAPI", (*UVICORN, "demo.app:app"), "demo/app.py", 'Depends(lock("create_item"))'
    ),
    "django": Framework(
        "Django",
        (*UVICORN, "demo.django.asgi:application"),
        "demo/django/urls.py",
        'lock("create_item")',
    ),
    "flask": Framework("Flask", FLASK, "demo/flask.py", 'locks.lock("create_item")'),
}
