"""What a request's key is made of: path, query and headers, or a dependency of the user's."""

from contextlib import asynccontextmanager
from enum import Enum
from typing import Annotated
from uuid import UUID

import pytest
from fastapi import (
    APIRouter,
    Body,
    Cookie,
    Depends,
    FastAPI,
    Header,
    HTTPException,
    Query,
    WebSocket,
    routing,
)
from fastapi.security import HTTPBearer
from pydantic import (
    AfterValidator,
    AliasChoices,
    AliasPath,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
)

from tests.support.http import client_of
from weblock import AsyncLease, ConfigurationError
from weblock.contrib.fastapi import install, lock

from .wire import Exchange


class Cart(BaseModel):
    id: int
    items: list[int] = []


def no_lock_is_taken(locks, monkeypatch) -> None:
    async def fail(keys, *_how):
        pytest.fail(f"acquired {keys}")

    monkeypatch.setattr(locks._locker, "acquire", fail)


class TestTemplates:
    async def test_each_prefix_names_a_source(self, app):
        """Path parameters, query parameters and headers fill a key in, in any mixture."""
        key = "{path.shop}/{query.item}/{header.X-Tenant}"

        @app.post("/{shop}")
        async def change(lease: Annotated[AsyncLease, Depends(lock(key))]) -> str:
            return lease.key

        async with client_of(app, raises=True) as client:
            answer = await client.post("/a%20b?item=7&x=1", headers={"x-tenant": "c/d"})
        assert answer.json() == "a%20b/7/c%2Fd"

    async def test_values_that_are_one_to_the_endpoint_are_one_key(self, app):
        """A declared type converts, and a declared default stands in, for the key as for the endpoint."""

        @app.post("/items")
        async def change(
            lease: Annotated[AsyncLease, Depends(lock("{query.page}:{header.x-shop}"))],
            page: int = 1,
            x_shop: Annotated[int, Header()] = 9,
        ) -> tuple[str, int, int]:
            return lease.key, page, x_shop

        async with client_of(app, raises=True) as client:
            one = (await client.post("/items?page=07", headers={"x-shop": "08"})).json()
            other = (await client.post("/items")).json()
            wrong = await client.post("/items?page=x")
        assert (one, other) == (["7:8", 7, 8], ["1:9", 1, 9])
        assert wrong.status_code == 422
        assert wrong.json()["detail"][0]["loc"] == ["query", "page"]

    async def test_a_default_is_validated_as_for_the_endpoint(self, app):
        """A default that FastAPI validates is in the key what it is to the endpoint."""
        code = Annotated[str, Field(validate_default=True), AfterValidator(str.lower), Query()]

        @app.post("/")
        async def change(
            lease: Annotated[AsyncLease, Depends(lock("{query.code}"))], code: code = "ABC"
        ) -> tuple[str, str]:
            return lease.key, code

        async with client_of(app, raises=True) as client:
            assert (await client.post("/")).json() == ["abc", "abc"]
            assert (await client.post("/?code=ABC")).json() == ["abc", "abc"]

    async def test_a_header_with_an_alias_is_rejected_under_its_alias(self, app):
        """A header that does not convert is answered as without a lock, with the name it was declared by."""

        @app.post("/", dependencies=[Depends(lock("{header.x-shop}"))])
        async def change(shop: Annotated[int, Header(alias="X-Shop")]) -> None:
            pytest.fail("the handler ran")

        @app.post("/plain")
        async def plain(shop: Annotated[int, Header(alias="X-Shop")]) -> None:
            pytest.fail("the handler ran")

        async with client_of(app, raises=True) as client:
            for headers in ({}, {"x-shop": "x"}):
                locked = await client.post("/", headers=headers)
                without = await client.post("/plain", headers=headers)
                assert (locked.status_code, locked.json()) == (422, without.json())

    async def test_a_declared_parameter_that_is_missing_is_answered_as_ever(self, app):
        """What the endpoint requires it answers with 422, with or without a lock before it."""

        @app.post("/items", dependencies=[Depends(lock("{query.x}"))])
        async def change(x: int) -> None:
            pytest.fail("the handler ran")

        async with client_of(app, raises=True) as client:
            answer = await client.post("/items")
        assert answer.status_code == 422
        assert answer.json()["detail"][0] == {
            "type": "missing",
            "loc": ["query", "x"],
            "msg": "Field required",
            "input": None,
        }

    async def test_a_websocket_is_rejected_as_its_endpoint_rejects_it(self, app):
        """A value that does not convert closes the websocket with 1008, with or without a lock."""

        @app.websocket("/plain")
        async def plain(socket: WebSocket, x: int) -> None:
            pytest.fail("the handler ran")

        @app.websocket("/locked", dependencies=[Depends(lock("{query.x}"))])
        async def locked(socket: WebSocket, x: int) -> None:
            pytest.fail("the handler ran")

        sent = []
        for path in ("/plain", "/locked"):
            exchange = Exchange(kind="websocket", path=path)
            exchange.scope["query_string"] = b"x=one"
            exchange.says({"type": "websocket.connect"})
            await exchange.served_by(app)
            sent.append(exchange.sent)
        assert sent[0] == sent[1]
        assert sent[0][0]["code"] == 1008


