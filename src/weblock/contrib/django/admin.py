"""A page in Django's admin: who holds keys, who waits for them, and a button that takes one away."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils import timezone

from ..._platform.logs import printable
from ...errors import WeblockError
from ...inspection import KeyInfo
from ...operating import ChangedHands, duration, holder_of, take_away
from .models import Fence, Lock
from .settings import locks

LIMIT: Final = 500
"""How many keys of one alias the page shows at most."""


@dataclass(frozen=True)
class KeyRow:
    """A key; ``shown`` is its text on the page, without characters that reverse a line."""

    info: KeyInfo
    shown: KeyInfo
    since: datetime
    held_for: str
    left: str


@dataclass(frozen=True)
class AliasTable:
    """The keys of one alias, or why they cannot be seen."""

    alias: str
    engine: str
    rows: list[KeyRow]
    error: str = ""


class _Shown(admin.ModelAdmin):
    """Shows what comes and goes by itself."""

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:  # noqa: ARG002 - Django's
        """Nobody adds, changes or deletes anything here."""
        return False

    has_change_permission = has_delete_permission = has_add_permission


@admin.register(Lock)
class LockAdmin(_Shown):
    """Shows what the engines know.

    ``weblock.view_lock`` is the permission to look, ``weblock.release_lock`` to release by force.
    """

    def get_urls(self) -> list[URLPattern]:
        """Return the URLs of the list, and of the page that asks before it releases."""
        view = self.admin_site.admin_view
        return [
            path("", view(self.changelist_view), name="weblock_lock_changelist"),
            path("release/", view(self.release_view), name="weblock_lock_release"),
        ]

    def has_release_permission(self, request: HttpRequest) -> bool:
        """Return whether the user may release a lease by force."""
        user: Any = request.user  # type: ignore[attr-defined] # AuthenticationMiddleware puts it there
        return bool(user.has_perm("weblock.release_lock"))

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show the holders and queues of all aliases, for keys that begin with ``q``."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        prefix = request.GET.get("q", "")
        sections: list[AliasTable] = []
        for alias in locks:
            engine = ""
            try:
                engine = locks[alias].engine
                rows = [_row(info) for info in locks[alias].list(prefix, limit=LIMIT)]
                sections.append(AliasTable(alias, engine, rows))
            except WeblockError as error:
                sections.append(AliasTable(alias, engine, [], str(error)))
        context = {
            "title": "Locks that are held or waited for",
            "prefix": prefix,
            "sections": sections,
            "limit": LIMIT,
            "may_release": self.has_release_permission(request),
            **(extra_context or {}),
        }
        return self._page(request, "locks", context)

    def release_view(self, request: HttpRequest) -> HttpResponse:
        """Ask, and release the lease by force, if it is still the one that was shown."""
        if not self.has_view_permission(request) or not self.has_release_permission(request):
            raise PermissionDenied
        named = request.POST if request.method == "POST" else request.GET
        alias, key, fence = (named.get(name, "") for name in ("alias", "key", "fence"))
        back = HttpResponseRedirect(
            reverse("admin:weblock_lock_changelist", current_app=self.admin_site.name)
        )
        user: Any = request.user  # type: ignore[attr-defined] # AuthenticationMiddleware puts it there
        try:
            info = locks[alias].inspect(key)
            if info is None or info.fence is None or str(info.fence) != fence:
                raise ChangedHands(key, info)
            if request.method != "POST":
                context = {"title": "Release by force?", "alias": alias, "row": _row(info)}
                return self._page(request, "release", context)
            by = f"{user.get_username()} (admin)"
            taken = take_away(locks[alias], key, fence=info.fence, by=by)
            if taken is None:
                raise ChangedHands(key, None)
        except (WeblockError, ChangedHands) as error:
            messages.error(request, f"Nothing was released: {error}")
            return back
        LogEntry.objects.log_actions(
            user.pk,
            [Lock(key=f"{alias}: {info.key}")],
            CHANGE,
            f"Taken from {holder_of(taken)} by force (fence {taken.fence}).",
            single_object=True,
        )
        shown = _row(taken).shown
        messages.success(request, f"Released {shown.key}, taken from {shown.holder}.")
        return back

    def _page(self, request: HttpRequest, name: str, context: dict[str, Any]) -> HttpResponse:
        common = {**self.admin_site.each_context(request), "opts": self.opts}
        request.current_app = self.admin_site.name  # type: ignore[attr-defined] # as the admin does
        return TemplateResponse(request, f"admin/weblock/{name}.html", {**common, **context})


@admin.register(Fence)
class FenceAdmin(_Shown):
    """Shows the fence of each key, as the default database knows it.

    ``weblock.view_fence`` is the permission to look.
    """

    list_display: Any = ("lock_key", "fence", "raised_at")
    search_fields: Any = ("lock_key",)
    ordering: Any = ("-raised_at",)
    fields: Any = list_display
    readonly_fields: Any = list_display


def _row(info: KeyInfo) -> KeyRow:
    since = timezone.now() - timedelta(seconds=info.held_for)
    shown = replace(
        info,
        key=printable(info.key),
        holder=info.holder and holder_of(info),
        waiters=tuple(map(printable, info.waiters)),
        holders=tuple(replace(each, label=printable(each.label)) for each in info.holders),
    )
    return KeyRow(info, shown, since, duration(info.held_for), duration(info.remaining))
