"""What a route declares of the values that its keys need, and what a request has for them.

FastAPI's own code converts each value here, so that a key has the value the endpoint sees. Whether two
declarations convert alike is for Pydantic to know, so they have to be equal; and where only an imitation
of FastAPI could tell which value it reads, a key function is to be written, which is given it.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextvars import ContextVar
from types import UnionType
from typing import Annotated, Any, Final, NamedTuple, Union, get_args, get_origin
from uuid import UUID
from weakref import ref

from fastapi import Depends
from fastapi.dependencies.utils import request_params_to_args
from fastapi.exceptions import RequestValidationError, WebSocketRequestValidationError
from fastapi.requests import HTTPConnection
from pydantic import BaseModel

from ..._runtime.runtimes import part_of
from ...errors import ConfigurationError
from ...keys import KeyTemplate, Source
from ..asgi import AsyncRequestLocks
from ..kit import lacking, sent_value


class Declared(NamedTuple):
    """A parameter of an endpoint, or of one of its dependencies."""

    place: object
    """The endpoint or the dependency."""
    parameter: Any
    """FastAPI's field."""
    name: str | None
    """The name that requests send it under; ``None`` if they may use several names."""

    @property
    def is_text(self) -> bool:
        """Whether the value is the text of the request itself."""
        info = self.parameter.field_info
        return info.annotation is str and not info.metadata

    def facts(self, text: type) -> tuple[object, ...]:
        """Return what makes its values; ``text`` is what the key makes of a text."""
        info = self.parameter.field_info
        kind = text if self.is_text else info.annotation
        # The order of a union counts, which its equality ignores; and so does ``True`` for ``1``.
        conversion = self.name, kind, get_args(kind), info.metadata, info.validate_default
        return *conversion, info.default, type(info.default), info.default_factory

    def __str__(self) -> str:
        name, info = self.parameter.name, self.parameter.field_info
        default = info.default_factory or (
            inspect.Parameter.empty if info.is_required() else info.default
        )
        kind, annotation = inspect.Parameter.KEYWORD_ONLY, info.rebuild_annotation()
        written = inspect.Parameter(name, kind, default=default, annotation=annotation)
        sent = f", sent as {self.name!r}" if self.name not in (name, None) else ""
        return f"{getattr(self.place, '__qualname__', self.place)} declares {written}{sent}"


class Wanted(NamedTuple):
    """A value that a template needs."""

    name: str
    """Its name in the template."""
    source: Source
    """Where requests have it."""
    parameter: Any
    """FastAPI's field of what the route declares of it; ``None`` if it declares nothing."""
    is_as_given: bool = False
    """Whether the endpoint sees the very text that the router has found in the path."""