class Report(BaseModel):
    year: int = 2024
    shop_id: int = Field(1, alias="shop")


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")


async def model(q: Annotated[Report, Query()]) -> None:
    """A parameter model."""


async def optional_model(q: Annotated[Report | None, Query()] = None) -> None:
    """One that may be missing."""


async def open_model(q: Annotated[Open, Query()]) -> None:
    """One that allows anything."""


async def choices(
    y: Annotated[int, Query(validation_alias=AliasChoices("year", "jahr"))] = 1,
) -> None:
    """Two names of one value."""


async def part_of_a_list(
    y: Annotated[int, Query(validation_alias=AliasPath("year", 0))] = 1,
) -> None:
    """The first of several."""


class TestParameterModels:
    """``Annotated[Model, Query()]``: FastAPI reads each field as a parameter, which a template does not follow."""

    @pytest.mark.parametrize("place", ["endpoint", "dependency"])
    @pytest.mark.parametrize(
        "declares", [model, optional_model, open_model, choices, part_of_a_list]
    )
    async def test_what_is_sent_under_several_names_is_an_error(self, app, declares, place):
        """The application does not start, and is told to write a key function."""
        needs = [Depends(lock("report:{query.year}"))]
        try:
            if place == "endpoint":
                app.post("/", dependencies=needs)(declares)
            else:
                app.post("/", dependencies=[*needs, Depends(declares)])(plain)
        except AssertionError:
            pytest.skip("this FastAPI has no optional parameter models")
        with pytest.raises(
            ConfigurationError,
            match=rf"needs one value for \{{query.year\}}.*, but {declares.__name__} declares [qy]: .*"
            " Write a key function that declares it so",
        ):
            await started(app)

    @pytest.mark.parametrize("query", ["", "?year=2024", "?year=02024"])
    async def test_a_key_function_has_the_model(self, app, query):
        """It is given what the endpoint is given."""

        def report_key(q: Annotated[Report, Query()]) -> str:
            return f"report:{q.year}"

        @app.post("/")
        async def change(
            q: Annotated[Report, Query()], lease: Annotated[AsyncLease, Depends(lock(report_key))]
        ) -> str:
            return lease.key

        assert (await started(app)).last == "lifespan.shutdown.complete"
        async with client_of(app, raises=True) as client:
            assert (await client.post(f"/{query}")).json() == "report:2024"


async def plain() -> None:
    """An endpoint that declares nothing."""


@pytest.mark.parametrize("first", ["lock", "authentication"])
async def test_a_lock_before_authentication_is_warned_of(app, caplog, first):
    """When the application starts: anonymous requests would fill the queue, and get 409 instead of 401."""
    both = [Depends(lock("items")), Depends(HTTPBearer())]
    app.post("/", dependencies=both if first == "lock" else both[::-1])(plain)
    await started(app)
    text = "POST /: lock('items') is acquired before authentication"
    assert (text in caplog.text) == (first == "lock")


