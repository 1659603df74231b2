"""``@idempotent``: each request is executed once, on PostgreSQL and on SQLite."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import IntegrityError, OperationalError, connections, transaction
from django.http import Http404, HttpResponse, StreamingHttpResponse
from django.template import engines
from django.template.response import TemplateResponse
from django.test import AsyncClient, Client
from django.utils.decorators import method_decorator
from django.views import View
from rest_framework.exceptions import ValidationError
from rest_framework.response import Response
from rest_framework.views import APIView

from tests.support.events import Heard
from tests.support.waiting import PATIENCE
from weblock import ConfigurationError
from weblock.contrib.django import idempotent, locks
from weblock.contrib.kit.idempotency import Answers
from weblock.errors import AnswerNotStored
from weblock.events import Repeated

from .project.shop.models import Item
from .requests import at_once

DATABASES = ["lite", "default"]

pytestmark = pytest.mark.django_db(
    transaction=True,
    databases=DATABASES,
)


@pytest.fixture(params=DATABASES)
def using(request: Any) -> str:
    """Each database."""
    return request.param


@pytest.fixture(params=[False, True], ids=["by_itself", "atomic_requests"])
def anywhere(request: Any, using: str, database: Any) -> str:
    """Each database, with and without ``ATOMIC_REQUESTS``."""
    if request.param and using == "default":
        database(using, ATOMIC_REQUESTS=True)
    return using


def user(request: Any) -> str:
    """The caller of a request."""
    return request.headers.get("X-User", "anna")


def once(using: str, **options: Any) -> Callable[[Any], Any]:
    """The decorator, with the tests' callers."""
    return idempotent(caller=user, using=using, **options)


def create(using: str, name: str = "") -> HttpResponse:
    """Create an item, and return its response."""
    item = Item.objects.using(using).create(name=name)
    return HttpResponse(f"item {item.pk}", status=201, headers={"Location": f"/items/{item.pk}"})


def send(key: str | None = "k", body: str = "{}", url: str = "/items", **headers: str) -> Any:
    """The response to one request."""
    client = Client(raise_request_exception=False)
    sent = headers if key is None else {"Idempotency-Key": key, **headers}
    try:
        return client.post(url, body, content_type="application/json", headers=sent)
    finally:
        if threading.current_thread() is not threading.main_thread():
            connections.close_all()


def made(using: str) -> int:
    """The number of items."""
    return Item.objects.using(using).count()


def test_a_repeated_request_gets_the_stored_answer(anywhere: str, serve: Any) -> None:
    """It has the status, the headers and the body of the first, and is marked; cookies are not repeated."""

    @once(anywhere)
    def items(_request: Any) -> HttpResponse:
        response = create(anywhere)
        response.set_cookie("seen", "1")
        return response

    serve(items=items)
    first, again = send('"k"'), send("k")
    assert (first.status_code, made(anywhere)) == (201, 1)
    assert (again.status_code, again.content) == (201, first.content)
    assert (again["Location"], again["Idempotency-Replayed"]) == (first["Location"], "true")
    assert "Idempotency-Replayed" not in first
    assert first.cookies
    assert not again.cookies


def test_requests_at_once_are_executed_once(using: str, serve: Any) -> None:
    """Of those that come at once, one is executed, and the others get its answer, or 409."""

    @once(using)
    def items(_request: Any) -> HttpResponse:
        return create(using)

    heard = Heard()
    stop = locks["default"].observe(heard.observer)
    serve(items=items)
    # SQLite is in the memory of one connection, which threads do not share.
    responses = at_once(8, send) if using == "default" else [send() for _ in range(8)]
    stop()
    assert Counter(each.status_code for each in responses) <= Counter({201: 8, 409: 7})
    busy = sum(each.status_code == 409 for each in responses)
    outcomes = Counter(each.outcome for each in heard.of(Repeated))
    assert outcomes == Counter(running=busy, replayed=7 - busy)
    assert len({each.content for each in responses if each.status_code == 201}) == 1
    if using == "default":
        assert made(using) == 1


def test_a_waiting_request_gets_the_answer(serve: Any) -> None:
    """With ``wait=`` no request is refused."""

    @once("default", wait=PATIENCE)
    def items(_request: Any) -> HttpResponse:
        return create("default")

    serve(items=items)
    assert {each.status_code for each in at_once(6, send)} == {201}
    assert made("default") == 1


