"""What ``@lock`` may be told, and what it answers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.test import AsyncClient, Client, RequestFactory
from django.views import View
from rest_framework.response import Response
from rest_framework.views import APIView

from tests.servers.ports import free_port
from tests.support.waiting import PATIENCE
from weblock import ConfigurationError, Observer, observe
from weblock.contrib.django import async_lease_of, async_locks, lease_of, lock, locks
from weblock.events import Acquired

from .requests import fetch


def keys_of(request: Any, **_url: object) -> HttpResponse:
    return HttpResponse(" ".join(request.weblock.keys))


def of_user(request: HttpRequest) -> str:
    return f"user:{request.headers['X-User']}"


async def of_two_users(request: HttpRequest) -> list[str]:
    return ["user:2", "user:1"]


@pytest.fixture(autouse=True)
def bare(settings: Any) -> None:
    """Nothing but our middleware: these tests need no database."""
    settings.MIDDLEWARE = settings.MIDDLEWARE[-1:]


@pytest.mark.parametrize(
    ("keys", "held"),
    [
        (["item:{pk}"], "item:7"),
        (["{path.pk}"], "7"),
        (["{query.color}"], "red"),
        (["{header.x-user}"], "ada%20l"),
        ([of_user], "user:ada l"),
        ([of_two_users], "user:1 user:2"),
        (["b", "a:{pk}", of_user], "a:7 b user:ada l"),
    ],
)
async def test_keys_are_made_of_the_request(keys: Any, held: str, serve: Any) -> None:
    """Of its URL, its query, its headers, or by a function of it; in WSGI and ASGI."""
    serve(item__pk=lock(*keys)(keys_of))
    url = "/item/7?color=red"
    assert fetch_in_thread(url, **{"X-User": "ada l"}).content.decode() == held
    response = await AsyncClient().post(url, headers={"X-User": "ada l"})
    assert response.content.decode() == held


def fetch_in_thread(url: str, method: str = "post", **headers: Any) -> Any:
    """As a client of a WSGI server would: not in this thread, which may hold a lock or run a loop."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: fetch(url, method, **headers)).result(PATIENCE)


def test_head_is_served_under_the_lock_of_get(serve: Any) -> None:
    """A class that has no method of its own for HEAD locks as its GET does."""

    class Items(APIView):
        @lock("items", wait=0)
        def get(self, request: Any) -> Response:
            return Response()

    serve(items=Items.as_view())
    with locks["default"].hold("items"):
        response = fetch_in_thread("/items", "head")
        assert response.status_code == 409


def test_a_key_that_the_url_does_not_give_is_our_mistake(serve: Any) -> None:
    """A template that names what is not there is an error of the server, and says so."""
    serve(items=lock("item:{pk}")(keys_of))
    response = fetch("/items")
    assert response.status_code == 500
    assert "needs the view's argument 'pk'" in str(response.exc_info[1])


@pytest.mark.parametrize("made", [7, [None], [7], b"key"])
async def test_a_key_function_that_makes_no_key_is_named(made: Any, serve: Any) -> None:
    """What it gave, and what is wanted, stands in the error; the requester is not blamed."""

    def of_cart(request: HttpRequest) -> Any:
        return made

    serve(items=lock(of_cart)(keys_of))
    client = AsyncClient(raise_request_exception=False)
    for response in (fetch_in_thread("/items"), await client.post("/items")):
        assert response.status_code == 500
        assert isinstance(response.exc_info[1], ConfigurationError)
        assert f"of_cart returned {made!r}: a key is a string" in str(response.exc_info[1])


@pytest.mark.parametrize(
    ("keys", "options", "error"),
    [
        ([], {}, TypeError),
        (["item:{pk"], {}, ConfigurationError),
        (["{session.id}"], {}, ConfigurationError),
        (["item"], {"ttl": "soon"}, ConfigurationError),
        (["item"], {"timeout": 5}, TypeError),
        (["item"], {"guard": "both"}, ConfigurationError),
        (["item"], {"guard": "database", "limit": 2}, ConfigurationError),
        (["item"], {"guard": "database", "shared": True}, ConfigurationError),
    ],
)
def test_what_cannot_work_is_refused_where_it_stands(keys: Any, options: Any, error: Any) -> None:
    """A mistake in the decorator is found when the module is imported."""
    with pytest.raises(error):
        lock(*keys, **options)