class TestNames:
    async def test_a_header_may_be_named_with_underscores(self, app):
        """``{header.x_shop}`` is the header ``X-Shop`` that the endpoint declares as ``x_shop``."""

        @app.post("/")
        async def change(
            lease: Annotated[AsyncLease, Depends(lock("{header.x_shop}"))],
            x_shop: Annotated[int, Header()] = 9,
        ) -> tuple[str, int]:
            return lease.key, x_shop

        async with client_of(app, raises=True) as client:
            assert (await client.post("/", headers={"x-shop": "07"})).json() == ["7", 7]

    async def test_the_host_is_a_name_under_any_alias(self, app):
        """``Host`` names the host alone, also where the declaration writes it in upper case."""

        @app.post("/")
        async def change(
            host: Annotated[str, Header(alias="Host")],
            lease: Annotated[AsyncLease, Depends(lock("{header.host}"))],
        ) -> str:
            return lease.key

        async with client_of(app, raises=True) as client:
            for host in ("Shop.example:80", "shop.example."):
                assert (await client.post("/", headers={"host": host})).json() == "shop.example"

    async def test_an_alias_that_only_validation_has(self, app):
        """A key has what FastAPI reads: an old one reads the name of the parameter."""

        @app.post("/")
        async def change(
            year: Annotated[int, Query(validation_alias="jahr")],
            lease: Annotated[AsyncLease, Depends(lock("{query.year}"))],
        ) -> tuple[str, int]:
            return lease.key, year

        try:
            await started(app)
        except ConfigurationError as error:
            assert "write {query.jahr}" in str(error)  # noqa: PT017
            return
        async with client_of(app, raises=True) as client:
            assert (await client.post("/?year=07&jahr=08")).json() == ["7", 7]


class TestIncludedRouters:
    """What ``include_router`` adds to a route declares values as the route itself does."""

    async def test_a_parameter_of_the_prefix_is_converted(self, app):
        """``/carts/07`` is the cart 7, also where only ``include_router`` names the parameter."""
        router = APIRouter()

        @router.post("/lines")
        async def change(
            cart_id: int, lease: Annotated[AsyncLease, Depends(lock("cart:{cart_id}"))]
        ) -> str:
            return lease.key

        app.include_router(router, prefix="/carts/{cart_id}")
        async with client_of(app, raises=True) as client:
            assert (await client.post("/carts/07/lines")).json() == "cart:7"

    async def test_an_optional_value_that_is_missing_has_a_key(self, app):
        """A request without it is valid to the endpoint, and its key is that of no value."""

        @app.post("/")
        async def change(
            lease: Annotated[AsyncLease, Depends(lock("{query.year}:{query.name}:{cookie.shop}"))],
            year: int | None = None,
            name: str | None = None,
            shop: Annotated[int | None, Cookie()] = None,
        ) -> str:
            return lease.key

        async with client_of(app, raises=True) as client:
            assert (await client.post("/")).json() == "%none:%none:%none"
            answer = await client.post("/?name=%25none&year=02", headers={"cookie": 'shop="07"'})
            assert answer.json() == "2:%25none:7"

    async def test_a_router_may_be_included_twice(self, app):
        """Each inclusion has the declarations of its own dependencies."""
        router = APIRouter()

        def number(value: int) -> int:
            return value

        def text(value: str) -> str:
            return value

        @router.post("/")
        async def change(lease: Annotated[AsyncLease, Depends(lock("{query.value}"))]) -> str:
            return lease.key

        app.include_router(router, prefix="/number", dependencies=[Depends(number)])
        app.include_router(router, prefix="/text", dependencies=[Depends(text)])
        async with client_of(app, raises=True) as client:
            for _ in range(2):
                assert (await client.post("/number/?value=07")).json() == "7"
                assert (await client.post("/text/?value=07")).json() == "07"