def test_the_database_decides_where_the_lock_is_lost(serve: Any) -> None:
    """A second execution, beside a holder that has lost its lease, is rolled back and answered as the first."""
    replies = []

    @once("default")
    def items(_request: Any) -> HttpResponse:
        if not replies:
            replies.append(None)
            assert locks["default"].force_release(locks["default"].list()[0].key)
            thread = threading.Thread(target=lambda: replies.append(send()))
            thread.start()
            thread.join(PATIENCE)
        return create("default")

    serve(items=items)
    response = send()
    assert replies[1].status_code == 201
    assert response.status_code in (201, 503)
    assert made("default") == 1


def test_other_callers_and_payloads_are_told_apart(using: str, serve: Any) -> None:
    """Another user's same key is another request; another body or path with the same key of one user is not."""

    @once(using)
    def items(request: Any, **_url: Any) -> HttpResponse:
        return create(using, user(request))

    serve(items=items, items__pk=items)
    assert [send(**{"X-User": each}).status_code for each in ("anna", "ben")] == [201, 201]
    assert send(body='{"other": 1}').status_code == 422
    assert send(url="/items?page=2").status_code == 422
    assert send(url="/items/7").status_code == 201
    assert made(using) == 3


@pytest.mark.parametrize(
    ("key", "status"), [(None, 400), ("", 400), ("a b", 400), ("x" * 256, 400), ("x" * 255, 201)]
)
def test_a_key_that_cannot_be_is_refused(key: str | None, status: int, serve: Any) -> None:
    """A key that is missing, malformed or too long gets 400, as problem details, and nothing runs."""

    @once("lite")
    def items(_request: Any) -> HttpResponse:
        return create("lite")

    serve(items=items)
    response = send(key)
    assert (response.status_code, made("lite")) == (status, int(status == 201))
    assert status == 201 or response["Content-Type"] == "application/problem+json"


def conflict(using: str) -> HttpResponse:
    """Return a status that is not stored."""
    create(using)
    return HttpResponse(status=409)


def fail(using: str) -> HttpResponse:
    """Raise what becomes 500."""
    create(using)
    raise RuntimeError


def not_found(using: str) -> HttpResponse:
    """Raise what becomes 404."""
    create(using)
    raise Http404


def undone(using: str) -> HttpResponse:
    """Ask for a rollback."""
    create(using)
    transaction.set_rollback(True, using)
    return HttpResponse(status=201)


def stream(using: str) -> Any:
    """Return what has no end yet."""
    create(using)
    return StreamingHttpResponse([b"x"])


def long(using: str) -> HttpResponse:
    """Return more than may be stored."""
    create(using)
    return HttpResponse(b"x" * 101)


@pytest.mark.parametrize(
    ("work", "status"),
    [(conflict, 409), (fail, 500), (not_found, 404), (undone, 201), (stream, 500), (long, 500)],
)
def test_what_is_not_stored_is_rolled_back(
    anywhere: str, work: Any, status: int, serve: Any
) -> None:
    """An exception, 409, a stream, a long body or a rollback leaves no work and no answer."""

    @once(anywhere, max_body=100)
    def items(_request: Any) -> HttpResponse:
        return work(anywhere) if len(ran) < 1 else create(anywhere)

    ran: list[int] = []
    serve(items=items)
    response = send()
    ran.append(1)
    assert (response.status_code, made(anywhere)) == (status, 0)
    assert isinstance(response.exc_info[1], AnswerNotStored) if work in (stream, long) else True
    assert "Idempotency-Replayed" not in send()
    assert made(anywhere) == 1


def test_a_returned_refusal_is_stored(using: str, serve: Any) -> None:
    """A response with 400 that the view has returned is its answer."""

    @once(using)
    def items(_request: Any) -> HttpResponse:
        ran.append(1)
        return HttpResponse("too many", status=400)

    ran: list[int] = []
    serve(items=items)
    assert [send().status_code, send().status_code, len(ran)] == [400, 400, 1]


def test_hooks_run_once_and_after_commit(serve: Any) -> None:
    """What ``on_commit`` was given runs after COMMIT; if it raises, a repeated request still gets the answer."""

    @once("default")
    def items(_request: Any) -> HttpResponse:
        def hook() -> None:
            hooks.append(made("default"))
            raise RuntimeError

        transaction.on_commit(hook)
        return create("default")

    hooks: list[int] = []
    serve(items=items)
    assert [send().status_code, send().status_code] == [500, 201]
    assert (hooks, made("default")) == ([1], 1)


