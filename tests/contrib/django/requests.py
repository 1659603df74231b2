"""Requests to views of a test's own, several at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from django.db import connections
from django.http import HttpResponse
from django.test import Client
from django.urls import path

from tests.support.waiting import PATIENCE


def urls(**views: Any) -> tuple[Any, ...]:
    """A ROOT_URLCONF, by name: ``items`` for ``/items``, ``item__pk`` for ``/item/<pk>``."""
    return tuple(path(_route(name), view, name=name) for name, view in views.items())


def _route(name: str) -> str:
    first, *parameters = name.split("__")
    return "/".join([first, *(f"<{each}>" for each in parameters)])


def fetch(url: str, method: str = "post", **headers: Any) -> HttpResponse:
    """The response to one request, from a client that gives back its thread's connections."""
    client = Client(raise_request_exception=False, headers=headers)
    try:
        return getattr(client, method)(url)
    finally:
        if threading.current_thread() is not threading.main_thread():
            connections.close_all()


def at_once(count: int, work: Callable[[], Any]) -> list[Any]:
    """Does ``work`` in so many threads, which begin together."""
    start = threading.Barrier(count)

    def do(_number: int) -> Any:
        start.wait(PATIENCE)
        return work()

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(do, range(count)))


class Crowd:
    """So many who look at the items: each may wait, for a while, until another has looked too."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._looked = threading.Condition()
        self._looks = 0

    def look(self) -> None:
        with self._looked:
            self._looks += 1
            self._looked.notify_all()

    def linger(self, patience: float = 0.05) -> None:
        """Gives another time to look, if one is left: what keeps everybody else out loses no more than that."""
        with self._looked:
            before = self._looks
            self._looked.wait_for(
                lambda: self._looks > before or self._looks == self._count, patience
            )