def wanted_of(template: KeyTemplate, dependant: Any) -> list[Wanted]:
    """Return what a template needs of a request, as the route with this dependant declares it.

    Raises ``ConfigurationError`` for a value that the route declares in several ways, or in one that no
    key can be made of.
    """
    wanted: list[Wanted] = []
    for name, source in template.sources.items():
        declared = list(_declared(dependant, source.kind)) if dependant else []
        if source.kind == "header":  # A client may send either spelling.
            spelled = source.name.replace("_", "-")
            found = [
                each for each in declared if each.name and each.name.replace("_", "-") == spelled
            ]
        else:
            found = [each for each in declared if each.name == source.name]
        unclear = [each for each in declared if each.name is None]
        if not found and not unclear:
            for each in declared:
                if source.kind != "path" and each.parameter.name.lower() == source.name.lower():
                    raise ConfigurationError(
                        f"lock({template.text!r}) needs {{{source.kind}.{source.name}}}, which requests"
                        f" send under its alias: write {{{source.kind}.{each.name}}}",
                        code="missing_value",
                    )
            wanted.append(Wanted(name, source, None))
            continue
        # A key is made of one of them, and the work may use another: with the text of an audit, 7 and 07 are
        # two keys, but one shop to an endpoint that declares an int. A type in the key makes it of the text.
        pairs = zip(template.names, template.converters, strict=True)
        types = {_MADE_OF_TEXT.get(converter, str) for each, converter in pairs if each == name}
        text = types.pop() if len(types) == 1 else str
        for other in found[1:]:
            if other.facts(text) != found[0].facts(text):
                raise ConfigurationError(
                    f"lock({template.text!r}) cannot tell which {{{name}}} the work uses: {found[0]}, and"
                    f" {other}, so that one thing could have two keys. Declare it with the same type,"
                    f" constraints, default and alias in both, or give lock() a key function that"
                    f" declares it as the work does. If one of them is a plain str, and the other an int"
                    f" or a UUID, {{{name}:int}} or {{{name}:uuid}} in the key makes them agree",
                    code="ambiguous_value",
                )
        chosen = min(unclear or found, key=lambda each: each.is_text)
        info = chosen.parameter.field_info
        several = any(
            _is_a(each, _SEVERAL) and not _is_a(each, _TEXTS) for each in _classes(info.annotation)
        )
        if unclear or several or info.default_factory:
            raise ConfigurationError(
                f"lock({template.text!r}) needs one value for {{{name}}}, under one name and the same"
                f" whenever it is read, but {chosen}. Write a key function that declares it so, or has a"
                " dependency that does, and give that to lock() instead of the template",
                code="ambiguous_value",
            )
        is_as_given = source.kind == "path" and chosen.is_text
        source = Source(source.kind, str(chosen.name))  # noqa: PLW2901 - as the route declares it
        wanted.append(Wanted(name, source, chosen.parameter, is_as_given))
    return wanted


_MADE_OF_TEXT: Final = {"int": int, "uuid": UUID}
"""The types that converters of a template make of a text."""

_SEVERAL: Final = Sequence | AbstractSet | Mapping
_TEXTS: Final = str | bytes | bytearray


def needing(
    dependencies: Mapping[str, Any], own: inspect.Signature | None = None
) -> inspect.Signature:
    """Return the signature of a dependency that FastAPI gives these, too, in this order, by their names.

    ``own`` is its signature without them, which ends with the parameter that takes them.
    """
    kind = inspect.Parameter.KEYWORD_ONLY
    more = [
        inspect.Parameter(name, kind, annotation=Annotated[Any, Depends(each)])
        for name, each in dependencies.items()
    ]
    before = [*own.parameters.values()][:-1] if own else []
    return inspect.Signature([*before, *more])


def needed_by(dependant: Any) -> Iterator[Any]:
    """Return what a route depends on, in the order in which FastAPI solves it."""
    for each in dependant.dependencies:
        yield from needed_by(each)
        yield each


def _declared(dependant: Any, kind: str) -> Iterator[Declared]:
    """Return every parameter of a kind that an endpoint and its dependencies declare."""
    for parameter in getattr(dependant, f"{kind}_params"):
        info = parameter.field_info
        # An older FastAPI has no ``validation_alias``, and reads none.
        name = getattr(parameter, "validation_alias", None) or parameter.alias
        several = not isinstance(info.validation_alias, str | None)
        # Of a model, FastAPI reads the fields under their names, and their aliases.
        if several or any(_is_a(each, BaseModel) for each in _classes(info.annotation)):
            name = None
        elif kind == "header":
            name = name.lower()
        yield Declared(dependant.call, parameter, name)
    for each in dependant.dependencies:
        yield from _declared(each, kind)


def _classes(annotation: Any) -> Iterator[Any]:
    """Return the class that an annotation names; of a union, each."""
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if get_origin(annotation) in (Union, UnionType):
        for each in get_args(annotation):
            yield from _classes(each)
    else:
        yield get_origin(annotation) or annotation


def _is_a(kind: Any, classes: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, classes)


interrupting: Final[ContextVar[ref[AsyncRequestLocks] | None]] = ContextVar(
    "weblock_interrupting", default=None
)
"""The request whose endpoint is to be cancelled when its lease is lost."""


