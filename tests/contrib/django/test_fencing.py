"""A row that knows the fence of its last writer refuses the write of a holder that slept."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, connections, transaction
from django.db.migrations.writer import MigrationWriter
from django.db.models import F, QuerySet
from django.test.utils import CaptureQueriesContext

from weblock import ConfigurationError, LeaseLost, Locks
from weblock.contrib.django import locks
from weblock.contrib.django.fencing import FencedQuerySet, FenceField, StaleFence

from .project.ledger.models import Account, Entry, Owner, Savings

BOTH = ["default", "lite"]

TOP = Path(__file__).parents[3]

pytestmark = pytest.mark.django_db(databases=BOTH)


def accounts(alias: str = "default", *, count: int = 1) -> FencedQuerySet:
    """Some accounts that nobody has written to, all of one owner."""
    owner = Owner.objects.using(alias).create(name="Ann")
    for _ in range(count):
        Account.objects.using(alias).create(owner=owner)
    return Account.objects.using(alias).filter(owner=owner)


@pytest.mark.parametrize("alias", BOTH)
def test_a_paused_holder_is_refused(alias: str, url: str) -> None:
    """A holder that wakes up after another has written is refused, on PostgreSQL and on SQLite."""
    rows = accounts(alias)
    with ThreadPoolExecutor(1) as elsewhere:
        acquiring = elsewhere.submit(locks["default"].acquire, "account:1", ttl=0.1, renew=False)
    paused = acquiring.result()
    with locks["default"].hold("account:1", wait=60) as lease:  # When the other has run out.
        assert rows.fenced_update(lease, balance=100) == 1

    with pytest.raises(StaleFence) as caught, transaction.atomic(using=alias):
        rows.fenced_update(paused, balance=-1)
    assert (caught.value.key, caught.value.fence) == ("account:1", paused.fence)
    assert caught.value.newest == lease.fence
    assert list(rows.values_list("balance", "fence")) == [(100, lease.fence)]
    with pytest.raises(LeaseLost):
        paused.release()


@pytest.mark.django_db(transaction=True)
def test_a_stopped_process_is_refused(tmp_path: Path) -> None:
    """A process that was stopped while it held the lock is refused; without a fence it would write."""
    rows = accounts()
    engine = f"file://{tmp_path}"
    database = connection.settings_dict
    command = [sys.executable, "-m", f"{__package__}.paused_holder", engine]
    command += [str(database["PORT"]), database["NAME"], str(rows.get().pk)]
    with subprocess.Popen(
        command, cwd=TOP, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        try:
            assert holder.stdout
            assert holder.stdin
            assert holder.stdout.readline() == "holds\n"
            holder.send_signal(signal.SIGSTOP)
            with Locks.from_url(engine, wait=60).hold("account") as lease:
                rows.fenced_update(lease, balance=100)
            holder.send_signal(signal.SIGCONT)
            holder.stdin.write("\n")
            holder.stdin.flush()
            assert holder.stdout.readline() == "naive: 1\n"
            assert f"fence {lease.fence} has written since" in holder.stdout.readline()
        finally:
            holder.kill()
    assert rows.get().balance == -1  # What the naive write has left behind.


@pytest.mark.parametrize("alias", BOTH)
def test_one_statement_decides(alias: str) -> None:
    """The comparison of the fences and the write are one UPDATE."""
    rows = accounts(alias)
    with CaptureQueriesContext(connections[alias]) as queries:
        rows.fenced_update(7, balance=F("balance") + 1)
    updates = [each["sql"] for each in queries if each["sql"].startswith("UPDATE")]
    assert len(updates) == 1
    assert '"fence" <= 7' in updates[0]
    assert '"fence" = 7' in updates[0]
    assert "SELECT" not in updates[0]


def test_a_holder_may_write_again() -> None:
    """The fence of the last writer itself is not older."""
    rows = accounts()
    assert rows.fenced_update(7, balance=1) == 1
    assert rows.fenced_update(7, balance=2) == 1


def test_no_row_is_no_refusal() -> None:
    """Where no row fits the filter, none is updated, as with update()."""
    assert Account.objects.filter(pk=0).fenced_update(7, balance=1) == 0


def test_several_rows_are_written_all_or_none() -> None:
    """One row with a newer fence keeps the others from being written."""
    rows = accounts(count=3)
    Account.objects.filter(pk=rows.latest("pk").pk).fenced_update(9, balance=9)
    with pytest.raises(StaleFence), transaction.atomic():
        rows.fenced_update(8, balance=1)
    assert sorted(rows.values_list("balance", flat=True)) == [0, 0, 9]


@pytest.mark.django_db(databases=BOTH, transaction=True)
def test_swallowing_the_refusal_commits_nothing() -> None:
    """A transaction in which a write was refused cannot commit what else it did."""
    rows = accounts()
    rows.fenced_update(9)
    with transaction.atomic():
        Entry.objects.create(account=rows.get())
        with pytest.raises(StaleFence):
            rows.fenced_update(8, balance=1)
    assert not Entry.objects.exists()


def test_a_plain_save_does_not_turn_the_fence_back() -> None:
    """An object that was loaded before leaves the fence in its row alone, new ones start at 0."""
    rows = accounts()
    loaded = rows.get()
    assert loaded.fence == 0
    rows.fenced_update(7)
    loaded.balance = 5
    loaded.save()
    assert list(rows.values_list("balance", "fence")) == [(5, 7)]


def test_a_migration_can_have_the_field() -> None:
    """What makemigrations writes for the field makes the same field, for rows that exist already."""
    written, imports = MigrationWriter.serialize(FenceField())
    assert written == "weblock.contrib.django.fencing.FenceField(default=0, editable=False)"
    assert imports == {"import weblock.contrib.django.fencing"}


def test_columns_of_another_table_are_refused() -> None:
    """What would take two statements, columns of a parent's table, is refused by name."""
    Savings.objects.create(owner=Owner.objects.create(name="Ann"))
    with pytest.raises(
        ConfigurationError, match=r"ledger\.Savings\.fence .* update ledger\.Account"
    ):
        Savings.objects.fenced_update(7, rate=1)


