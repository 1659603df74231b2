from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner

from tests.servers import Postgres
from tests.servers.pgbouncer import PgBouncer
from tests.servers.postgres import fresh_postgresql, shared_postgres
from tests.support.urls import varied
from tests.support.waiting import PATIENCE, eventually
from weblock import (
    AsyncLocks,
    ConfigurationError,
    EngineRecovering,
    EngineUnavailable,
    Locks,
    LockTimeout,
)
from weblock._core.ports import CheckAgain, Granted, Message, Pulse
from weblock._core.table import Claim, KeyState, Moment, acquire
from weblock._runtime.runtimes import drive
from weblock.cli.app import app
from weblock.stores.cells import Acquire
from weblock.stores.postgresql.cells import Caller, Together
from weblock.stores.postgresql.engine import PostgreSQLEngine
from weblock.stores.postgresql.links import AsyncioLink, BlockingLink, OfThreads
from weblock.stores.postgresql.settings import parse
from weblock.stores.postgresql.statements import DONE, PORTION, TEXT
from weblock.stores.transport.listener import to_notification

LONG = 60.0


@pytest.fixture
def url() -> str:
    return fresh_postgresql()


@pytest.fixture
def locks(url: str) -> Iterator[Locks]:
    with Locks.from_url(url, ttl=LONG, wait=PATIENCE) as locks:
        yield locks


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    """A server of our own, to which anything may happen."""
    with Postgres() as server:
        yield server


def table_of(locks: Locks) -> str:
    return locks._engine.settings.table  # type: ignore[attr-defined]


def rows_of(locks: Locks, what: str = "*", where: str = "true") -> list[Any]:
    with psycopg.connect(shared_postgres().url(), autocommit=True) as connection:
        query = f"SELECT {what} FROM {table_of(locks)} WHERE {where}"
        return connection.execute(query.encode()).fetchall()


def change(locks: Locks, assignment: str, where: str) -> None:
    """Change rows as only time or an operator does."""
    shared_postgres().execute(f"UPDATE {table_of(locks)} SET {assignment} WHERE {where}")