class TestFunctions:
    async def test_a_function_reads_the_body_that_the_endpoint_reads(self, app):
        """A key function is a dependency: the same body, with the same name, is both theirs."""

        async def cart_key(cart: Cart) -> str:
            return f"cart:{cart.id}"

        @app.post("/carts")
        async def change(
            cart: Cart, lease: Annotated[AsyncLease, Depends(lock(cart_key))]
        ) -> list[str]:
            return [lease.key, str(cart.items)]

        async with client_of(app, raises=True) as client:
            answer = await client.post("/carts", json={"id": "7", "items": [1]})
        assert answer.json() == ["cart:7", "[1]"]

    @pytest.mark.parametrize("body", [{"id": "seven"}, {}, b"{", None])
    async def test_a_bad_body_takes_no_lock(self, app, locks, monkeypatch, body):
        """A body that its key function cannot read is a 422 before anything is acquired."""

        def cart_key(cart: Cart) -> str:
            return f"cart:{cart.id}"

        @app.post("/carts", dependencies=[Depends(lock(cart_key))])
        async def change(cart: Cart) -> None:
            pytest.fail("the handler ran")

        no_lock_is_taken(locks, monkeypatch)
        content = {"content": body} if isinstance(body, bytes) else {"json": body}
        async with client_of(app, raises=True) as client:
            answer = await client.post(
                "/carts", **content, headers={"content-type": "application/json"}
            )
        assert answer.status_code == 422

    async def test_a_function_depends_on_others(self, app, locks, monkeypatch):
        """``Depends`` works in it, with overrides; an error in what it depends on takes no lock."""

        def user(x_user: Annotated[str | None, Header()] = None) -> str:
            if x_user is None:
                raise HTTPException(401)
            return x_user

        class UserKey:
            def __call__(self, user: Annotated[str, Depends(user)], kind: str = "cart") -> str:
                return f"{kind}:{user}"

        user_key = UserKey()

        @app.post("/")
        async def change(lease: Annotated[AsyncLease, Depends(lock(user_key))]) -> str:
            return lease.key

        async with client_of(app, raises=True) as client:
            answer = await client.post("/?kind=list", headers={"x-user": "ann"})
            assert answer.json() == "list:ann"
            app.dependency_overrides[user] = lambda: "bob"
            assert (await client.post("/")).json() == "cart:bob"
            app.dependency_overrides.clear()
            no_lock_is_taken(locks, monkeypatch)
            assert (await client.post("/")).status_code == 401

    async def test_several_keys_of_several_sources_are_one_lease(self, app, locks):
        """Templates and functions mix, and a function may give several keys: all or none."""

        def accounts(source: Annotated[int, Body()], target: Annotated[int, Body()]) -> list[str]:
            return [f"account:{source}", f"account:{target}"]

        def nothing_more() -> tuple[str, ...]:
            return ("audit",)

        @app.post("/{bank}")
        async def transfer(
            lease: Annotated[AsyncLease, Depends(lock("bank:{bank}", accounts, nothing_more))],
        ) -> tuple[str, ...]:
            return lease.keys

        async with client_of(app, raises=True) as client:
            answer = await client.post("/b", json={"source": 2, "target": 1})
            assert answer.json() == ["account:1", "account:2", "audit", "bank:b"]
            async with locks.hold("account:2"):
                app.dependency_overrides[accounts] = lambda: "account:1"
                assert (await client.post("/b", json={"source": 2, "target": 1})).status_code == 200

    @pytest.mark.parametrize("made", [7, ["a", None], ["a", 7], b"key"])
    async def test_what_is_no_key_is_an_error_of_the_application(self, app, made):
        """A function that returns no string raises, naming itself and what it returned."""

        def cart_key():
            return made

        @app.post("/items", dependencies=[Depends(lock(cart_key))])
        async def change() -> None:
            pytest.fail("the handler ran")

        with pytest.raises(ConfigurationError, match=r"cart_key returned .*: a key is a string"):
            await Exchange().served_by(app)


async def started(app: FastAPI) -> Exchange:
    lifespan = Exchange(kind="lifespan")
    lifespan.says({"type": "lifespan.startup"})
    lifespan.says({"type": "lifespan.shutdown"})
    await lifespan.served_by(app)
    return lifespan