class WithoutKey(View):
    """``@lock`` without its parentheses, on a method."""

    post = lock(keys_of)


@pytest.mark.parametrize("target", ["/items", "/item/7", "/method/7"])
def test_a_lock_without_a_key_is_refused(target: str, serve: Any) -> None:
    """``@lock`` without its parentheses would take the view for a function that makes keys."""
    serve(items=lock(keys_of), item__pk=lock(keys_of), method__pk=WithoutKey.as_view())
    with pytest.raises(ConfigurationError, match=r'without a key.*@lock\("create_item"\)'):
        Client().post(target)


def test_a_class_is_refused() -> None:
    """A class is decorated by method_decorator, which the error names."""
    with pytest.raises(TypeError, match="method_decorator"):
        lock("item")(APIView)


def test_a_function_that_is_no_view_is_refused() -> None:
    """Without a request there is nothing to answer: the decorator says what to use instead."""
    with pytest.raises(TypeError, match="hold their locks with"):
        lock("item")(lambda number: number)(1)


def test_options_go_before_settings(serve: Any, settings: Any, url: str) -> None:
    """The alias gives the engine and the defaults, the decorator what is special."""
    seen = []

    @lock("items", alias="brief", ttl=60, wait=0)
    def view(request: Any) -> HttpResponse:
        seen.append((request.weblock.remaining() > 50, locks["brief"].inspect("items").holder))  # type: ignore[union-attr]
        return HttpResponse()

    serve(items=view)
    settings.WEBLOCK = {"default": {"URL": url}, "brief": {"URL": url, "NAMESPACE": "brief"}}
    with locks["default"].hold("items"):
        assert fetch("/items").status_code == 200
    ((long, holder),) = seen
    assert long
    assert holder.endswith(" POST /items")


def busy(request: HttpRequest, error: Exception) -> HttpResponse:
    return HttpResponse(f"{request.path}: {error}", status=429)


async def async_busy(request: HttpRequest, error: Exception) -> HttpResponse:
    return busy(request, error)


@pytest.mark.parametrize("busy_view", [busy, async_busy])
@pytest.mark.parametrize("where", ["decorator", "settings", "path"])
@pytest.mark.parametrize("middleware", [True, False], ids=["middleware", "no middleware"])
async def test_the_project_may_answer_who_finds_it_busy(
    middleware: bool, where: str, busy_view: Any, serve: Any, settings: Any
) -> None:
    """By a function for one view, or for all of an alias, in WSGI and ASGI."""
    settings.MIDDLEWARE = settings.MIDDLEWARE if middleware else []
    given = busy_view if where == "decorator" else None
    serve(items=lock("items", wait=0, busy_view=given)(keys_of))
    if where != "decorator":
        named = busy_view if where == "settings" else f"{__name__}.{busy_view.__name__}"
        settings.WEBLOCK = {"default": {**settings.WEBLOCK["default"], "BUSY_VIEW": named}}
    async with async_locks["default"].hold("items"):
        assert fetch_in_thread("/items").status_code == 429
        response = await AsyncClient().post("/items")
    assert response.status_code == 429
    assert b"/items: lock 'items' was not acquired" in response.content


@pytest.fixture
def dead() -> dict[str, Any]:
    """Settings of an engine that does not answer."""
    return {"URL": f"redis://127.0.0.1:{free_port()}", "WAIT": 0}


