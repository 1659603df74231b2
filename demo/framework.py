"""The frameworks that the application is written in: the same one, with the same lock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Framework:
    """Where the application is, and the line in it that is the lock."""

    name: str
    application: str
    """As uvicorn names it."""
    file: str
    line: str


FRAMEWORKS: Final = {
    "fastapi": Framework("FastAPI", "demo.app:app", "demo/app.py", 'Depends(lock("create_item"))'),
    "django": Framework(
        "Django", "demo.django.asgi:application", "demo/django/urls.py", 'lock("create_item")'
    ),
}