class Asked:
    """Counts the statements that the blocking world sends."""

    def __init__(self, locks: Locks, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        cells = locks._locker.store._cells  # type: ignore[attr-defined]
        links, statements = cells._links, cells._statements
        known = {statements.acquire: "acquire", statements.release: "release"}
        ask = links.ask

        async def counted(statement: Any, *parameters: Any) -> Any:
            # The keeper has a thread of its own.
            if threading.current_thread() is threading.main_thread():
                self.names.append(known.get(statement, "another"))
            return await ask(statement, *parameters)

        monkeypatch.setattr(links, "ask", counted)


class TestStatements:
    def test_a_free_key_costs_one_statement_each_way(self, locks, monkeypatch) -> None:
        """A key that nobody wants is acquired in one statement, and released in one."""
        asked = Asked(locks, monkeypatch)
        for _ in range(3):
            locks.acquire("key").release()
        assert asked.names == ["acquire", "release"] * 3

    def test_a_refusal_changes_nothing(self, locks, monkeypatch) -> None:
        """A key that is held is refused in one statement, which leaves the row as it is."""
        asked = Asked(locks, monkeypatch)
        with locks.hold("key"):
            before = rows_of(locks, "xmin::text, xmax::text, version")
            with pytest.raises(LockTimeout):
                locks.acquire("key", wait=0)
            assert rows_of(locks, "xmin::text, xmax::text, version") == before
        assert asked.names == ["acquire", "acquire", "release"]

    def test_what_changes_stays_on_its_page(self, locks) -> None:
        """Updates are heap-only: no index grows with the number of acquisitions."""
        for _ in range(50):
            locks.acquire("key").release()
        with psycopg.connect(shared_postgres().url(), autocommit=True) as connection:
            query = "SELECT pg_indexes_size(%s::regclass), pg_relation_size(%s::regclass)"
            index, heap = connection.execute(query, [table_of(locks)] * 2).fetchone()  # type: ignore[misc]
        assert index <= 16384
        assert heap <= 16384

    def test_rows_that_nobody_uses_are_removed(self, locks) -> None:
        """They go a while after their last use, and the fences that they had are never given again."""
        locks.acquire("old").release()
        with locks.hold("held"):
            change(locks, "until = 1, fence = 9000000000000000", "key LIKE '%old'")
            locks._engine.tidy_at = 0.0  # type: ignore[attr-defined]
            locks.acquire("other").release()
            keys = {key.rpartition(":")[2] for (key,) in rows_of(locks, "key")}
            assert keys == {"", "held", "other"}
            with locks.hold("old") as lease:
                assert lease.fence > 9000000000000000

    def test_rows_are_removed_as_fast_as_they_come(self, locks) -> None:
        """Where some were removed, the next release goes on without a pause."""
        locks.acquire("old").release()
        with psycopg.connect(shared_postgres().url(), autocommit=True) as connection:
            connection.execute(
                f"INSERT INTO {table_of(locks)} SELECT (jsonb_populate_record(it,"
                " jsonb_build_object('key', 'default:' || number, 'until', 1, 'ends', 1))).*"
                f" FROM {table_of(locks)} AS it, generate_series(1, {2 * PORTION + 1}) AS number"
                " WHERE it.key LIKE '%old'"
            )
        locks._engine.tidy_at = 0.0  # type: ignore[attr-defined]
        for left in (PORTION + 1, 1, 0, 0):
            locks.acquire("other").release()
            (count,) = rows_of(locks, "count(*)", "key NOT IN ('', 'default:old', 'default:other')")
            assert count == (left,)

    def test_rows_are_removed_however_many_are_kept(self, locks) -> None:
        """Each time, only a portion of the table is read: the next one goes on behind it."""
        locks.acquire("old").release()
        with psycopg.connect(shared_postgres().url(), autocommit=True) as connection:
            connection.execute(
                f"INSERT INTO {table_of(locks)} SELECT (jsonb_populate_record(it,"
                f" jsonb_build_object('key', '{TEXT}' || number, 'ends', 'infinity'::float8))).*"
                f" FROM {table_of(locks)} AS it, generate_series(1, {2 * PORTION}) AS number"
                " WHERE it.key LIKE '%old'"
            )
        change(locks, "until = 1, ends = 1", "key LIKE '%old'")
        for kept in (True, True, False):
            locks._engine.tidy_at = 0.0  # type: ignore[attr-defined]
            locks.acquire("other").release()
            assert (rows_of(locks, "key", "key LIKE '%old'") != []) is kept

    def test_marks_whose_time_is_over_are_removed(self, locks) -> None:
        """So are rows of ``once`` that have ended, and no others."""
        for key, expiry in (("for long", 3600), ("for a moment", 60), ("forever", None)):
            locks.once(key, lambda: None, expiry=expiry)
        change(locks, "until = 1, ends = 1", "key LIKE '%moment'")
        locks._engine.tidy_at = 0.0  # type: ignore[attr-defined]
        locks.acquire("other").release()
        keys = {key for (key,) in rows_of(locks, "key", "ascii(key) = 1")}
        assert keys == {f"{DONE}default:{each}" for each in ("for long", "forever")}

    def test_the_next_holder_does_not_wait_until_they_are_removed(self, locks, monkeypatch) -> None:
        """A release notifies the waiter of its own process first, and looks for such rows then."""
        order: list[str] = []
        engine, cells = locks._engine, locks._locker.store._cells  # type: ignore[attr-defined]
        notify, clean = engine.switchboard.notify, cells.clean
        monkeypatch.setattr(
            engine.switchboard, "notify", lambda *what: (order.append("notified"), notify(*what))
        )

        async def cleaned() -> bool:
            if (
                threading.current_thread() is waiter
            ):  # It has just joined the queue, and looks, too.
                return True
            order.append("cleaned")
            return await clean()

        lease = locks.acquire("key")
        waiter = threading.Thread(target=lambda: locks.acquire("key").release())
        waiter.start()
        eventually(lambda: rows_of(locks, "rest", "rest <> ''"))
        monkeypatch.setattr(cells, "clean", cleaned)
        engine.tidy_at = 0.0
        lease.release()
        waiter.join(PATIENCE)
        assert order == ["notified", "cleaned"]

    def test_fences_increase_though_the_clock_was_set_back(self, locks) -> None:
        """The row remembers the last fence, whatever the server's clock says now."""
        locks.acquire("key").release()
        change(locks, "fence = 9000000000000000", "key LIKE '%key'")
        with locks.hold("key") as lease:
            assert lease.fence == 9000000000000001

    def test_a_row_that_is_locked_by_others_is_told(self, url) -> None:
        """A transaction that keeps the row locked delays a caller for the timeout, which says so."""
        with (
            Locks.from_url(url) as patient,
            Locks.from_url(varied(url, timeout=0.3), wait=0.5, ttl=0.5) as locks,
            psycopg.connect(shared_postgres().url()) as other,
        ):
            patient.acquire("key", wait=PATIENCE).release()
            other.execute(f"SELECT FROM {table_of(locks)} FOR UPDATE".encode())
            with pytest.raises(EngineUnavailable, match=r"row of the key locked|within 0.3 s"):
                locks.acquire("key")
            other.rollback()
            locks.acquire("key", ttl=LONG, wait=PATIENCE).release()


CROWD = 50


async def visit(locks: AsyncLocks) -> int:
    async with locks.hold("key") as lease:
        return lease.fence


def queued(url: str) -> int:
    with Locks.from_url(varied(url, timeout=21)) as locks:
        found = locks.inspect("key")
        return len(found.waiters) if found else 0


class TestTurns:
    """Callers of one process change a key one after the other, except for those that release it."""

    def test_a_release_waits_for_no_caller_that_joins_the_queue(self, url) -> None:
        """While another thread has its turn at the key, the lease is released, and the next holder gets it."""
        with Locks.from_url(url) as locks, Locks.from_url(varied(url, timeout=21)) as others:
            lease = locks.acquire("k")
            links = locks._locker.store._cells._links  # type: ignore[attr-defined]

            async def work() -> None:
                lease.release()
                others.acquire("k", wait=0).release()

            drive(links.in_turn("default:k", work))

    async def test_nor_does_a_task(self, url) -> None:
        """The same in an event loop."""
        locks, others = AsyncLocks.from_url(url), AsyncLocks.from_url(varied(url, timeout=21))
        lease = await locks.acquire("k")
        links = locks._locker.store._cells._links  # type: ignore[attr-defined]

        async def work() -> None:
            await asyncio.wait_for(lease.release(), PATIENCE)
            await (await others.acquire("k", wait=0)).release()

        await links.in_turn("default:k", work)
        await locks.close()
        await others.close()

    async def test_a_crowd_joins_the_queue_at_once(self, url, monkeypatch) -> None:
        """Of tasks that come at the same time, one reads and writes the row for all; and each gets the key."""
        async with AsyncLocks.from_url(url, ttl=LONG, wait=PATIENCE) as locks:
            async with locks.hold("key"):
                asked = Asked(locks, monkeypatch)
                tasks = [asyncio.create_task(visit(locks)) for _ in range(CROWD)]
                await asyncio.to_thread(eventually, lambda: queued(url) == CROWD)
                assert len(asked.names) < CROWD / 4
            assert len(set(await asyncio.gather(*tasks))) == CROWD

    def test_so_does_a_crowd_of_threads(self, url) -> None:
        """None of them is turned away because the others change the row, too."""
        with (
            Locks.from_url(url, ttl=LONG, wait=PATIENCE) as locks,
            ThreadPoolExecutor(CROWD) as pool,
        ):

            def visit(_number: int) -> int:
                with locks.hold("key") as lease:
                    return lease.fence

            assert len(set(pool.map(visit, range(CROWD)))) == CROWD

    async def test_a_recovery_that_concerns_another_stops_nobody(self, url, monkeypatch) -> None:
        """If one of several callers may not have a lease yet, each asks by itself."""
        async with AsyncLocks.from_url(url, ttl=LONG, wait=PATIENCE) as locks:
            cells = locks._locker.store._cells  # type: ignore[attr-defined]
            replace = cells._replace

            async def recovering(reading: Any, transition: Any) -> Any:
                if isinstance(transition, Together):
                    raise EngineRecovering("postgresql", "it was restored", retry_after=LONG)
                return await replace(reading, transition)

            monkeypatch.setattr(cells, "_replace", recovering)
            async with locks.hold("key"):
                tasks = [asyncio.create_task(visit(locks)) for _ in range(3)]
                await asyncio.to_thread(eventually, lambda: queued(url) == len(tasks))
            assert len(set(await asyncio.gather(*tasks))) == len(tasks)

    def test_those_who_acquire_together_keep_one_queue(self) -> None:
        """Not one for each of them: a thousand callers would keep a million places."""
        claims = [Claim(owner, "process", LONG, "") for owner in "abc"]
        callers = [Caller("key", Acquire(acquire, claim=each, room=9)) for each in claims]
        together = Together(callers)
        step = together(KeyState(), Moment(1.0, 0))
        assert [*step.state.places] == ["b", "c"]
        assert all(each.state is step.state for each in together.steps)

    def test_nobody_acquires_for_a_thread_that_has_its_answer(self, url) -> None:
        """Its answer stands, also for those who have their turn before it has left."""
        with (
            Locks.from_url(url, ttl=LONG) as locks,
            Locks.from_url(varied(url, timeout=21)) as others,
        ):
            links = locks._locker.store._cells._links  # type: ignore[attr-defined]
            has_answer, may_leave = threading.Event(), threading.Event()

            class Slow(list[Any]):
                def remove(self, caller: Any) -> None:
                    if not has_answer.is_set():
                        has_answer.set()
                        assert may_leave.wait(PATIENCE)
                    super().remove(caller)

            links.callers = Slow()
            with ThreadPoolExecutor() as pool:
                with others.hold("key"):
                    refused = pool.submit(locks.acquire, "key", wait=0)
                    assert has_answer.wait(PATIENCE)
                locks.acquire("key", wait=PATIENCE).release()
                may_leave.set()
                with pytest.raises(LockTimeout):
                    refused.result()
            assert locks.inspect("key") is None

    async def test_a_caller_whose_turn_is_cancelled_takes_nobody_along(
        self, url, monkeypatch
    ) -> None:
        """Those for whom it was about to acquire the key do so without it."""
        async with AsyncLocks.from_url(url, ttl=LONG, wait=PATIENCE) as locks:
            cells = locks._locker.store._cells  # type: ignore[attr-defined]
            update, started = cells._update_now, asyncio.Event()

            async def hang(*_arguments: Any) -> None:
                monkeypatch.setattr(cells, "_update_now", update)
                started.set()
                await asyncio.Event().wait()

            monkeypatch.setattr(cells, "_update_now", hang)
            first = asyncio.create_task(visit(locks))
            await started.wait()
            others = [asyncio.create_task(visit(locks)) for _ in range(3)]
            await asyncio.sleep(0)
            monkeypatch.setattr(cells, "_update_now", hang)
            started.clear()
            first.cancel()
            await started.wait()
            others[0].cancel()
            assert len(set(await asyncio.gather(*others[1:]))) == 2


async def test_a_task_that_is_cancelled_leaves_its_statement(url) -> None:
    """It runs to its end, and no cancel request reaches it; then its connection is used again."""
    me, waits = b"SELECT pg_backend_pid()", b"SELECT pg_advisory_lock(33)"
    async with AsyncLocks.from_url(url) as locks:
        links = locks._locker.store._cells._links  # type: ignore[attr-defined]
        ((pid,),) = await links.ask(me)
        pool = locks._engine.loops._loops.here()  # type: ignore[attr-defined]
        held = f"SELECT granted FROM pg_locks WHERE locktype = 'advisory' AND pid = {pid}".encode()
        with psycopg.connect(shared_postgres().url(), autocommit=True) as other:
            other.execute(waits)
            task = asyncio.create_task(links.ask(waits))
            await asyncio.to_thread(eventually, lambda: other.execute(held).fetchone())
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert other.execute(held).fetchone() == (False,)
            other.execute("SELECT pg_advisory_unlock(33)")
            await asyncio.to_thread(eventually, lambda: other.execute(held).fetchone() == (True,))
            await asyncio.to_thread(eventually, lambda: pool._idle)
            assert await links.ask(me) == [(pid,)]


@pytest.mark.parametrize("code", ["55P03", "57014", "40001"], ids=["locked", "late", "lost"])
async def test_a_keeper_repeats_no_statement_that_was_answered(url, code) -> None:
    """An error of the server itself is final: no connection of an event loop gets the statement, too."""
    async with AsyncLocks.from_url(url) as locks:
        await (await locks.acquire("key")).release()  # The event loop has a connection.
        links = OfThreads(locks._engine, renews=True)  # type: ignore[attr-defined]
        counter = f"asked_{locks._engine.settings.table}"  # type: ignore[attr-defined]
        shared_postgres().execute(  # What it counts is not rolled back.
            f"CREATE SEQUENCE {counter}", f"GRANT USAGE ON SEQUENCE {counter} TO PUBLIC"
        )
        statement = (
            f"DO $$ BEGIN PERFORM nextval('{counter}');"
            f" RAISE EXCEPTION USING ERRCODE = '{code}'; END $$"
        )
        with pytest.raises(psycopg.OperationalError):
            await asyncio.to_thread(drive, links.ask(statement.encode()))
        with psycopg.connect(shared_postgres().url()) as other:
            assert other.execute(f"SELECT last_value FROM {counter}".encode()).fetchone() == (1,)


class TestTheTable:
    def test_a_table_that_is_missing_is_told_with_the_remedy(self) -> None:
        """Whoever locks without the table learns at once how to get it, on both APIs."""
        url = f"{shared_postgres().url()}?table=missing"
        with Locks.from_url(url) as locks:
            for ask in (lambda: locks.acquire("key"), locks.list, locks.ping):
                with pytest.raises(ConfigurationError, match=r"weblock ddl.*create=true"):
                    ask()

        async def acquire() -> None:
            async with AsyncLocks.from_url(url) as locks:
                await locks.acquire("key")

        with pytest.raises(ConfigurationError, match="weblock ddl"):
            asyncio.run(acquire())

    def test_engines_create_it_together(self) -> None:
        """Of several that find no table at the same time, each goes on, whatever the server tells it."""
        count = 8
        together = threading.Barrier(count)

        def create(url: str) -> None:
            with Locks.from_url(url) as locks:
                together.wait(PATIENCE)
                locks.ping()

        with ThreadPoolExecutor(count) as pool:
            for number in range(20):
                url = f"{shared_postgres().url()}?table=together_{number}&create=true"
                list(pool.map(create, [f"{url}&timeout={10 + each}" for each in range(count)]))

    def test_the_command_line_prints_how_to_create_it(self) -> None:
        """What ``weblock ddl`` prints creates the table, under the name of the URL."""
        run = CliRunner().invoke(app, ["ddl", "--url", "postgresql://u:secret@h/db?table=printed"])
        assert run.exit_code == 0
        assert "secret" not in run.output
        server = shared_postgres()
        server.execute(run.output)
        server.execute(run.output)  # A migration may create what the engine has created already.
        with Locks.from_url(f"{server.url()}?table=printed") as locks, locks.hold("key"):
            pass
        for given, said in ((["--url", "memory://"], "is memory://"), ([], "is not given")):
            refused = CliRunner().invoke(app, ["ddl", *given], env={"WEBLOCK_URL": None})
            assert refused.exit_code == 2
            assert f"has a table, and --url {said}" in " ".join(refused.output.split())

    def test_who_may_not_create_it_is_told_as_well(self, locks) -> None:
        """Where ``create=true`` is beyond the user's rights, the error says so until it is granted."""
        url = f"{shared_postgres().url(user='locks')}?table=beyond&create=true"
        shared_postgres().execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
        with Locks.from_url(url) as limited:
            with pytest.raises(ConfigurationError, match=r"no right to create.*weblock ddl.*GRANT"):
                limited.acquire("key")
            shared_postgres().execute("GRANT CREATE ON SCHEMA public TO locks")
            try:
                limited.acquire("key").release()
            finally:
                shared_postgres().execute("REVOKE CREATE ON SCHEMA public FROM locks")

    def test_rights_that_are_missing_are_told(self, locks) -> None:
        """A user who may not write the table is told what to grant."""
        shared_postgres().execute(f"REVOKE ALL ON {table_of(locks)} FROM locks")
        with pytest.raises(ConfigurationError, match="GRANT SELECT, INSERT, UPDATE, DELETE ON"):
            locks.acquire("key")

    def test_one_of_another_format_is_left_as_it_is(self, url) -> None:
        """A table that another version of weblock has made is named, with its format, and not changed."""
        with Locks.from_url(url) as locks:
            change(locks, "rest = '7'", "key = ''")
            before = rows_of(locks)
            with pytest.raises(
                ConfigurationError, match=r"has the format '7'.*format '1': stop all"
            ):
                locks.acquire("key")
            assert rows_of(locks) == before

    @pytest.mark.parametrize("left", ["label = '0000000F'", None])
    def test_one_that_may_have_lost_leases_grants_none_for_a_while(self, url, left) -> None:
        """A replica that was promoted, a backup that was restored, and an emptied table are noticed."""
        recovery = url.replace("recovery=off", "recovery=3600")
        with Locks.from_url(recovery, wait=0) as locks:
            locks.acquire("before").release()
            if left:
                change(locks, left, "key = ''")
            else:
                shared_postgres().execute(f"TRUNCATE {table_of(locks)}")
            with pytest.raises(EngineRecovering, match="promoted, restored or emptied"):
                locks.acquire("key")
            change(locks, "since = 1, ends = 1", "key = ''")  # The time has passed.
            locks.acquire("key").release()

    def test_a_loss_that_was_noticed_while_the_clock_was_ahead(self, url) -> None:
        """When the clock is right again, the recovery begins anew, and is as long as any client wanted it."""
        now = "extract(epoch FROM clock_timestamp())"
        with Locks.from_url(url.replace("recovery=off", "recovery=1"), ttl=1, wait=0) as locks:
            locks.acquire("before").release()
            change(locks, f"since = {now} + 3600, ends = {now} + 3630", "key = ''")
            with pytest.raises(EngineRecovering) as refused:
                locks.acquire("key")
            assert 1 < refused.value.retry_after <= 30
            change(
                locks, "since = since - 30, ends = ends - 30", "key = ''"
            )  # The time has passed.
            locks.acquire("key").release()


class TestSettings:
    @pytest.mark.parametrize(
        ("url", "told"),
        [
            ("postgresql://u:secret@host/db?tabel=x", "did you mean 'table'"),
            ("postgresql://u:secret@host/db?timeout=0", "timeout='0' must be seconds"),
            ("postgresql://u:secret@host/db?timeout=1&timeout=2", "twice"),
            ("postgresql://u:secret@host/db?table=Drop--", "lower-case letters"),
            ("postgresql://u:secret@host/db?create=perhaps", "must be true or false"),
            ("postgresql://u:secret@host/db?max_connections=0", "whole number"),
            ("postgresql://u:secret@host:port:5/db", "bad port"),
            ("postgresql://u:sec%ret@host/db", "libpq cannot read"),
        ],
    )
    def test_what_a_url_cannot_say(self, url: str, told: str) -> None:
        """Each mistake is named with its remedy, and no message shows the password."""
        with pytest.raises(ConfigurationError, match=told) as caught:
            Locks.from_url(url)
        assert "sec" not in str(caught.value).replace("seconds", "")

    def test_what_a_url_says(self) -> None:
        """Options are ours, parameters are libpq's, and the name has no secrets."""
        url = "postgres://u:secret@a:1,b:2/db?table=s.t&sslmode=require&connect_timeout=7"
        settings = parse(url)
        assert settings.name == "postgresql://a:1,b:2/db"
        assert settings.table == "s.t"
        assert settings.libpq["sslmode"] == "require"
        assert settings.libpq["connect_timeout"] == 7
        assert settings.libpq["target_session_attrs"] == "read-write"
        assert "secret" not in repr(settings)


class TestFaults:
    def test_a_restart_loses_nothing(self, server) -> None:
        """After ``kill -9`` of every process of the server, leases are what they were."""
        url = f"{server.url()}?create=true&connect_timeout=2"
        with Locks.from_url(url, ttl=LONG, wait=PATIENCE) as locks:
            lease = locks.acquire("key")
            server.kill()
            with pytest.raises(EngineUnavailable):
                locks.acquire("other", wait=0)
            server.start()
            with pytest.raises(LockTimeout):
                locks.acquire("key", wait=0)
            lease.extend(LONG)
            lease.release()
            with locks.hold("key") as following:
                assert following.fence > lease.fence

    def test_a_reload_does_not_make_commits_asynchronous(self, server) -> None:
        """A connection keeps ``synchronous_commit`` in its session, which no change of the server reaches."""
        server.execute("ALTER ROLE postgres SET synchronous_commit = 'local'")
        engine = PostgreSQLEngine(parse(f"{server.url()}?create=true"))
        asked = b"SELECT setting, source FROM pg_settings WHERE name = 'synchronous_commit'"
        try:
            link = engine.open()
            assert link.ask(asked) == [("local", "session")]
            link.close()
        finally:
            engine.close()
            server.execute("ALTER ROLE postgres RESET synchronous_commit")

    def test_only_what_must_last_waits_for_the_disk(self, server) -> None:
        """A grant, a hand-over and a renewal are on the disk; a release and a place need not be.

        A trigger that is deferred to the commit sees how the transaction ends.
        """
        url = f"{server.url()}?create=true&table=flushes"
        with Locks.from_url(url, ttl=LONG, wait=PATIENCE) as locks:
            locks.acquire("other").release()
            server.execute(
                "CREATE TABLE commits (number serial, setting text)",
                """CREATE FUNCTION noted() RETURNS trigger AS $$ BEGIN
                    INSERT INTO commits (setting) VALUES (current_setting('synchronous_commit'));
                    RETURN NULL;
                END $$ LANGUAGE plpgsql""",
                """CREATE CONSTRAINT TRIGGER noted AFTER INSERT OR UPDATE ON flushes
                    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION noted()""",
            )
            store = locks._locker.store  # type: ignore[attr-defined]
            for work in (
                store.acquire("key", Claim("a", "", LONG, ""), room=9),
                store.acquire("key", Claim("b", "", LONG, ""), room=9),
                store.release("key", "a"),
                store.refresh([Pulse("key", "b", LONG)]),
                store.release("key", "b"),
                store.acquire("key", Claim("c", "", LONG, "", limit=2), room=9),
                store.release("key", "c"),
                store.release("key", "d", void=LONG),
                store.acquire("key", Claim("e", "", LONG, ""), room=9),
                store.force_release("key"),
            ):
                drive(work)
            with psycopg.connect(server.url()) as connection:
                seen = connection.execute("SELECT setting FROM commits ORDER BY number").fetchall()
            assert [setting == "on" for (setting,) in seen] == [
                True, False, True, True, False, True, False, True, True, True,
            ]  # fmt: skip

    def test_a_server_that_hangs_is_given_up_in_time(self, server) -> None:
        """On both APIs, a statement that has no answer ends with the timeout, and so does the wait."""
        url = f"{server.url()}?create=true&timeout=0.3&connect_timeout=1&table=hangs"
        # What was answered last, and is not renewed or released meanwhile, leaves a connection to ask on.
        patiently: dict[str, Any] = {"wait": PATIENCE, "ttl": LONG, "renew": False}

        async def asynchronously() -> None:
            async with AsyncLocks.from_url(url, wait=0) as locks:
                connected = await locks.acquire("asynchronously", **patiently)
                with stopped(server), pytest.raises(EngineUnavailable, match=r"within 0.3 s"):
                    await locks.acquire("key")
                await connected.release()
                await (await locks.acquire("key", **patiently)).release()

        with Locks.from_url(url, wait=0) as locks:
            connected = locks.acquire("at once", **patiently)
            with stopped(server), pytest.raises(EngineUnavailable, match=r"within 0.3 s"):
                locks.acquire("key")
            connected.release()
            locks.acquire("key", **patiently).release()
        asyncio.run(asynchronously())

    def test_a_restored_backup_is_noticed(self, server) -> None:
        """A server that has recovered onto another timeline grants nothing until leases have ended."""
        url = f"{server.url()}?create=true&recovery=3600&table=restored&connect_timeout=2"
        with Locks.from_url(url, ttl=LONG, wait=0) as locks:
            locks.acquire("before").release()
            server.kill()
            server.branch_off()
            server.start()
            with pytest.raises(EngineRecovering):
                locks.acquire("key")
            server.execute(
                "UPDATE restored SET since = 1, ends = 1 WHERE key = ''"
            )  # The time has passed.
            locks.acquire("key", wait=PATIENCE).release()

    def test_a_dump_that_was_restored_elsewhere_is_noticed(self, locks, server) -> None:
        """A new cluster has another system identifier, though its timeline has the same number."""
        with locks.hold("key"):
            rows = rows_of(locks)
        url = f"{server.url()}?create=true&recovery=3600&table=dumped"
        with Locks.from_url(url, wait=0) as restored:
            restored.acquire("key").release()
            server.execute("TRUNCATE dumped")
            with psycopg.connect(server.url(), autocommit=True) as connection:
                values = ",".join(["%s"] * len(rows[0]))
                connection.cursor().executemany(
                    f"INSERT INTO dumped VALUES ({values})".encode(), rows
                )
            with pytest.raises(EngineRecovering):
                restored.acquire("other")

    def test_behind_a_pooler_waiters_learn_with_a_heartbeat(self, caplog) -> None:
        """Through pgbouncer in transaction mode, hand-overs take up to a second, and one line says so."""
        server = shared_postgres()
        bouncer = PgBouncer(server)
        try:
            url = fresh_postgresql().replace(f":{server.port}/", f":{bouncer.port}/")
            url = url.replace("locks:secret", "postgres")
            with (
                Locks.from_url(url, ttl=LONG, wait=PATIENCE) as locks,
                Locks.from_url(varied(url, timeout=21), ttl=LONG, wait=PATIENCE) as others,
            ):
                lease = locks.acquire("key")
                got: list[Any] = []
                waiter = threading.Thread(target=lambda: got.append(others.acquire("key")))
                waiter.start()
                told = f"{locks.engine} is reached through a pooler"
                eventually(lambda: [each for each in caplog.messages if each.startswith(told)])
                lease.release()
                waiter.join(PATIENCE)
                assert got[0].fence > lease.fence
                got[0].release()
        finally:
            bouncer.close()


class TestSilence:
    """Callers of a server that accepts connections and says nothing."""

    async def test_a_task_does_not_wait_for_its_turn_for_ever(self, url, monkeypatch) -> None:
        """If others have changed the key all the time, and the server answers, the error says that."""
        monkeypatch.setattr("weblock.stores.postgresql.links.PATIENCE", 0.01)
        async with AsyncLocks.from_url(url, wait=0) as locks:
            await (await locks.acquire("other")).release()
            links = locks._locker.store._cells._links  # type: ignore[attr-defined]

            async def work() -> None:
                with pytest.raises(EngineUnavailable, match="too many callers change the same key"):
                    await locks.acquire("key")

            await links.in_turn("default:key", work)
            await (await locks.acquire("key")).release()


async def test_a_statement_that_could_not_be_prepared_is_prepared_again(locks, url) -> None:
    """A lock timeout while a statement is prepared leaves no name behind that the server does not know."""
    locks.acquire("key").release()  # So that there is a table.
    table, settings = table_of(locks), parse(url)
    query = f"SELECT $1::text FROM {table} LIMIT 1".encode()
    blocking, link = BlockingLink(settings), await AsyncioLink.open(settings)
    try:
        with psycopg.connect(shared_postgres().url()) as other:
            other.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE".encode())
            for statement in (b"SET lock_timeout = 20", b"SET statement_timeout = 0"):
                blocking.ask(statement)
                await link.ask(statement)
            with pytest.raises(psycopg.errors.LockNotAvailable):
                blocking.ask(query, "x")
            with pytest.raises(psycopg.errors.LockNotAvailable):
                await link.ask(query, "x")
        assert blocking.ask(query, "x") == [("x",)] == await link.ask(query, "x")
        prepared = "SELECT count(*) FROM pg_prepared_statements WHERE statement = $1"
        assert blocking.ask(prepared.encode(), query.decode()) == [(1,)]
    finally:
        blocking.close()
        link.close()


@contextlib.contextmanager
def stopped(server: Postgres) -> Iterator[None]:
    server.stop()
    try:
        yield
    finally:
        server.cont()


class Mailbox:
    """Remembers what a waiter is told."""

    def __init__(self) -> None:
        self.heard: list[Message] = []

    def put(self, message: Message) -> None:
        self.heard.append(message)


def test_a_forged_notification_gives_nobody_the_key(locks) -> None:
    """A fence that the server's clock does not explain makes a waiter ask; nonsense is dropped."""
    engine, mailbox = locks._engine, Mailbox()
    engine.switchboard.mailboxes["owner"] = mailbox
    engine.receiver.watch("key", "owner", (), first=True)
    eventually(lambda: mailbox.heard == [CheckAgain()])  # It listens.
    true = Granted(1_790_000_000_000_000, 1_790_000_010.5)
    forged = to_notification("owner", true._replace(fence=9 * true.fence))
    nonsense = ("", "owner", "owner 1 x", "other 1 2", "owner 1 2 3")
    link = engine.open()
    for text in (forged, *nonsense, to_notification("owner", true)):
        link.ask(b"SELECT pg_notify($1, $2)", engine.receiver.process, text)
    link.close()
    eventually(lambda: mailbox.heard == [CheckAgain(), CheckAgain(), true])