@pytest.mark.parametrize("where", ["decorator", "settings"])
@pytest.mark.parametrize("middleware", [True, False], ids=["middleware", "no middleware"])
async def test_an_engine_that_is_down_lets_pass_where_it_may(
    middleware: bool, where: str, serve: Any, dead: Any, settings: Any
) -> None:
    """With on_unavailable="open", the view runs without a lease, and can see that it does."""
    settings.MIDDLEWARE = settings.MIDDLEWARE if middleware else []
    given: Any = {"on_unavailable": "open"} if where == "decorator" else {}

    @lock("items", **given)
    def view(request: Any) -> HttpResponse:
        return HttpResponse(f"{request.weblock.held} {request.weblock.fence}")

    serve(items=view)
    if where == "settings":
        dead["ON_UNAVAILABLE"] = "open"
    settings.WEBLOCK = {"default": dead}
    for response in (fetch_in_thread("/items"), await AsyncClient().post("/items")):
        assert (response.status_code, response.content) == (200, b"False 0")


def test_the_wait_is_told(serve: Any) -> None:
    """Server-Timing says how long the request waited, beside what others have said there."""

    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse(headers={"Server-Timing": "db;dur=1"})

    serve(items=lock("items")(view))
    timings = fetch("/items")["Server-Timing"].split(", ")
    assert timings[0] == "db;dur=1"
    assert timings[1].startswith("lock;dur=")


@pytest.mark.parametrize("middleware", [True, False], ids=["middleware", "no middleware"])
async def test_stacked_locks_are_taken_in_one_order(
    middleware: bool, serve: Any, settings: Any, url: str
) -> None:
    """Views that stack the same locks in opposite orders take them in one order, so none waits for the other."""
    settings.MIDDLEWARE = settings.MIDDLEWARE if middleware else []
    serve(there=lock("a", "c")(lock("b")(keys_of)), back=lock("b")(lock("a", "c")(keys_of)))
    acquired: list[Any] = []
    stop = observe(Observer(acquired.append, only=[Acquired], immediate=True))
    try:
        for path in ("/there", "/back"):
            assert fetch_in_thread(path).status_code == 200
            assert (await AsyncClient().post(path)).status_code == 200
    finally:
        stop()
    assert [event.key for event in acquired if event.engine == url] == ["a", "b", "c"] * 4


@pytest.mark.parametrize("middleware", [True, False], ids=["middleware", "no middleware"])
async def test_a_lock_of_some_methods(middleware: bool, serve: Any, settings: Any) -> None:
    """Requests by other methods neither wait for its key nor hold it, and GET includes HEAD."""
    settings.MIDDLEWARE = settings.MIDDLEWARE if middleware else []

    async def view(request: HttpRequest) -> HttpResponse:
        return keys_of(request)

    of_get, of_post = (
        lock("read", methods=["get"], wait=0),
        lock("written", methods=["POST"], wait=0),
    )
    serve(sync=of_get(of_post(keys_of)), asynchronous=of_get(of_post(view)))
    client = AsyncClient()
    for path in ("/sync", "/asynchronous"):
        assert (await client.get(path)).content == b"read"
        assert (await client.post(path)).content == b"written"
        async with async_locks["default"].hold("read"):
            codes = [
                (await client.generic(each, path)).status_code for each in ("GET", "HEAD", "POST")
            ]
        assert codes == [409, 409, 200]


@pytest.mark.parametrize("middleware", [True, False], ids=["middleware", "no middleware"])
def test_the_busy_one_of_stacked_locks_answers(middleware: bool, serve: Any, settings: Any) -> None:
    """Of several locks, the one that was not to be had says what the client is told."""
    settings.MIDDLEWARE = settings.MIDDLEWARE if middleware else []
    serve(items=lock("b")(lock("a", wait=0, busy_view=busy)(keys_of)))
    with locks["default"].hold("a"):
        assert fetch_in_thread("/items").status_code == 429
    with locks["default"].hold("b", wait=0):
        pass  # What had been taken was given back.


def test_a_lock_of_the_view_s_own_is_answered_too(serve: Any) -> None:
    """What hold raises in a view is told the client, as the decorator's errors are."""

    def view(request: HttpRequest) -> HttpResponse:
        with locks["default"].hold("items", wait=0):
            return HttpResponse()

    serve(items=view)
    with locks["default"].hold("items"):
        assert fetch("/items").json()["code"] == "lock_timeout"