def test_async_code_has_it_too() -> None:
    """afenced_update updates and refuses as well."""
    rows = accounts()
    update = async_to_sync(rows.afenced_update)
    assert update(7, balance=1) == 1
    with pytest.raises(StaleFence), transaction.atomic():
        update(6, balance=2)


def test_a_lease_of_several_keys_has_several_fences(url: str) -> None:
    """Which of them the rows are to have is for the caller to say: one of another key proves nothing."""
    rows = accounts()
    with locks["default"].hold("account:2", "account:1") as lease:
        with pytest.raises(ConfigurationError) as caught:
            rows.fenced_update(lease, balance=1)
        assert str(caught.value) == (
            "this lease has a fence for each of its keys, 'account:1' and 'account:2': pass that of the"
            " key that the rows are written under, such as lease.fences['account:1']"
        )
        assert rows.fenced_update(lease.fences["account:2"], balance=2) == 1
    assert list(rows.values_list("balance", "fence")) == [(2, lease.fences["account:2"])]


def test_a_section_without_a_lease_is_refused() -> None:
    """Where the engine was down and the section runs all the same, there is no fence to compare."""
    lease = Locks.from_url("redis://127.0.0.1:1", on_unavailable="open").acquire(
        "account:1", wait=0
    )
    for fence in (lease, lease.fences["account:1"]):
        with pytest.raises(ConfigurationError, match="there is no fence"):
            Account.objects.fenced_update(fence, balance=1)


def plain(rows: FencedQuerySet) -> FencedQuerySet:
    """A filter over one table."""
    return rows


def joined(rows: FencedQuerySet) -> FencedQuerySet:
    """A filter over two."""
    return rows.filter(owner__name="Ann")


def naive(rows: FencedQuerySet, fence: int, **values: Any) -> int:
    """Looks first and writes then: what fenced_update is not."""
    if rows.filter(fence__gt=fence).exists():
        raise StaleFence("account", fence=fence, newest=0)
    return int(rows.update(fence=fence, **values))


def through_a_subquery(rows: FencedQuerySet, fence: int, **values: Any) -> int:
    """One statement, but with the fence where a database that has waited does not look again."""
    return int(QuerySet.update(rows.filter(fence__lte=fence), fence=fence, **values))


Update = Callable[..., int]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("update", "shape", "balance"),
    [
        (FencedQuerySet.fenced_update, plain, 100),
        (FencedQuerySet.fenced_update, joined, 100),
        (naive, plain, -1),
        (through_a_subquery, joined, -1),
    ],
)
def test_a_write_that_comes_in_between_counts(update: Update, shape: Any, balance: int) -> None:
    """A stale write that had to wait for a newer one to commit is refused then.

    A look before the write lets it pass, and so does a fence that is compared in a subquery.
    """
    rows = accounts()

    def write_late() -> None:
        try:
            update(shape(rows), 8, balance=-1)
        except StaleFence:
            pass
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as threads:
        with transaction.atomic():
            rows.fenced_update(9, balance=100)
            late = threads.submit(write_late)
            until_it_waits(late)
        late.result()
    assert rows.get().balance == balance


def until_it_waits(late: Future[None]) -> None:
    """Returns when some statement waits for the lock of a row."""
    query = "SELECT count(*) FROM pg_locks WHERE NOT granted"
    tick = threading.Event()
    while not late.done():
        with connection.cursor() as cursor:
            cursor.execute(query)
            if cursor.fetchone() != (0,):
                return
        tick.wait(0.01)