class TestAtTheStart:
    @pytest.mark.parametrize(
        ("where", "path"),
        [
            ("app", "POST /items/{item_id}"),
            ("router", "POST /shops/{shop}/items/{item_id}"),
            ("mounted", "POST /sub/{tenant}/items/{item_id}"),
            ("mounted router", "POST /sub/{tenant}/shops/{shop}/items/{item_id}"),
        ],
    )
    async def test_a_key_that_no_request_can_fill_in_is_an_error(self, app, where, path):
        """The application does not start, and is told route, template and what there is."""
        sub, router = FastAPI(), APIRouter(prefix="/shops/{shop}")
        target = router if "router" in where else sub if where == "mounted" else app

        @target.post("/items/{item_id}", dependencies=[Depends(lock("a", "item:{id}"))])
        async def change() -> None:
            pytest.fail("the handler ran")

        (sub if "mounted" in where else app).include_router(router)
        app.mount("/sub/{tenant}", sub)
        lifespan = Exchange(kind="lifespan")
        lifespan.says({"type": "lifespan.startup"})
        with pytest.raises(ConfigurationError, match=r"'id'; available: .*'item_id'"):
            await lifespan.served_by(app)
        assert lifespan.last == "lifespan.startup.failed"
        assert lifespan.sent[0]["message"].startswith(f"{path}: lock('item:{{id}}')")

    async def test_keys_that_can_be_filled_in_start(self, app):
        """Parameters of mounts and prefixes count, and what only a request shows is left to it."""
        sub = FastAPI()
        router = APIRouter(prefix="/{shop}", dependencies=[Depends(lock("{tenant}:{shop}"))])

        @router.post("/{item}", dependencies=[Depends(lock("{item}", "{query.x}", lambda: "k"))])
        async def change() -> None: ...

        @router.websocket("/talk")
        async def talk(socket: WebSocket) -> None: ...

        @app.get("/")
        async def look() -> None: ...

        sub.include_router(router)
        app.mount("/sub/{tenant}", sub)
        assert (await started(app)).last == "lifespan.shutdown.complete"
        async with client_of(app, raises=True) as client:
            assert (await client.post("/sub/t/s/i?x=1")).status_code == 200

    @pytest.mark.parametrize(
        ("path", "key", "warned"),
        [
            ("/{item_id}", "item:{item_id}", True),
            ("/{item_id}", "item:{item_id:int}", False),
            ("/{item_id}", "item:{item_id:str}", False),
            ("/{item_id:int}", "item:{item_id}", False),
            ("/typed/{item_id}", "item:{item_id}", False),
            ("/{item_id}", "item:{query.item_id}", False),
        ],
    )
    async def test_a_key_of_a_spelling_is_warned_of(self, app, path, key, warned, caplog):
        """Where nothing says what type a part of the path has, one row could have several locks."""

        async def untyped() -> None: ...

        async def typed(item_id: int) -> None: ...

        endpoint = typed if "typed" in path else untyped
        app.post(path, dependencies=[Depends(lock(key))])(endpoint)
        with caplog.at_level("WARNING", "weblock"):
            assert (await started(app)).last == "lifespan.shutdown.complete"
        assert ("as the URL spells it" in caplog.text) == warned
        assert ("{item_id:int}" in caplog.text) == warned

    async def test_a_route_that_the_start_adds_is_checked(self):
        """A lifespan may include routers, and what it has opened is closed when one cannot work."""
        closed = []

        @asynccontextmanager
        async def lifespan(app):
            app.post("/", dependencies=[Depends(lock("item:{id}"))])(lambda: None)
            try:
                yield
            finally:
                closed.append(True)

        app = FastAPI(lifespan=lifespan)
        install(app, "memory://")
        with pytest.raises(ConfigurationError, match=r"'id'; available: none"):
            await started(app)
        assert closed == [True]

    async def test_a_key_function_of_another_framework_is_an_error(self, app):
        """FastAPI takes a parameter without a type for a query parameter, which is missing."""
        app.post("/{a}", dependencies=[Depends(lock(lambda a, b="": a + b))])(lambda: None)
        app.post("/", dependencies=[Depends(lock(lambda request: "x"))])(lambda: None)
        with pytest.raises(ConfigurationError, match=r"POST /: .*<lambda> has 'request' without a"):
            await started(app)

    @pytest.mark.parametrize(
        "kind",
        [
            Annotated[list[int], Query()],
            Annotated[set[int] | None, Query()],
            Annotated[int, Query(default_factory=iter(range(9)).__next__)],
        ],
        ids=["list", "optional set", "default factory"],
    )
    async def test_a_value_that_is_not_one_is_an_error(self, app, kind):
        """A list has no text of its own, and a factory makes one value for the key and another for the endpoint."""

        @app.post("/", dependencies=[Depends(lock("report:{query.year}"))])
        async def change(year: kind) -> None: ...

        with pytest.raises(
            ConfigurationError,
            match=r"needs one value for .*change declares year: .* key function",
        ):
            await started(app)

    async def test_routes_of_included_routers_are_checked_without_fastapis_walk(
        self, app, monkeypatch
    ):
        """FastAPI 0.137.0 and 0.137.1 keep included routers apart, and have no function that walks them."""
        monkeypatch.delattr(routing, "iter_route_contexts", raising=False)
        router = APIRouter()

        @router.websocket("/live", dependencies=[Depends(lock("item:{id}"))])
        async def live(socket: WebSocket) -> None: ...

        app.include_router(router, prefix="/items/{item_id}")
        with pytest.raises(ConfigurationError, match=r"websocket /items/\{item_id\}/live: lock"):
            await started(app)

    async def test_a_server_without_lifespan_is_told_by_the_first_request(self, app):
        """Then every request raises until the key is mended, not just those of the route."""

        @app.websocket("/items/{item_id}")
        async def change(socket: WebSocket, _: Annotated[None, Depends(lock("item:{id}"))]) -> None:
            pytest.fail("the handler ran")

        for _ in range(2):
            with pytest.raises(ConfigurationError, match=r"websocket /items/\{item_id\}"):
                await Exchange("GET", "/docs").served_by(app)