async def test_holding_one_s_own_key_is_found_out_in_asgi(serve: Any) -> None:
    """Also where the middleware is a task, and the view a thread."""

    def view(request: HttpRequest) -> HttpResponse:
        with locks["default"].hold("items", wait=None):
            return HttpResponse()

    serve(items=lock("items")(view))
    response = await AsyncClient(raise_request_exception=False).post("/items")
    assert "is already held by the request" in str(response.exc_info[1])


@pytest.mark.parametrize("middleware", [True, False], ids=["middleware", "no middleware"])
async def test_a_request_inside_another_does_not_wait_for_it(
    middleware: bool, serve: Any, settings: Any
) -> None:
    """A view that serves requests of its own, a batch say, is told if one wants what it holds."""
    settings.MIDDLEWARE = settings.MIDDLEWARE if middleware else []
    inner = lock("{query.key}", wait=None)(keys_of)

    @lock("items")
    def batch(request: HttpRequest) -> HttpResponse:
        assert inner(RequestFactory().get("/?key=other")).content == b"other"
        return inner(RequestFactory().get("/?key=items"))

    serve(items=batch)
    client = AsyncClient(raise_request_exception=False)
    for response in (fetch_in_thread("/items"), await client.post("/items")):
        assert "is already held by the request" in str(response.exc_info[1])


def test_a_stream_is_sent_outside_the_lock(serve: Any) -> None:
    """A slow client does not keep the lock: what the view has done is done, and the rest is sent."""
    held = []

    def view(request: Any) -> StreamingHttpResponse:
        def lines() -> Any:
            held.append(request.weblock.held)
            yield b"line"

        return StreamingHttpResponse(lines())

    serve(items=lock("items")(view))
    response: Any = fetch("/items")
    assert locks["default"].try_acquire("items")
    assert b"".join(response.streaming_content) == b"line"
    assert held == [False]


async def test_the_lease_of_a_view_is_extended_across_worlds(serve: Any) -> None:
    """So it does where the middleware has acquired in a task; and a coroutine awaits it."""

    @lock("items", ttl=20)
    def view(request: Any) -> HttpResponse:
        request.weblock.extend(60)
        return HttpResponse(str(request.weblock.remaining() > 50))

    @lock("items", ttl=20)
    async def async_view(request: Any) -> HttpResponse:
        await request.weblock.extend(60)
        return HttpResponse(str(request.weblock.remaining() > 50))

    serve(items=view, async_items=async_view)
    assert (await AsyncClient().post("/items")).content == b"True"
    assert (await AsyncClient().post("/async_items")).content == b"True"
    assert fetch_in_thread("/async_items").content == b"True"


def test_a_view_is_tested_by_itself(serve: Any) -> None:
    """Called with a bare request, as unit tests do, a view acquires and releases by itself."""
    serve()
    view = lock("item:{pk}")(keys_of)
    assert view(RequestFactory().post("/"), pk=7).content == b"item:7"
    assert locks["default"].try_acquire("item:7")


async def test_the_lease_has_a_type(serve: Any) -> None:
    """``lease_of`` and ``async_lease_of`` give what the view holds, and say what is wrong where there is none."""

    @lock("items")
    def view(request: HttpRequest) -> HttpResponse:
        assert lease_of(request) is request.weblock  # type: ignore[attr-defined]
        with pytest.raises(ConfigurationError, match=": use lease_of"):
            async_lease_of(request)
        return HttpResponse(lease_of(request).key)

    @lock("items")
    async def async_view(request: HttpRequest) -> HttpResponse:
        await async_lease_of(request).extend(1)
        with pytest.raises(ConfigurationError, match="use async_lease_of"):
            lease_of(request)
        return HttpResponse(async_lease_of(request).key)

    def free(request: HttpRequest) -> HttpResponse:
        with pytest.raises(
            ConfigurationError, match="'/free' holds no lock: put @lock on its view"
        ):
            lease_of(request)
        return HttpResponse("items")

    serve(sync=view, awaited=async_view, free=free)
    for path in ("/sync", "/awaited", "/free"):
        assert fetch_in_thread(path).content == b"items"
        assert (await AsyncClient().post(path)).content == b"items"
