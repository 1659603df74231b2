"""``@idempotent(caller=current_user)``: a view executes a request once, however often its client sends it.

The lock is that of ``@lock``, acquired outside of the transaction; ``contrib.kit.idempotency`` says what it is
for. The decorator opens the transaction itself, instead of ``ATOMIC_REQUESTS``: it renders the response and
inserts it before COMMIT.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from typing import Any, Final, TypeVar, Unpack

from asgiref.sync import async_to_sync, iscoroutinefunction, sync_to_async
from django.core.exceptions import PermissionDenied
from django.db import DEFAULT_DB_ALIAS, Error, connections, transaction
from django.http import HttpRequest, HttpResponse, RawPostDataException
from django.http.response import HttpResponseBase
from django.template.response import SimpleTemplateResponse

from ..._runtime.runtimes import drive
from ...errors import AnswersUnavailable, ConfigurationError, LockTimeout, WeblockError
from ..kit import shown
from ..kit.idempotency import (
    ANONYMOUS,
    Answer,
    Answers,
    Asked,
    IdempotencyOptions,
    IdempotencySpec,
    body_consumed,
    form_parts,
)
from ..kit.sql import Kind
from .answers import answer_for
from .database import placed, read_statement
from .middleware import called_by, instance_of, lock
from .settings import locks
from .view_lock import DEFAULT, in_thread, is_rest

F = TypeVar("F", bound=Callable[..., Any])
R = TypeVar("R", bound=HttpRequest)

METHODS: Final = ("POST", "PUT", "PATCH", "DELETE")
"""The methods of requests that change something. Others are served as ever."""

_NO_TABLE: Final = "add weblock.contrib.django to INSTALLED_APPS, and run manage.py migrate"

_ASKED: Final = "weblock_asked"
"""The attribute of a request that has its ``Asked``."""


def idempotent(
    *,
    caller: Callable[[R], object] | str,
    using: str = DEFAULT_DB_ALIAS,
    alias: str = DEFAULT,
    **options: Unpack[IdempotencyOptions],
) -> Callable[[F], F]:
    """Decorate a view so that it executes each ``POST``, ``PUT``, ``PATCH`` and ``DELETE`` request once.

    A request that is sent again with the same ``Idempotency-Key`` gets the stored answer to the first one, marked
    ``Idempotency-Replayed: true``. The view runs in ``atomic(using, durable=True)``, also without
    ``ATOMIC_REQUESTS``, and its answer is stored in that transaction. An exception that leaves the view, and a
    response with 409, 429 or from 500 on, roll everything back.

    It decorates views, plain or async, and class-based ones by
    ``method_decorator(idempotent(...), name="dispatch")``, those of Django REST framework as well.

    Args:
        caller: A function of the request that returns the id of the user: a string, an int or a UUID. Keys of
            different users are different. ``None`` is answered with 403, or as REST framework answers a
            client that is not authenticated. ``"anonymous"`` if all clients share their keys, and may read the
            answers of one another.
        using: The database of the view's work, which has the table of answers. Work in another one is
            not part of the transaction.
        alias: Which entry of ``WEBLOCK`` to use.
        **options: ``wait``, ``keep``, ``max_answers`` and ``max_body``: see ``IdempotencyOptions``.

    Raises:
        ConfigurationError: An option cannot work; or, at a request, a transaction has begun before.
    """
    if "store" in options:
        raise ConfigurationError(
            "Django's idempotent() stores its answers in the database of the work, and has no store=: for work"
            " elsewhere, give a rule of the ASGI or WSGI LockMiddleware idempotent=Idempotent(caller=...)"
        )
    spec = ViewSpec.written(caller, using=using, alias=alias, **options)  # type: ignore[call-arg]

    def decorate(view: F) -> F:
        called = called_by(view)

        def execute(call: Callable[[], Any], request: Any) -> Any:
            if request.method not in METHODS:
                atomic = connections[using].settings_dict["ATOMIC_REQUESTS"]
                with transaction.atomic(using) if atomic else nullcontext():
                    return call()
            return spec.execute(request, call)

        def serve(*args: Any, **kwargs: Any) -> Any:
            # The dispatch of an async class is a function that returns a coroutine.
            if getattr(type(instance_of(called, args)), "view_is_async", False):
                return aserve(*args, **kwargs)
            return execute(partial(view, *args, **kwargs), request_of(args, kwargs))

        async def aserve(*args: Any, **kwargs: Any) -> Any:
            # The view's queries run in the thread that waits for it, and so in the transaction.
            async def run() -> Any:
                response = view(*args, **kwargs)
                return await response if inspect.isawaitable(response) else response

            call = async_to_sync(run)
            return await sync_to_async(execute)(call, request_of(args, kwargs))

        decorated = aserve if iscoroutinefunction(view) else serve
        functools.update_wrapper(decorated, view)
        locked = lock(
            spec.key_of, alias=alias, busy_view=spec.answer_busy, methods=METHODS, **spec.options
        )
        served: F = transaction.non_atomic_requests(using)(locked(decorated))
        return served

    return decorate


def request_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> HttpRequest:
    """Return the request that a view, or a method of one, is called with."""
    for each in (*args[:2], kwargs.get("request")):
        if isinstance(each, HttpRequest):
            return each
    raise ConfigurationError(
        "idempotent() is for views: for one of Django REST framework, and for a method, write"
        ' @method_decorator(idempotent(...), name="dispatch") on its class'
    )


@dataclass(frozen=True, repr=False)
class ViewSpec(IdempotencySpec):
    """A description of what a view executes once."""

    using: str = DEFAULT_DB_ALIAS
    alias: str = DEFAULT

    def key_of(self, request: HttpRequest) -> str:
        """Return the key that a request locks, and leave with the request what it asks for."""
        caller = self.caller(request) if callable(self.caller) else ANONYMOUS
        if caller is None:
            if is_rest(request):
                from rest_framework.exceptions import NotAuthenticated

                raise NotAuthenticated
            raise PermissionDenied
        asked = self.asked(
            caller=caller,
            method=str(request.method),
            path=request.path,
            sent=[request.headers[self.header]] if self.header in request.headers else [],
            parts=[request.META.get("QUERY_STRING", "").encode(), *_parts_of(request)],
        )
        setattr(request, _ASKED, asked)
        (key,) = self.keys_of(asked)
        return key

    def answer_busy(self, request: HttpRequest, busy: LockTimeout) -> HttpResponse | None:
        """Return the stored answer: the other request may have been committed, and be sending it."""
        answers = self._answers(request)
        try:
            with answers.reading():
                found = answers.find(busy)
        except WeblockError as error:
            return None if error is busy else drive(answer_for(None, request, error, in_thread))
        return _replayed(found) if found else None

    def execute(self, request: HttpRequest, view: Callable[[], Any]) -> HttpResponseBase:
        """Return the stored answer; if there is none, that of the view, which is stored."""
        answers, connection = self._answers(request), connections[self.using]
        with answers.reading():
            if found := answers.find_or_admit():
                return _replayed(found)
        if not (connection.in_atomic_block or connection.get_autocommit()):
            raise self._refusal("has AUTOCOMMIT off")
        committed: list[bool] = []
        try:
            with ExitStack() as block:
                try:
                    block.enter_context(transaction.atomic(self.using, durable=True))
                except RuntimeError as error:
                    raise self._refusal("is in a transaction already") from error
                transaction.on_commit(lambda: committed.append(True), self.using)
                # MySQL drops the whole transaction in a deadlock, and its savepoints with it.
                whole = connection.vendor == "mysql" and transaction.savepoint(self.using)
                block.enter_context(connection.execute_wrapper(self._send))
                response: HttpResponseBase = view()
                if whole:
                    transaction.savepoint_commit(whole, self.using)
                self._store(answers, response)
        except Error:
            if committed:  # A hook has raised it.
                raise
            # Another request with the same key may have been committed meanwhile.
            with suppress(AnswersUnavailable), answers.reading():
                if found := answers.find():
                    return _replayed(found)
            raise
        if committed:
            answers.sweep()
        return response

    def _store(self, answers: Answers, response: Any) -> None:
        """Insert the answer, as the last statement of the transaction, or have it rolled back."""
        if not isinstance(response, HttpResponseBase):
            raise ConfigurationError(
                f"an idempotent() view returned {shown(response)}: it must return an HttpResponse",
                code="idempotency",
            )
        raised = getattr(response, "exception", False)  # Django REST framework has handled it.
        stored = None
        if not (raised or transaction.get_rollback(self.using)):
            if isinstance(response, SimpleTemplateResponse):
                response.render()
            body = response.content if isinstance(response, HttpResponse) else None
            stored = self.answer_of(response.status_code, response.items(), body)
        if stored:
            answers.store(stored)
        else:
            transaction.set_rollback(rollback=True, using=self.using)

    def _send(self, execute: Any, sql: Any, params: Any, many: bool, context: Any) -> Any:  # noqa: FBT001 - Django's
        """Run a statement, unless it commits."""
        connection = context["connection"]
        text, kind = read_statement(connection, sql)
        if kind is Kind.COMMITS:
            raise self._refusal(f"sends {text!r:.100}, which commits implicitly")
        if connection.vendor == "sqlite" and not connection.connection.in_transaction:
            raise self._refusal("was rolled back by SQLite, as INSERT OR ROLLBACK does")
        return execute(sql, params, many, context)

    def _answers(self, request: HttpRequest) -> Answers:
        asked: Asked = getattr(request, _ASKED)
        connection = connections[self.using]

        def execute(sql: str, values: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
            with connection.cursor() as cursor:
                cursor.execute(placed(sql), values)
                return cursor.fetchall() if cursor.description else ()

        return Answers(
            self,
            asked,
            locks[self.alias],
            connection.vendor,
            execute,
            failures=(Error,),
            remedy=_NO_TABLE,
        )

    def _refusal(self, why: str) -> ConfigurationError:
        return ConfigurationError(
            f"the database {self.using!r} of an idempotent() view {why}. Its work must be committed together"
            " with its answer",
            code="idempotency",
        )


def _parts_of(request: HttpRequest) -> list[bytes]:
    """Return the body of a request; of a form its parts, whatever separates them.

    Raises ``ConfigurationError`` if the application has read some of it as a stream.
    """
    try:
        if request.content_type != "multipart/form-data":
            return [request.body]
        if request.method == "POST":
            posted, files = request.POST, request.FILES
        else:  # Django itself reads forms of POST requests only.
            posted, files = request.parse_file_upload(request.META, BytesIO(request.body))
    except RawPostDataException:
        parts = None
    else:
        fields = [(name, value) for name, values in posted.lists() for value in values]
        uploads = [
            (name, each.name, each.content_type, each)
            for name, several in files.lists()
            for each in several
        ]
        # A form is empty, too, if something has read its body before.
        size = float(request.META.get("CONTENT_LENGTH") or "inf")
        parts = form_parts(request.META["CONTENT_TYPE"], size, fields, uploads)
    if parts is None:
        raise body_consumed("request.body instead of request.read()")
    return parts


def _replayed(found: Answer) -> HttpResponse:
    again = found.replayed
    return HttpResponse(again.body, status=again.status, headers=dict(again.headers))