def test_a_database_error_of_a_hook_is_not_lost(serve: Any) -> None:
    """The first request gets 500, not its own answer as if another one had been executed."""

    @once("lite")
    def items(_request: Any) -> HttpResponse:
        def hook() -> None:
            raise OperationalError("of a hook")

        transaction.on_commit(hook, "lite")
        return create("lite")

    serve(items=items)
    assert [send().status_code, send().status_code, made("lite")] == [500, 201, 1]


def test_nobody_gets_no_answer(serve: Any) -> None:
    """A caller who is ``None`` gets 403, and of REST framework 401."""

    @idempotent(caller=lambda _request: None, using="lite")
    def items(_request: Any) -> HttpResponse:
        return create("lite")

    class Closed(Rest):
        perform_authentication = APIView.perform_authentication

        def get_authenticators(self) -> list[Any]:
            return [Nobody()]

    serve(items=items, rest=Closed.as_view())
    assert [send().status_code, send(url="/rest").status_code, made("lite")] == [403, 401, 0]


def test_a_form_is_its_parts(using: str, serve: Any) -> None:
    """The same fields and files are one payload, whatever the boundary; another file is another one."""

    @once(using)
    def items(request: Any) -> HttpResponse:
        return create(using, request.FILES["photo"].read().decode())

    def upload(content: bytes) -> Any:
        form = {"name": "x", "photo": SimpleUploadedFile("a.png", content, "image/png")}
        client = Client(raise_request_exception=False)
        text = f"multipart/form-data; boundary=b{len(boundaries)}"
        boundaries.append(text)
        from django.test.client import encode_multipart

        body = encode_multipart(text.rpartition("=")[2], form)
        return client.post("/items", body, content_type=text, headers={"Idempotency-Key": "k"})

    boundaries: list[str] = []
    serve(items=items)
    assert [upload(b"one").status_code, upload(b"one").status_code] == [201, 201]
    assert upload(b"two").status_code == 422
    assert Item.objects.using(using).get().name == "one"


def test_other_methods_are_served_as_ever(anywhere: str, serve: Any) -> None:
    """A page of the same view needs no key."""

    @once(anywhere)
    def items(request: Any) -> HttpResponse:
        return create(anywhere) if request.method == "POST" else HttpResponse("a form")

    serve(items=items)
    assert Client().get("/items").content == b"a form"
    assert send().status_code == 201


@method_decorator(idempotent(caller=user), name="dispatch")
class Classic(View):
    def post(self, _request: Any) -> Any:
        template = engines["django"].from_string("item {{ item.pk }}")
        item = Item.objects.create()
        return TemplateResponse(_request, template, {"item": item}, status=201)


@method_decorator(idempotent(caller=lambda request: request.user.pk), name="dispatch")
class Rest(APIView):
    def perform_authentication(self, request: Any) -> None:
        request.user = type("User", (), {"pk": 7, "is_authenticated": True})()

    def get_authenticators(self) -> list[Any]:
        return [Known()]

    def post(self, request: Any) -> Response:
        item = Item.objects.create()
        if request.data.get("wrong"):
            raise ValidationError
        return Response({"item": item.pk}, status=201)


class Known:
    """An authenticator that knows everybody."""

    def authenticate(self, _request: Any) -> Any:
        return type("User", (), {"pk": 7, "is_authenticated": True})(), None

    def authenticate_header(self, _request: Any) -> str:
        return "Known"


@pytest.mark.parametrize("cls", [Classic, Rest])
def test_class_based_views(cls: Any, serve: Any) -> None:
    """Their responses are rendered before COMMIT; what REST framework makes of an exception is not stored."""
    serve(items=cls.as_view())
    if cls is Rest:
        assert [send(body='{"wrong": 1}').status_code, made("default")] == [400, 0]
    first, again = send(), send()
    assert (first.status_code, again.status_code) == (201, 201), first.content
    assert (again.content, again["Content-Type"]) == (first.content, first["Content-Type"])
    assert made("default") == 1


class Nobody(Known):
    def authenticate(self, _request: Any) -> Any:
        return type("Anonymous", (), {"pk": None, "is_authenticated": False})(), None


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", ["function", "class"])
async def test_async_views(kind: str, serve: Any) -> None:
    """The queries of an async view are in the transaction, too."""

    async def work() -> HttpResponse:
        item = await Item.objects.acreate()
        if not ran:
            ran.append(1)
            raise RuntimeError
        return HttpResponse(f"{item.pk}", status=201)

    @once("default")
    async def items(_request: Any) -> HttpResponse:
        return await work()

    @method_decorator(idempotent(caller=user), name="dispatch")
    class Items(View):
        async def post(self, _request: Any) -> HttpResponse:
            return await work()

    ran: list[int] = []
    serve(items=items if kind == "function" else Items.as_view())
    client = AsyncClient(raise_request_exception=False)
    responses = [await client.post("/items", headers={"Idempotency-Key": "k"}) for _ in range(3)]
    assert [each.status_code for each in responses] == [500, 201, 201]
    assert responses[1].content == responses[2].content
    assert await Item.objects.acount() == 1
    await sync_to_async(connections.close_all)()