class Kind(Enum):
    BOOK = "book"
    GAME = "game"


Lower = Annotated[str, StringConstraints(to_lower=True)]
Short = Annotated[str, StringConstraints(max_length=9)]


def declares(kind, *default):
    """A dependency that declares ``value``, and requires it unless there is a default."""

    def needs(value: kind) -> object:
        return value

    needs.__defaults__ = default
    return needs


def named(name: str, dependency):
    dependency.__qualname__ = name
    return Depends(dependency)


class TestSeveralDeclarations:
    """Several dependencies of an endpoint may declare a value, and any of them may do the work."""

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            ([str], [int]),
            ([str], [UUID]),
            ([str | None, None], [int]),
            ([str], [Lower]),
            ([Lower], [Annotated[str, AfterValidator(str.lower)]]),
            ([str], [Kind]),
            ([int], [float]),
            ([int], [str | int]),
            ([int | float], [float | int]),
            ([Annotated[int, Field(lt=5)] | float], [int | float]),
            ([Annotated[list[int], Query()]], [int]),
            ([int, 1], [int, 2]),
            ([int, 1], [int, True]),
            ([int], [int, 1]),
            ([int], [int | None, None]),
            ([str], [Short]),
            ([int], [Annotated[int, Query(ge=1)]]),
            ([Annotated[int, Query(ge=1)]], [Annotated[int, Query(ge=2)]]),
        ],
    )
    @pytest.mark.parametrize("order", [1, -1])
    async def test_those_that_disagree_are_an_error(self, app, one, other, order):
        """If one thing could have two keys, the application does not start, and is told both places."""
        needs = [named("audit", declares(*one)), named("work", declares(*other))][::order]

        @app.post("/", dependencies=[*needs, Depends(lock("{query.value}"))])
        async def change() -> None: ...

        with pytest.raises(ConfigurationError) as caught:
            await started(app)
        message = str(caught.value)
        assert message.startswith("POST /: lock('{query.value}') cannot tell which {query.value}")
        for place in (
            "audit declares value: ",
            "work declares value: ",
            "or give lock() a key function",
        ):
            assert place in message

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            ([int], [int]),
            ([int, 1], [int, 1]),
            ([int | None, None], [int | None, None]),
            ([Short], [Short]),
            ([Lower], [Lower]),
            ([Annotated[int, Query(ge=1)]], [Annotated[int, Query(ge=1)]]),
            ([Annotated[int, Query(description="of an audit")]], [int]),
        ],
    )
    @pytest.mark.parametrize("order", [1, -1])
    async def test_those_that_are_equal_are_fine(self, app, one, other, order):
        """A description makes no other key; type, constraints, default and alias are the same."""
        needs = [Depends(declares(*one)), Depends(declares(*other))][::order]

        @app.post("/", dependencies=[*needs, Depends(lock("{query.value}"))])
        async def change() -> None: ...

        assert (await started(app)).last == "lifespan.shutdown.complete"

    @pytest.mark.parametrize(
        ("kind", "converter", "spellings"),
        [
            (int, "int", ["7", "07", "7.0"]),
            (UUID, "uuid", [f"{UUID(int=10)}", f"{UUID(int=10)}".upper()]),
        ],
    )
    @pytest.mark.parametrize("order", [1, -1])
    async def test_a_converter_in_the_key_makes_them_agree(
        self, app, kind, converter, spellings, order
    ):
        """Where one declares the text, the error names the template that has one key for all spellings."""
        needs = [Depends(declares(str)), Depends(declares(kind))][::order]
        other, key = FastAPI(), f"{{query.value:{converter}}}"
        install(other, "memory://")

        @other.post("/", dependencies=[*needs, Depends(lock("{query.value}"))])
        async def refused() -> None: ...

        with pytest.raises(ConfigurationError) as caught:
            await started(other)
        assert f"{key} " in str(caught.value)

        @app.post("/", dependencies=needs)
        async def change(lease: Annotated[AsyncLease, Depends(lock(key))]) -> str:
            return lease.key

        assert (await started(app)).last == "lifespan.shutdown.complete"
        async with client_of(app, raises=True) as client:
            answers = [await client.post("/", params={"value": each}) for each in spellings]
        assert {each.status_code for each in answers} == {200}
        assert len({each.json() for each in answers}) == 1

    @pytest.mark.parametrize(
        "kind",
        [Annotated[int, AfterValidator(abs)], Annotated[int, Query(ge=1)], float],
        ids=["validator", "constraint", "float"],
    )
    async def test_a_converter_in_the_key_excuses_nothing_else(self, app, kind):
        """The text counts as the type in the key; what has another type or constraints does not."""
        needs = [
            Depends(declares(str)),
            Depends(declares(kind)),
            Depends(lock("{query.value:int}")),
        ]

        @app.post("/", dependencies=needs)
        async def change() -> None: ...

        with pytest.raises(ConfigurationError, match="cannot tell which"):
            await started(app)

    async def test_what_a_key_function_declares_counts_too(self, app):
        """A key has the type that a key function declares, if the endpoint declares none."""

        def made(shop_id: int) -> str:
            return "made"

        @app.post("/{shop_id}")
        async def change(
            lease: Annotated[AsyncLease, Depends(lock("{shop_id}", made))],
        ) -> str:
            return lease.keys[0]

        assert (await started(app)).last == "lifespan.shutdown.complete"
        async with client_of(app, raises=True) as client:
            assert (await client.post("/07")).json() == "7"

        @app.post("/other/{shop_id}")
        async def other(
            shop_id: str, lease: Annotated[AsyncLease, Depends(lock("{shop_id}", made))]
        ) -> None: ...

        install(again := FastAPI(), "memory://")
        again.include_router(app.router)
        with pytest.raises(
            ConfigurationError, match=r"other declares shop_id: str, and .*made declares"
        ):
            await started(again)

    async def test_a_path_parameter_of_a_route_that_is_added_later_is_missed(self, app):
        """A request that nothing has checked gets an error of the application, and not a 400."""
        assert (await started(app)).last == "lifespan.shutdown.complete"

        @app.post("/{value}", dependencies=[Depends(lock("{item}"))])
        async def change(value: int) -> None:
            pytest.fail("the handler ran")

        async with client_of(app, raises=True) as client:
            with pytest.raises(
                ConfigurationError, match="needs the path parameter 'item'; available: "
            ):
                await client.post("/7")
