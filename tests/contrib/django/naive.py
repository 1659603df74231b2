"""The decorator that everybody writes first: it releases when the view returns."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from weblock.contrib.django import locks


def naive_lock(key: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Holds ``key`` around a view, wherever the view's transaction begins and ends."""

    def decorate(view: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(view)
        def held(*args: Any, **kwargs: Any) -> Any:
            with locks["default"].hold(key, wait=30):
                return view(*args, **kwargs)

        return held

    return decorate
