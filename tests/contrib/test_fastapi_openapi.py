"""What the OpenAPI schema says of operations that lock, and of no others."""

import dataclasses
import json
from typing import Annotated

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse

from tests.support.http import client_of
from weblock import LockTimeout
from weblock.contrib.fastapi import install, lock

PROBLEM = {"$ref": "#/components/schemas/LockProblem"}
KIND = "application/problem+json"


def responses(app: FastAPI, path: str, method: str = "post") -> dict:
    return app.openapi()["paths"][path][method]["responses"]


def test_just_what_locks_tells_of_problems(app):
    """At endpoint, router, ``include_router``, parameter and sub-dependency: 409 and 503."""

    def guarded(lease: Annotated[object, Depends(lock("x"))]) -> None: ...

    router = APIRouter(dependencies=[Depends(lock("x"))])
    plain = APIRouter()

    @app.post("/endpoint", dependencies=[Depends(lock("x"))])
    async def at_endpoint() -> None: ...

    @router.post("/router")
    async def at_router() -> None: ...

    @plain.post("/included")
    async def at_included() -> None: ...

    @app.post("/sub")
    async def at_sub(_: Annotated[None, Depends(guarded)]) -> None: ...

    @app.get("/endpoint")
    async def nowhere() -> None: ...

    app.include_router(router)
    app.include_router(plain, prefix="/v1", dependencies=[Depends(lock("x"))])
    for path in ("/endpoint", "/router", "/v1/included", "/sub"):
        told = responses(app, path)
        assert set(told) == {"200", "409", "503"}
        assert told["409"]["content"][KIND]["schema"] == PROBLEM
        assert set(told["409"]["content"][KIND]["examples"]) == {"lock_timeout"}
        assert set(told["503"]["content"][KIND]["examples"]) == {
            *("engine_unavailable", "engine_recovering", "lease_lost")
        }
        assert set(told["409"]["headers"]) == {"Retry-After"}
        assert told["409"]["description"] == "The resource is busy"
        assert (
            "unavailable; The lock service is recovering; The lock was lost"
            in told["503"]["description"]
        )
    assert set(responses(app, "/endpoint", "get")) == {"200"}
    schema = app.openapi()["components"]["schemas"]["LockProblem"]
    assert "code" in schema["required"]
    assert app.openapi() == json.loads(json.dumps(app.openapi()))


def test_an_application_that_does_not_lock_has_no_problem(app):
    """Its schema is as it was."""

    @app.post("/items")
    async def create() -> None: ...

    assert "LockProblem" not in json.dumps(app.openapi())


def test_keys_from_the_request_may_be_refused(app):
    """400 is told where a template or a function makes the key of what the client sent."""

    def key() -> str:
        return "key"

    @app.post("/{item}", dependencies=[Depends(lock("{item}"))])
    async def template() -> None: ...

    @app.post("/", dependencies=[Depends(lock(key))])
    async def function() -> None: ...

    assert "400" in responses(app, "/{item}")
    assert "400" in responses(app, "/")


def test_what_the_user_says_stays(app):
    """A response that the endpoint declares keeps its words and its own content."""
    own = {"description": "mine", "content": {"text/plain": {}}}

    @app.post("/items", dependencies=[Depends(lock("x"))], responses={409: own})
    async def create() -> None: ...

    told = responses(app, "/items")["409"]
    assert told["description"] == "mine"
    assert set(told["content"]) == {"text/plain", KIND}


async def test_another_status_is_told_and_answered(locks):
    """``rewrite`` changes status, headers and body, in the schema as in the answer."""

    def rewrite(problem, error):
        if not isinstance(error, LockTimeout):
            return problem
        return dataclasses.replace(
            problem,
            status=423,
            headers={**problem.headers, "X-Busy": "yes"},
            more={"type": "https://shop.example/busy", "key": error.key},
        )

    app = FastAPI()
    install(app, locks, rewrite=rewrite)

    @app.post("/items", dependencies=[Depends(lock("x", wait=0))])
    async def create() -> None: ...

    assert set(responses(app, "/items")) == {"200", "423", "503"}
    assert set(responses(app, "/items")["423"]["headers"]) == {"Retry-After", "X-Busy"}
    async with locks.hold("x"), client_of(app, raises=True) as client:
        answer = await client.post("/items")
    assert answer.status_code == 423
    assert answer.headers["x-busy"] == "yes"
    assert answer.json()["type"] == "https://shop.example/busy"
    assert answer.json()["key"] == "x"


def test_an_exception_handler_of_the_users_is_not_spoken_for(app):
    """Where the user answers an error, nothing is known of the answer."""

    @app.exception_handler(LockTimeout)
    async def busy(request: Request, error: LockTimeout) -> JSONResponse: ...

    @app.post("/items", dependencies=[Depends(lock("x"))])
    async def create() -> None: ...

    assert set(responses(app, "/items")) == {"200", "503"}


async def test_a_custom_schema_tells_of_problems(app):
    """``app.openapi = custom`` after ``install``, as FastAPI documents it, keeps the responses."""
    app.post("/items", dependencies=[Depends(lock("x"))])(lambda: None)
    app.openapi = lambda: get_openapi(title="Shop", version="2", routes=app.routes)
    async with client_of(app, raises=True) as client:
        schema = (await client.get("/openapi.json")).json()
    assert schema["info"]["title"] == "Shop"
    assert set(schema["paths"]["/items"]["post"]["responses"]) == {"200", "409", "503"}


async def test_what_is_mounted_tells_in_its_own_schema(app):
    """Each application has a page of its own, and those that are mounted are not forgotten."""
    sub, deeper = FastAPI(), FastAPI()
    for each in (sub, deeper):
        each.post("/items", dependencies=[Depends(lock("x"))])(lambda: None)
    app.get("/items")(lambda: None)
    sub.mount("/deeper", deeper)
    app.mount("/sub", sub)
    async with client_of(app, raises=True) as client:
        for path, told in (("", False), ("/sub", True), ("/sub/deeper", True)):
            schema = (await client.get(f"{path}/openapi.json")).text
            assert ('"409"' in schema) is told


async def test_what_is_mounted_tells_what_its_own_locks_respond():
    """``install`` of a mounted application decides what its schema says, also after that of the outer one."""
    outer, inner = FastAPI(), FastAPI()
    inner.post("/items", dependencies=[Depends(lock("x"))])(lambda: None)
    outer.mount("/inner", inner)
    install(outer, "memory://")
    install(
        inner, "memory://", rewrite=lambda problem, _error: dataclasses.replace(problem, status=423)
    )
    async with client_of(outer, raises=True) as client:
        schema = (await client.get("/inner/openapi.json")).json()
    assert "423" in schema["paths"]["/items"]["post"]["responses"]
