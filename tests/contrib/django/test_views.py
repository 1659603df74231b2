"""What ``@lock`` decorates: every kind of view, of Django and of those who build on it."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

import pytest
from asgiref.sync import markcoroutinefunction
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.mixins import UserPassesTestMixin
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.test import AsyncClient
from django.urls import include, path
from django.utils.decorators import method_decorator
from django.utils.functional import SimpleLazyObject
from django.views import View
from ninja import NinjaAPI
from rest_framework.decorators import action, api_view
from rest_framework.generics import UpdateAPIView
from rest_framework.response import Response
from rest_framework.routers import SimpleRouter
from rest_framework.views import APIView
from rest_framework.viewsets import ModelViewSet, ViewSet

from weblock import AsyncLease, ConfigurationError, Lease
from weblock.contrib.django import async_locks, lock, locks, request_locks
from weblock.contrib.django.view_lock import locks_of

from .requests import fetch

HELD = "item:7"
"""What every view here has to hold when it is asked for item 7."""


def answer_of(request: Any, pk: object) -> dict[str, Any]:
    """What a view finds: its lease, and that nobody else could have it."""
    lease = request.weblock
    return {
        "keys": lease.keys,
        "is_lease": isinstance(lease, Lease),
        "is_free": locks["default"].try_acquire(f"item:{pk}") is not None,
    }


async def async_answer_of(request: Any, pk: object) -> dict[str, Any]:
    lease = request.weblock
    return {
        "keys": lease.keys,
        "is_lease": isinstance(lease, AsyncLease),
        "is_free": await async_locks["default"].try_acquire(f"item:{pk}") is not None,
    }


@lock("item:{pk}")
def function(request: HttpRequest, pk: str) -> HttpResponse:
    return JsonResponse(answer_of(request, pk))


@lock("item:{pk}")
async def coroutine_function(request: HttpRequest, pk: str) -> HttpResponse:
    return JsonResponse(await async_answer_of(request, pk))


@login_not_required
@lock("item:{pk}")
def below_another_decorator(request: HttpRequest, pk: str) -> HttpResponse:
    return JsonResponse(answer_of(request, pk))


@method_decorator(lock("item:{pk}"), name="dispatch")
class OnDispatch(View):
    def post(self, request: HttpRequest, pk: str) -> HttpResponse:
        return JsonResponse(answer_of(request, pk))


class OnPost(View):
    @method_decorator(lock("item:{pk}"))
    def post(self, request: HttpRequest, pk: str) -> HttpResponse:
        return JsonResponse(answer_of(request, pk))


class OnPostItself(View):
    @lock("item:{pk}")
    def post(self, request: HttpRequest, pk: str) -> HttpResponse:
        return JsonResponse(answer_of(request, pk))


@method_decorator(lock("item:{pk}"), name="dispatch")
class AsyncOnDispatch(View):
    async def post(self, request: HttpRequest, pk: str) -> HttpResponse:
        return JsonResponse(await async_answer_of(request, pk))


class AsyncOnDispatchItself(View):
    @lock("item:{pk}")
    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        return super().dispatch(request, *args, **kwargs)

    async def post(self, request: HttpRequest, pk: str) -> HttpResponse:
        return JsonResponse(await async_answer_of(request, pk))


class AsyncOnPost(View):
    @method_decorator(lock("item:{pk}"))
    async def post(self, request: HttpRequest, pk: str) -> HttpResponse:
        return JsonResponse(await async_answer_of(request, pk))


class AsyncOnPostItself(View):
    @lock("item:{pk}")
    async def post(self, request: HttpRequest, pk: str) -> HttpResponse:
        return JsonResponse(await async_answer_of(request, pk))


class Plain(View):
    def post(self, request: HttpRequest, pk: str) -> HttpResponse:
        return JsonResponse(answer_of(request, pk))


class AsyncPlain(View):
    async def post(self, request: HttpRequest, pk: str) -> HttpResponse:
        return JsonResponse(await async_answer_of(request, pk))


@method_decorator(lock("item:{pk}"), name="dispatch")
class RestOnDispatch(APIView):
    def post(self, request: Any, pk: str) -> Response:
        return Response(answer_of(request, pk))


class RestOnPost(APIView):
    @lock("item:{pk}")
    def post(self, request: Any, pk: str) -> Response:
        return Response(answer_of(request, pk))


@lock("item:{pk}")
@api_view(["POST"])
def above_api_view(request: Any, pk: str) -> Response:
    return Response(answer_of(request, pk))


@api_view(["POST"])
@lock("item:{pk}")
def below_api_view(request: Any, pk: str) -> Response:
    return Response(answer_of(request, pk))


class Callable:
    @lock("item:{pk}")
    def __call__(self, request: HttpRequest, pk: str) -> HttpResponse:
        return JsonResponse(answer_of(request, pk))


class AsyncCallable:
    def __init__(self) -> None:
        markcoroutinefunction(self)  # As Django wants it.

    @lock("item:{pk}")
    async def __call__(self, request: HttpRequest, pk: str) -> HttpResponse:
        return JsonResponse(await async_answer_of(request, pk))


class Inherited(OnPostItself):
    def post(self, request: HttpRequest, pk: str) -> HttpResponse:
        return super().post(request, pk)


class Updates(UpdateAPIView):
    @lock("item:{pk}")
    def update(self, request: Any, *args: Any, **kwargs: Any) -> Response:
        return Response(answer_of(request, kwargs["pk"]))


class BelowAMixin(UserPassesTestMixin, OnDispatch):
    def test_func(self) -> bool:
        return True


class Own(View):
    @lock("other")
    def get(self, request: HttpRequest, pk: str) -> HttpResponse:
        return HttpResponse()

    def post(self, request: HttpRequest, pk: str) -> HttpResponse:
        return self.put(request, pk)

    @lock("item:{pk}")
    def put(self, request: HttpRequest, pk: str) -> HttpResponse:
        return JsonResponse(answer_of(request, pk))


def asked_once(request: Any) -> None:
    assert not hasattr(request, "was_asked")
    request.was_asked = True


class Rows(ModelViewSet):
    @lock("item:{pk}", asked_once)
    def update(self, request: Any, *args: Any, **kwargs: Any) -> Response:
        return Response(answer_of(request, kwargs["pk"]))


def undecorated(request: HttpRequest, pk: str, what: str) -> HttpResponse:
    return JsonResponse(answer_of(request, pk))


class Items(ViewSet):
    @lock("item:{pk}")
    def touch(self, request: Any, pk: str) -> Response:
        return Response(answer_of(request, pk))

    @action(detail=True, methods=["post"])
    @lock("item:{pk}")
    def extra(self, request: Any, pk: str) -> Response:
        return Response(answer_of(request, pk))

    @action(detail=True, methods=["post"])
    def passed_on(self, request: Any, pk: str) -> Any:
        return self.extra(request, pk)


router = SimpleRouter(trailing_slash=False)
router.register("viewset", Items, basename="items")

api = NinjaAPI(urls_namespace="weblock-tests")


@api.post("/operation/{int:pk}")
@lock("item:{pk}")
def operation(request: HttpRequest, pk: int) -> dict[str, Any]:
    return answer_of(request, pk)


async_api = NinjaAPI(urls_namespace="weblock-async-tests")


@async_api.post("/operation/{int:pk}")
@lock("item:{pk}")
async def async_operation(request: HttpRequest, pk: int) -> dict[str, Any]:
    return await async_answer_of(request, pk)


SYNC: dict[str, Any] = {
    "function": function,
    "decorated": below_another_decorator,
    "dispatch": OnDispatch.as_view(),
    "post": OnPost.as_view(),
    "post_itself": OnPostItself.as_view(),
    "as_view": lock("item:{pk}")(Plain.as_view()),
    "rest_dispatch": RestOnDispatch.as_view(),
    "rest_post": RestOnPost.as_view(),
    "above_api_view": above_api_view,
    "below_api_view": below_api_view,
    "viewset": Items.as_view({"post": "touch"}),
    "partial_outside": functools.partial(function),
    "partial_inside": lock("item:{pk}")(functools.partial(undecorated, what="")),
    "partial_of_class": functools.partial(OnPostItself.as_view()),
    "callable": Callable(),
    "bound": Callable().__call__,
    "passed_on": Own.as_view(),
    "rest_passed_on": Items.as_view({"post": "passed_on"}),
    "inherited": Inherited.as_view(),
    "below_a_mixin": BelowAMixin.as_view(),
}
ASYNC: dict[str, Any] = {
    "coroutine_function": coroutine_function,
    "async_dispatch": AsyncOnDispatch.as_view(),
    "async_dispatch_itself": AsyncOnDispatchItself.as_view(),
    "async_post": AsyncOnPost.as_view(),
    "async_post_itself": AsyncOnPostItself.as_view(),
    "async_as_view": lock("item:{pk}")(AsyncPlain.as_view()),
    "async_partial": functools.partial(coroutine_function),
    "async_callable": AsyncCallable(),
}
PATHS = {
    **{name: f"/{name}/7" for name in (*SYNC, *ASYNC)},
    "action": "/router/viewset/7/extra",
    "rest_action_passed_on": "/router/viewset/7/passed_on",
    "ninja": "/ninja/operation/7",
    "async_ninja": "/async-ninja/operation/7",
}
URLS = (
    *(path(f"{name}/<pk>", view) for name, view in {**SYNC, **ASYNC}.items()),
    path("router/", include(router.urls)),
    path("ninja/", api.urls),
    path("async-ninja/", async_api.urls),
)


@pytest.fixture(params=[True, False], ids=["middleware", "no middleware"])
def project(request: pytest.FixtureRequest, settings: Any, serve: Any, url: str) -> None:
    """A project that serves all of these views, with the middleware and without."""
    settings.WEBLOCK = {"default": {"URL": url, "WAIT": 0}}
    settings.ROOT_URLCONF = URLS
    settings.MIDDLEWARE = settings.MIDDLEWARE[-1:] if request.param else []


@pytest.mark.parametrize("name", PATHS)
def test_a_view_holds_its_lock(name: str, project: None) -> None:
    """Under WSGI, each kind of view runs under its lock, and frees it."""
    for _ in range(2):
        response = fetch(PATHS[name])
        assert (response.status_code, response.json()) == (
            200,
            {"keys": [HELD], "is_lease": True, "is_free": False},
        )


HIDDEN = ("below_api_view", "passed_on", "rest_passed_on")
"""What the middleware cannot see, so that it acquires when it is called."""


@pytest.mark.parametrize("name", [name for name in (*SYNC, *ASYNC) if name not in HIDDEN])
def test_the_middleware_sees_what_is_locked(name: str) -> None:
    """It acquires before the transaction for each kind of view, whatever stands around the lock."""
    view = {**SYNC, **ASYNC}[name]
    (found,) = locks_of(view, "POST")
    assert [template.text for template in found.templates] == ["item:{pk}"]


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
def test_a_partial_update_is_an_update(method: str, serve: Any) -> None:
    """REST framework's ``partial_update`` calls ``update``: the middleware takes its lock before, once.

    What ``update`` is given besides is no value of the lock, whose key function is not asked again.
    """
    view = Rows.as_view({"put": "update", "patch": "partial_update"})
    assert locks_of(view, method)
    assert not locks_of(view, "DELETE")
    serve(item__pk=view)
    assert fetch("/item/7", method.lower()).json()["keys"] == [HELD]


@pytest.mark.parametrize("method", ["put", "patch"])
def test_a_locked_method_that_a_handler_calls_acquires_by_itself(method: str, serve: Any) -> None:
    """The middleware does not follow calls: ``put`` of a generic view calls ``update``, which locks."""
    view = Updates.as_view()
    assert not locks_of(view, method)
    serve(item__pk=view)
    assert fetch("/item/7", method).json()["keys"] == [HELD]


@lock("item:{pk}")
def keys_of_one(request: HttpRequest, pk: str, _user: object = None) -> list[str]:
    return sorted(each.key for each in locks["default"].list())


def of_a_shop(_shop: str, request: HttpRequest, pk: str) -> list[str]:
    return keys_of_one.__wrapped__(request, pk)  # type: ignore[attr-defined, no-any-return]


class Listing:
    @method_decorator(lock("item:{pk}"))
    def keys(self, request: HttpRequest, pk: str) -> list[str]:
        return of_a_shop("", request, pk)


@lock("item:8")
@lambda view: functools.wraps(view)(lambda request, _number: view(request))
def below_a_group(request: HttpRequest) -> list[str]:
    return of_a_shop("", request, "8")


@pytest.mark.parametrize("locks_it", [True, False], ids=["locked", "unlocked"])
@pytest.mark.parametrize(
    "call",
    [
        lambda request: keys_of_one(request, pk="8"),
        lambda request: keys_of_one(request, "8"),
        lambda request: keys_of_one(request, "8", SimpleLazyObject(pytest.fail)),
        lambda request: Listing().keys(request, "8"),
        lambda request: lock("item:{pk}")(functools.partial(of_a_shop, ""))(request, "8"),
        lambda request: below_a_group(request, "8"),  # type: ignore[call-arg]
    ],
    ids=["by name", "by place", "before a lazy one", "method", "partial", "not the view's"],
)
def test_a_view_that_another_calls_locks_what_it_is_given(
    call: Any, locks_it: bool, serve: Any
) -> None:
    """An equal lock that the request holds for another row is none for the row of the call.

    The call reads none of its arguments early, and leaves the caller its own lease.
    """

    def first(request: Any, pk: str) -> HttpResponse:
        keys, lease = call(request), getattr(request, "weblock", None)
        return JsonResponse([keys, list(lease.keys) if lease else None], safe=False)

    serve(item__pk=lock("item:{pk}")(first) if locks_it else first)
    assert fetch("/item/7").json() == (
        [["item:7", "item:8"], ["item:7"]] if locks_it else [["item:8"], None]
    )


class Overridden(OnPostItself):
    def post(self, request: HttpRequest, pk: str) -> HttpResponse:
        return JsonResponse({"keys": request.weblock.keys})  # type: ignore[attr-defined]


def test_a_method_that_overrides_a_locked_one_is_locked(serve: Any) -> None:
    """Whether it calls the other or not: nobody could tell without reading its code."""
    serve(item__pk=Overridden.as_view())
    assert fetch("/item/7").json() == {"keys": [HELD]}


@pytest.mark.parametrize(
    "function", [lambda: "a", lambda request, pk: f"item:{pk}"], ids=["nothing", "too much"]
)
def test_a_key_function_is_called_with_the_request(function: Any) -> None:
    """A function that cannot be called so is refused where it is written, and told what to read."""
    with pytest.raises(ConfigurationError, match=r"request\.resolver_match\.kwargs"):
        lock(function)


@lock("item:{pk:int}")
def any_spelling(request: HttpRequest, pk: str) -> HttpResponse:
    return JsonResponse({"keys": request.weblock.keys})  # type: ignore[attr-defined]


@pytest.mark.parametrize("spelling", ["7", "07", "+7", "%207", "0_7", "%D9%A7"])
def test_each_spelling_of_a_number_is_one_key(spelling: str, serve: Any) -> None:
    """What the database takes for one row is one lock, however the URL spells it."""
    serve(item__pk=any_spelling)
    assert fetch(f"/item/{spelling}").json() == {"keys": [HELD]}


@pytest.mark.parametrize("project", [True], ids=["middleware"], indirect=True)
@pytest.mark.parametrize("name", PATHS)
async def test_a_view_holds_its_lock_in_asgi(name: str, project: None) -> None:
    """Under ASGI, each kind of view runs under its lock, and frees it."""
    for _ in range(2):
        response = await AsyncClient().post(PATHS[name])
        assert (response.status_code, response.json()) == (
            200,
            {"keys": [HELD], "is_lease": True, "is_free": False},
        )


class TestServiceFunctions:
    """``request_locks``, in views of each kind and under either server interface."""

    @staticmethod
    def blocking(request: HttpRequest) -> HttpResponse:
        lease = request_locks().acquire("wallet:7")
        free = locks["default"].try_acquire("wallet:7")
        return JsonResponse([isinstance(lease, Lease) and lease.held, free is None], safe=False)

    @staticmethod
    async def awaiting(request: HttpRequest) -> HttpResponse:
        lease = await request_locks().aacquire("wallet:7")
        free = await async_locks["default"].try_acquire("wallet:7")
        return JsonResponse(
            [isinstance(lease, AsyncLease) and lease.held, free is None], safe=False
        )

    @pytest.mark.parametrize("view", ["blocking", "awaiting"])
    async def test_a_service_holds_its_key_until_the_request_ends(
        self, view: str, serve: Any
    ) -> None:
        """A service function gets a lease of its API, and the key is free after the request."""
        serve(items=getattr(self, view))
        in_thread = await asyncio.to_thread(fetch, "/items")
        for response in (in_thread, await AsyncClient().post("/items")):
            assert response.json() == [True, True]
            async with async_locks["default"].hold("wallet:7", wait=0):
                pass

    def test_outside_a_request_the_error_names_the_alternative(self) -> None:
        """Code that serves no request is told to use ``hold``."""
        with pytest.raises(ConfigurationError, match=r"use locks\['default'\]\.hold"):
            request_locks().acquire("wallet:7")