def interruptible(endpoint: Any) -> Any:
    """Return a coroutine function as one that a request can cancel when its lease is lost, and others as they are.

    FastAPI has no hook between an endpoint and the dependencies around it. What these do must not be
    interrupted, for a commit that was sent is not undone. So the first request of a route replaces the
    endpoint in ``dependant.call``, where FastAPI finds it after it has solved the dependencies.

    To cancel the task that waits for a thread does not stop the thread, and a stream is cancelled as
    such. An endpoint that is cancelled raises ``LeaseLost``, so that the dependencies around it roll
    back as they do for any error, and its task is cancelled no more.
    """
    function = endpoint
    while isinstance(function, functools.partial):
        function = function.func
    called = function if inspect.isroutine(function) else type(function).__call__
    if not inspect.iscoroutinefunction(called):
        return endpoint

    @functools.wraps(endpoint, updated=())
    async def call(*args: Any, **kwargs: Any) -> Any:
        known = interrupting.get()
        request = known() if known else None
        task = asyncio.current_task(request.loop) if request else None
        # The endpoint may belong to another request, which a handler of this one sends to an application.
        if task is None or request is None or part_of.get() is not request.book.flow:
            return await endpoint(*args, **kwargs)
        if request.lost:  # While a dependency ran, which nothing interrupts.
            request.check_done()
        cancelled_before = task.cancelling()
        request.endpoints.append(task)
        try:
            return await endpoint(*args, **kwargs)
        except asyncio.CancelledError:
            # The dependencies around it roll back for an error, and a server cancels for another reason.
            if request.interrupted and request.lost and task.cancelling() - 1 <= cancelled_before:
                request.check_done()
            raise
        finally:
            request.endpoints.remove(task)
            if request.interrupted and task.cancelling() > cancelled_before:
                task.uncancel()

    return call


Known = Callable[[str], Sequence[Wanted]]
"""Returns what the template with this text needs of requests to a route. Raises as ``wanted_of``."""


def known_of(dependant: Any) -> Known:
    """Return what is known of a route, whose endpoint can be cancelled from now on."""
    if dependant:
        dependant.call = interruptible(dependant.call)
    return functools.cache(lambda text: wanted_of(KeyTemplate.parse(text), dependant))


_RECEIVED: Final = {"path": "path_params", "query": "query_params", "cookie": "cookies"}
"""The attributes of a connection that have the values of each kind."""


def values_for(
    template: KeyTemplate, *, connection: HTTPConnection, known: Known
) -> Mapping[str, object]:
    """Return the values of a request for a template, as the endpoint sees them.

    ``/items/7`` and ``/items/07`` are one item to an endpoint that declares an ``int``; so they
    must be one key too. So it is with query parameters, headers and cookies, and a declared default
    stands for one that is missing.

    Raises what FastAPI raises for the endpoint where a value does not convert,
    and ``InvalidKey`` for one that was sent twice.
    """
    if not template.names:
        return {}
    path, values = connection.scope["path_params"], {}
    for name, source, parameter, is_as_given in known(template.text):
        value: object
        if source.kind != "path":
            query = connection.scope["query_string"].decode("latin-1")
            value = sent_value(source, query=query, headers=connection.headers.getlist)
        elif source.name in path:
            value = path[source.name]
        else:  # Of a route that was not there at the start, where this is checked.
            raise lacking(f"lock({template.text!r})", "path parameter", source.name, path)
        if parameter and not is_as_given:
            text, errors = value, ()
            if text is not None:
                value, errors = parameter.validate(text, {}, loc=(source.kind, source.name))
            if text is None or errors:
                # What an endpoint is given that was not sent, or what FastAPI raises for it.
                received: Any = getattr(connection, _RECEIVED.get(source.kind, "headers"))
                solved, wrong = request_params_to_args([parameter], received)
                if wrong:
                    if connection.scope["type"] == "websocket":
                        raise WebSocketRequestValidationError(wrong)
                    raise RequestValidationError(wrong)
                value = solved[parameter.name]
        if parameter or value is not None:  # An endpoint may declare that a value is optional.
            values[name] = value
    return values
