"""The problem responses in the OpenAPI schema of the operations that lock."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from fastapi import FastAPI

from ...errors import (
    AnswersUnavailable,
    EngineRecovering,
    EngineUnavailable,
    IdempotencyKeyInvalid,
    IdempotencyKeyReused,
    InvalidKey,
    LeaseLost,
    LockTimeout,
    TooManyAnswers,
    WeblockError,
)
from ..kit import Problem
from .routes import LockingRoute, each_route, locking_routes

ProblemOf = Callable[[WeblockError], Problem | None]
"""Returns the problem of an error; ``None`` if the application responds by itself."""

SCHEMA: Final = "LockProblem"

_BUSY: Final = LockTimeout("key", wait=5.0, retry_after=1.0)
_DOWN: Final = EngineUnavailable("engine", "it is down")
_RECOVERING: Final = EngineRecovering("engine", "it was started just now", retry_after=10.0)
_LOST: Final = LeaseLost("key", fence=0, reason="expired")
_NO_KEY: Final = InvalidKey("key")

_OF_ONCE: Final = (
    IdempotencyKeyInvalid("Idempotency-Key", "it is missing", missing=True),
    IdempotencyKeyReused("key"),
    TooManyAnswers(1, retry_after=60.0),
    AnswersUnavailable("it is down"),
)

_SCHEMA: Final[dict[str, Any]] = {
    "title": SCHEMA,
    "description": "Problem details, as RFC 9457 has them.",
    "type": "object",
    "properties": {
        "type": {"type": "string", "format": "uri"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": {"type": "string", "description": "The same as the end of the type; it is stable."},
    },
    "required": ["type", "title", "status", "detail", "code"],
}


@dataclass
class _Documented:
    """An application's function ``openapi``, and what it documents."""

    generate: Callable[[], dict[str, Any]]
    app: FastAPI
    problem_of: ProblemOf

    def __call__(self) -> dict[str, Any]:
        schema = self.generate()
        for found in locking_routes(self.app.routes):
            if not found.prefix:  # What is mounted has a schema of its own.
                _describe(schema, found, self.problem_of)
        return schema


def document(app: FastAPI, problem_of: ProblemOf) -> None:
    """Add the problem responses to the OpenAPI schema, at just the operations that lock."""
    if not isinstance(app.openapi, _Documented):
        app.openapi = _Documented(app.openapi, app, problem_of)  # type: ignore[method-assign]


def document_mounted(routes: Iterable[Any], problem_of: ProblemOf) -> None:
    """Add the problem responses to the schemas of mounted applications."""
    for route in each_route(routes):
        inner = getattr(route, "app", None)
        if isinstance(inner, FastAPI) and inner.routes is not routes:
            document(inner, problem_of)
            document_mounted(inner.routes, problem_of)


def _describe(schema: dict[str, Any], found: LockingRoute, problem_of: ProblemOf) -> None:
    errors: list[WeblockError] = [_BUSY, _DOWN, _RECOVERING, _LOST]
    if any(each.functions or any(key.names for key in each.templates) for each in found.locks):
        errors.append(_NO_KEY)
    if found.once:
        errors += _OF_ONCE
    by_status: dict[str, list[Problem]] = {}
    for problem in filter(None, map(problem_of, errors)):
        by_status.setdefault(str(int(problem.status)), []).append(problem)
    operations = schema.get("paths", {}).get(found.route.path_format, {})
    for method in getattr(found.route, "methods", None) or ():
        if (operation := operations.get(method.lower())) is None:
            continue
        schema.setdefault("components", {}).setdefault("schemas", {})[SCHEMA] = _SCHEMA
        for status, alike in by_status.items():
            response = operation.setdefault("responses", {}).setdefault(status, {})
            response.setdefault("description", "; ".join(each.title for each in alike))
            examples = {
                each.code: {"summary": each.title, "value": json.loads(each.body)} for each in alike
            }
            content = {"schema": {"$ref": f"#/components/schemas/{SCHEMA}"}, "examples": examples}
            response.setdefault("content", {}).setdefault(alike[0].media_type, content)
            for name in {name for each in alike for name in list(each.headers)}:
                header = {"schema": {"type": "string"}}
                response.setdefault("headers", {}).setdefault(name, header)