def test_set_ups_that_cannot_work_are_named(using: str, serve: Any) -> None:
    """A transaction around the view, a COMMIT as SQL and a missing caller are errors, and nothing is stored."""

    @transaction.atomic(using)
    @once(using)
    def inside(_request: Any) -> HttpResponse:
        return create(using)

    @once(using)
    def commits(_request: Any) -> HttpResponse:
        with connections[using].cursor() as cursor:
            cursor.execute("COMMIT")
        return create(using)

    @idempotent(caller=lambda _request: object(), using=using)
    def nobody(_request: Any) -> HttpResponse:
        return create(using)

    serve(inside=inside, commits=commits, nobody=nobody)
    for url in ("/inside", "/commits", "/nobody"):
        response = send(url=url)
        assert response.status_code == 500
        assert isinstance(response.exc_info[1], ConfigurationError), response.exc_info
    assert made(using) == 0
    with pytest.raises(ConfigurationError, match="anonymous"):
        idempotent(caller=None, using=using)


def test_what_the_database_rolls_back_is_not_committed_in_part(serve: Any) -> None:
    """Where SQLite itself has rolled the transaction back, nothing that follows is committed."""

    @once("lite")
    def items(_request: Any) -> HttpResponse:
        Item.objects.using("lite").create(pk=1)
        with suppress(IntegrityError), connections["lite"].cursor() as cursor:
            cursor.execute("INSERT OR ROLLBACK INTO shop_item (id, name) VALUES (1, '')")
        return create("lite")

    serve(items=items)
    assert (send().status_code, made("lite")) == (500, 0)


@pytest.mark.parametrize("size", [1, -1])
@pytest.mark.parametrize("content_type", ["text/plain", "multipart/form-data; boundary=b"])
def test_a_body_that_was_read_is_an_error(content_type: str, size: int, serve: Any) -> None:
    """Else another body would get the same answer; of a form, Django has no parts then."""

    @once("lite")
    def items(_request: Any) -> HttpResponse:
        return create("lite")

    def reading(request: Any) -> Any:
        request.read(size)
        return items(request)

    serve(items=reading)
    part = '--b\r\nContent-Disposition: form-data; name="pay"\r\n\r\n1\r\n--b--\r\n'
    headers = {"Idempotency-Key": "k"}
    client = Client(raise_request_exception=False)
    response = client.post("/items", part, content_type=content_type, headers=headers)
    assert isinstance(response.exc_info[1], ConfigurationError)
    assert made("lite") == 0


def test_a_store_is_refused() -> None:
    """The answers are in the database of the work; an engine would store them elsewhere, in silence."""
    elsewhere: Any = {"store": "engine"}
    with pytest.raises(ConfigurationError, match=r"has no store=.*LockMiddleware"):
        idempotent(caller="anonymous", **elsewhere)


def test_expired_answers_are_removed(using: str, serve: Any, monkeypatch: Any) -> None:
    """An answer is stored for ``keep`` seconds, and each caller has at most ``max_answers``."""
    from weblock.contrib.django.models import Answer
    from weblock.contrib.kit import idempotency

    @once(using, max_answers=2)
    def items(_request: Any) -> HttpResponse:
        return create(using)

    serve(items=items)
    assert [send(each).status_code for each in "abc"] == [201, 201, 429]
    later = idempotency.time.time() + 25 * 3600
    monkeypatch.setattr(idempotency.time, "time", lambda: later)
    monkeypatch.setattr(idempotency, "ANSWER_SWEEPS", 1.0)
    assert [send(each).status_code for each in "ab"] == [201, 201]
    assert Answer.objects.using(using).count() == 2
    assert made(using) == 4


def test_nothing_runs_while_the_database_is_down(serve: Any, monkeypatch: Any) -> None:
    """503, if the stored answers cannot be read."""

    @once("lite")
    def items(_request: Any) -> HttpResponse:
        return create("lite")

    def find(_answers: Answers) -> None:
        raise OperationalError("gone")

    serve(items=items)
    monkeypatch.setattr(Answers, "find", find)
    assert (send().status_code, made("lite")) == (503, 0)
