"""What OpenAPI says of the operations that lock: the problems that they may answer."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable
from typing import Any, Final

from fastapi import FastAPI

from ...errors import (
    EngineRecovering,
    EngineUnavailable,
    InvalidKey,
    LeaseLost,
    LockTimeout,
    WeblockError,
)
from ...keys import KeyTemplate
from ..asgi import Problem
from .answers import Answers
from .routes import LockingRoute, each_route, locking_routes

SCHEMA: Final = "LockProblem"

_BUSY: Final = LockTimeout("key", wait=None)
_DOWN: Final = EngineUnavailable("engine", "it is down")
_RECOVERING: Final = EngineRecovering("engine", "it was started just now", retry_after=10.0)
_LOST: Final = LeaseLost("key", fence=0, reason="expired")
_NO_KEY: Final = InvalidKey("key")

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


def document(app: FastAPI, answers: Answers) -> None:
    """Has the OpenAPI schema of ``app`` tell of the problems, at just the operations that lock."""
    generate = app.openapi

    @functools.wraps(generate)
    def openapi() -> dict[str, Any]:
        schema = generate()
        for found in locking_routes(app.routes):
            if not found.prefix:  # What is mounted has a schema of its own.
                _describe(schema, found, answers)
        return schema

    app.openapi = openapi  # type: ignore[method-assign]


def document_mounted(routes: Iterable[Any], answers: Answers) -> None:
    """The same for the applications that are mounted."""
    for route in each_route(routes):
        inner = getattr(route, "app", None)
        if isinstance(inner, FastAPI) and inner.routes is not routes:
            document(inner, answers)
            document_mounted(inner.routes, answers)


def _describe(schema: dict[str, Any], found: LockingRoute, answers: Answers) -> None:
    errors: list[WeblockError] = [_BUSY, _DOWN, _RECOVERING, _LOST]
    if any(
        not isinstance(key, KeyTemplate) or key.names for each in found.locks for key in each.keys
    ):
        errors.append(_NO_KEY)
    problems = [answers.problem(error) for error in errors if answers.are_ours(error)]
    operations = schema.get("paths", {}).get(found.route.path_format, {})
    for method in getattr(found.route, "methods", None) or ():
        if operation := operations.get(method.lower()):
            _add(operation.setdefault("responses", {}), problems)
            schema.setdefault("components", {}).setdefault("schemas", {})[SCHEMA] = _SCHEMA


def _add(responses: dict[str, Any], problems: Iterable[Problem]) -> None:
    by_status: dict[str, list[Problem]] = {}
    for problem in problems:
        by_status.setdefault(str(int(problem.status)), []).append(problem)
    for status, alike in by_status.items():
        response = responses.setdefault(status, {})
        response.setdefault("description", "; ".join(each.title for each in alike))
        content = {
            "schema": {"$ref": f"#/components/schemas/{SCHEMA}"},
            "examples": {
                each.code: {"summary": each.title, "value": json.loads(each.body)} for each in alike
            },
        }
        response.setdefault("content", {}).setdefault(alike[0].media_type, content)
        for name in {name for each in alike for name in each.headers}:
            header = {"schema": {"type": "string"}}
            response.setdefault("headers", {}).setdefault(name, header)
