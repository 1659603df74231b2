"""``weblock.contrib.celery``, task by task, in this process: eager mode, and what a worker calls."""

import contextvars
import functools
import gc
import itertools
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from celery import Celery, Task, shared_task
from celery.app.registry import TaskRegistry
from celery.exceptions import Ignore, Retry

from tests.support.events import Heard
from tests.support.waiting import PATIENCE, eventually, waiters
from weblock import AlreadyHeld, ConfigurationError, LeaseLost, Locks, LockTimeout
from weblock.contrib.celery import LockedTask, WebLock, lease_of
from weblock.events import TimedOut

numbers = itertools.count()


@pytest.fixture
def locks(url):
    with Locks.from_url(url, wait=PATIENCE, label="worker") as locks:
        yield locks


@pytest.fixture
def bare():
    """An application without locks."""
    app = Celery(f"shop{next(numbers)}", broker="memory://", set_as_current=False)
    app.task = functools.partial(app.task, shared=False)  # Not in the applications of other tests.
    yield app
    app.close()


@pytest.fixture
def app(bare, locks):
    WebLock(bare, locks)
    return bare


@contextmanager
def held(locks, *keys, **options):
    with ThreadPoolExecutor(1) as stranger:
        lease = stranger.submit(locks.acquire, *keys, **options).result()
        try:
            yield lease
        finally:
            stranger.submit(lease.release).result()


def keys_of(locks):
    return [info.key for info in locks.list()]


def lose(lease):
    for holding in lease._holdings:
        holding.lose("taken")


def key_of_number(number):
    return f"pay:{number}"


class Plain(Task):
    """A base class that knows nothing of locks."""

    abstract = True


def unlocked():
    return "ran without its lock"


def made_and_never_finalized(app):
    """A task of an application that nothing finalizes, as in a process that only sends tasks."""
    task = app.task(base=Plain, lock="a")(unlocked)
    assert task.name
    assert not app.finalized
    return task


def made_late(app):
    app.finalize()
    return app.task(base=Plain, lock="a")(unlocked)


def made_shared(app):
    app.finalize()
    name = f"shared-{app.main}"
    shared_task(name=name, base=Plain, lock=["a"])(unlocked)
    return app.tasks[name]


def made_at_once(app):
    return app.task(base=Plain, lock=key_of_number, lazy=False)(unlocked)


def registered(app):
    class Own(Task):
        name = "own"
        lock = "a"

        def run(self):
            return unlocked()

    return app.register_task(Own())


def retrying(app):
    """A task that Celery wraps so that it retries by itself."""
    return app.task(base=Plain, lock="a", autoretry_for=(OSError,))(unlocked)


class TestKeys:
    @pytest.mark.parametrize(
        ("lock", "expected"),
        [
            ("constant", ["constant"]),
            ("invoice:{number}", ["invoice:7"]),
            ("invoice:{0}", ["invoice:7"]),
            ("{1}/{shop}/{0:int}", ["main/main/7"]),
            (["b:{0}", "a:{shop}"], ["a:main", "b:7"]),
            (lambda number: f"made:{number}", ["made:07"]),
            (lambda **values: sorted(values), ["number", "shop"]),
        ],
        ids=["constant", "name", "place", "mixed", "several", "function", "function-of-all"],
    )
    def test_where_keys_come_from(self, app, locks, lock, expected):
        """Arguments by name or place, with the defaults, however they are passed; or functions."""
        number = "07" if callable(lock) or ":int" in str(lock) else 7

        @app.task(lock=lock)
        def pay(number, shop="main"):
            assert list(lease_of().keys) == expected
            return keys_of(locks)

        for result in (
            pay(number),
            pay.apply((number,)).get(),
            pay.apply((), {"number": number}).get(),
        ):
            assert result == expected
        assert keys_of(locks) == []

    def test_a_decorator_may_call_the_task_with_other_arguments(self, app, locks):
        """A constant key needs none of them, also where the task is sent without all that it takes."""

        def with_session(run):
            @functools.wraps(run)
            def called(number):
                return run("session", number)

            return called

        @app.task(lock="nightly")
        @with_session
        def nightly(session, number):
            return session, number, keys_of(locks)

        assert nightly.apply((1,)).get() == ("session", 1, ["nightly"])

    def test_the_label_names_the_task(self, app, locks):
        """Operators see which task holds a key, as Celery's log names it."""

        @app.task(lock="a")
        def pay():
            return locks.inspect("a").holder

        assert pay.apply(task_id="17").get() == f"worker {pay.name}[17]"
        assert pay() == f"worker {pay.name}"

    def test_a_method_as_the_key(self, app, locks):
        """A class may make its keys in a method, which takes ``self``."""

        class Pay(app.Task):
            name = "pay"

            def lock(self, number):
                return f"{self.name}:{number}"

            def run(self, number):
                return keys_of(locks)

        assert app.register_task(Pay()).apply((7,)).get() == ["pay:7"]


class TestTasks:
    def test_every_kind_of_task(self, app, locks):
        """Bound, shared and class-based ones, of a base, a mixin, and one that retries by itself."""

        class Own(Task):
            def __call__(self, *args, **kwargs):
                return self.run(*args, **kwargs)

        class Base(LockedTask):
            abstract = True
            lock = "base:{0}"

        class Mixin:
            def run(self, number):
                return keys_of(locks)

        class Mixed(Mixin, Base, Own):
            name = "mixed"

        @app.task(bind=True, lock="bound:{0}")
        def bound(self, number):
            assert self.request.args == (number,)
            return keys_of(locks)

        name = f"shared-{app.main}"  # What it is in the current application, a test before decides.

        @shared_task(name=name, lock="shared:{number}", typing=False)
        def shared(number):
            return keys_of(locks)

        @app.task(base=Base)
        def based(number):
            return keys_of(locks)

        @app.task(lock="again:{0}", autoretry_for=(OSError,), retry_kwargs={"countdown": 0})
        def again(number, failures=[]):  # noqa: B006 - what the attempts have in common
            failures.append(keys_of(locks))
            if len(failures) < 3:
                raise OSError
            return failures

        assert bound.apply((7,)).get() == ["bound:7"]
        assert app.tasks[name].apply((7,)).get() == ["shared:7"]
        assert based.apply((7,)).get() == ["base:7"]
        assert app.register_task(Mixed()).apply((7,)).get() == ["base:7"]
        assert again.apply((7,)).get() == [["again:7"]] * 3
        assert keys_of(locks) == []

    def test_a_run_that_calls_the_one_it_overrides(self, app, locks):
        """The lock is that of the class, and is acquired once; for other arguments, again."""

        class Parent(app.Task):
            lock = "parent"

            def run(self, amount):
                return [(amount, keys_of(locks))]

        class Child(Parent):
            name = "child"
            lock = "child:{number}"

            def run(self, number, amount):
                return super().run(amount) + (self.run(number - 1, amount) if number else [])

        ran = app.register_task(Child()).apply((1, 5)).get()
        assert ran == [(5, ["child:1"]), (5, ["child:0", "child:1"])]

    def test_settings_may_add_a_lock(self, app, locks):
        """``task_annotations`` say it of a task that cannot be changed."""
        app.conf.task_annotations = {"theirs": {"lock": "theirs:{0}"}}

        @app.task(name="theirs")
        def theirs(number):
            return keys_of(locks)

        assert theirs.apply((7,)).get() == ["theirs:7"]

    def test_a_function_that_retries_is_not_in_the_lock_of_its_next_attempt(self, app, locks):
        """``self.retry`` ends the lock, too."""

        @app.task(bind=True, lock="a", max_retries=2)
        def pay(self):
            if self.request.retries < 2:
                raise self.retry(countdown=0)
            return keys_of(locks), self.request.retries

        assert pay.apply().get() == (["a"], 2)
        assert keys_of(locks) == []


class TestBusy:
    def test_what_fails_on_a_busy_key_may_retry_by_itself(self, app, locks):
        """``autoretry_for`` sees the errors of the lock."""
        attempts = []

        @app.task(bind=True, lock="a", wait=0, autoretry_for=(LockTimeout,), max_retries=2)
        def pay(self): ...

        def before_start(self, *_):
            attempts.append(self.request.retries)

        type(pay._get_current_object()).before_start = before_start
        with held(locks, "a"):
            assert isinstance(pay.apply().result, LockTimeout)
        assert attempts == [0, 1, 2]

    def test_skipping(self, app, locks, caplog):
        """It is ignored, which the log says with the reason, and an event with the holder."""
        caplog.set_level("INFO", "weblock")
        heard = Heard()
        locks.observe(heard.observer)

        @app.task(lock="skipped:{0}", on_busy="skip")
        def pay(number):
            return "ran"

        with held(locks, "skipped:7", label="another"):
            assert pay.apply((7,), task_id="17").state == "IGNORED"
            assert pay(7) is None
            assert pay.apply((8,)).get() == "ran"
        assert [event.holder for event in heard.of(TimedOut)] == ["another"] * 2
        told = [record.getMessage() for record in caplog.records]
        assert any(f"task {pay.name}[17] is skipped: lock 'skipped:7'" in line for line in told)

    @pytest.mark.parametrize("on_busy", ["skip", "wait"])
    def test_a_task_is_not_skipped_because_of_itself(self, app, locks, on_busy):
        """A delivery after its worker was killed waits for the lease of the first to end."""

        @app.task(lock="a", on_busy=on_busy, wait=0, ttl=PATIENCE)
        def pay():
            return "ran"

        with ThreadPoolExecutor(1) as thread:
            with held(locks, "a", label=f"the one that died {pay.name}[17]"):
                delivered = thread.submit(pay.apply, task_id="17")
                eventually(lambda: waiters(locks, "a") == 1)
                assert pay.apply(task_id="18").state in ("IGNORED", "FAILURE")
            assert delivered.result().get() == "ran"

    @pytest.mark.parametrize("on_busy", ["skip", "wait"])
    def test_a_delivery_leaves_the_result_to_an_earlier_one_that_runs(
        self, app, locks, on_busy, monkeypatch
    ):
        """A task that the broker delivers twice is neither reported as skipped nor as failed meanwhile."""
        monkeypatch.setattr("weblock.contrib.celery.task.MARGIN", 0.0)

        @app.task(lock="a", on_busy=on_busy, wait=0, ttl=0.5)
        def pay(): ...

        app.conf.result_backend = "cache+memory://"
        pay.push_request(id="17", called_directly=False)
        with (
            held(locks, "a", label=f"the one that runs {pay.name}[17]"),
            pytest.raises(Ignore, match="runs already"),
        ):
            pay.run()
        pay.pop_request()
        assert app.AsyncResult("17").state == "PENDING"

    def test_a_task_finds_itself_among_several_holders(self, app, locks):
        """One with a limit waits for the lease of its own first delivery, whoever holds the key besides."""

        @app.task(lock="a", limit=2, on_busy="skip", ttl=PATIENCE)
        def pay():
            return "ran"

        died = f"the one that died {pay.name}[17]"
        with held(locks, "a", limit=2, label="another"), ThreadPoolExecutor(1) as thread:
            with held(locks, "a", limit=2, label=died):
                delivered = thread.submit(pay.apply, task_id="17")
                eventually(lambda: delivered.done() or waiters(locks, "a") == 1)
            assert delivered.result().get() == "ran"

    def test_retrying(self, app, locks):
        """It is Celery's own retry, later, and fails with ``LockTimeout`` when there were enough."""

        @app.task(lock="a", on_busy="retry", max_retries=3)
        def pay(): ...

        @app.task(lock="a", on_busy="retry", busy_countdown=17)
        def later(): ...

        @app.task(lock="a", on_busy="retry", max_retries=None)
        def always(): ...

        def retry_of(task):
            task.push_request(id="1", called_directly=False, args=(), kwargs={})
            try:
                with pytest.raises(Retry) as retried:
                    task.run()
            finally:
                task.pop_request()
            return retried.value

        with held(locks, "a"):
            assert retry_of(later).when == 17
            assert 1 <= retry_of(pay).when <= 1.5 * 11
            assert isinstance(retry_of(pay).exc, LockTimeout)
            # One that is eager has no later, and would try again at once, without end.
            assert isinstance(always.apply().result, LockTimeout)
            with pytest.raises(LockTimeout):
                pay()
        assert pay.apply().state == "SUCCESS"


class TestNesting:
    def test_a_task_in_a_task(self, app, locks):
        """It runs under the lease that the outer one holds already, and gives back what is its own."""

        @app.task(lock=["a", "c"])
        def inner(name):
            own, again = lease_of(), None
            assert list(own.keys) == ["a", "c"]
            assert keys_of(locks) == ["a", "b", "c"]
            if name == "first":
                again = inner.delay("second").result
            own.check()
            return own.fences["a"], again

        @app.task(lock=["a", "b"])
        def outer():
            fence = lease_of().fences["a"]
            ran = inner.apply(("first",)).result
            assert ran == (fence, (fence, None))
            assert inner("direct") == (fence, None)
            assert keys_of(locks) == ["a", "b"]
            return True

        app.conf.task_always_eager = True
        assert outer.delay().get()
        assert keys_of(locks) == []

    def test_a_task_does_not_wait_for_itself(self, app, locks):
        """Code in a task that acquires the task's own key gets an error at once."""

        @app.task(lock="a")
        def pay():
            locks.acquire("a")

        assert isinstance(pay.apply().result, AlreadyHeld)

    def test_what_outlives_a_task_is_not_inside_it(self, app, locks):
        """A thread with the context of a task that has ended acquires for itself."""
        contexts = []

        @app.task(lock="a")
        def pay():
            contexts.append(contextvars.copy_context())
            return keys_of(locks)

        pay.apply()
        assert contexts[0].run(pay) == ["a"]
        with pytest.raises(ConfigurationError):
            contexts[0].run(lease_of)


class TestEnds:
    def test_a_task_whose_lease_is_lost_fails(self, app, locks):
        """Whatever it returns; another error stays what it is, with a note."""

        @app.task(lock="a")
        def pay(error=None):
            lose(lease_of())
            if error:
                raise error
            return "done"

        assert isinstance(pay.apply().result, LeaseLost)
        failed = pay.apply((KeyError("x"),)).result
        assert isinstance(failed, KeyError)
        assert "in addition, the lease of 'a'" in failed.__notes__[0]

    def test_it_is_told_of_the_loss(self, app, locks):
        """``on_lost`` is called while the task runs: a method, or a function of the task and the lease."""
        told = threading.Event()
        seen = []

        def tell(task, lease):
            seen.append((task.name, lease.key))
            told.set()

        @app.task(lock="a", on_lost=tell)
        def pay():
            lose(lease_of())
            assert told.wait(PATIENCE)

        assert isinstance(pay.apply().result, LeaseLost)
        assert seen == [(pay.name, "a")]

    def test_the_key_may_stay_taken(self, app, locks):
        """``at_least`` is for schedulers whose clocks differ."""

        @app.task(lock="a", at_least=3600, on_busy="skip")
        def report():
            return "done"

        assert report.apply().get() == "done"
        assert report.apply().state == "IGNORED"
        assert locks.inspect("a").remaining > 60

    def test_nothing_keeps_the_lease_of_a_task(self, app, locks):
        """It is gone when the task is, though a callback knows it."""
        leases = []

        @app.task(lock="a", on_lost=lambda task, lease: None)
        def pay():
            leases.append(weakref.ref(lease_of()._holdings))

        pay.apply()
        gc.collect()
        assert leases[0]() is None


class TestWhatCannotWork:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"lock": "a:{other}"}, "not a parameter of .*pay; available: number"),
            ({"lock": "a:{1}"}, "needs '1', which is not a parameter"),
            (
                {"lock": ["a", lambda other: other]},
                "key function .* needs 'other', .*pay; available: number",
            ),
            ({"lock": []}, "name at least one key"),
            ({"lock": 7}, "a lock key is a string"),
            ({"on_busy": "never"}, "'wait', 'skip' or 'retry'"),
            ({"ttl": "long"}, "ttl='long'"),
            ({"wait": -1}, "wait=-1"),
            ({"busy_countdown": -1}, "busy_countdown=-1"),
            ({"at_least": "long"}, "at_least='long'"),
        ],
    )
    def test_options(self, app, options, message):
        """They are refused when the task is made."""
        app.finalize()
        with pytest.raises((ConfigurationError, TypeError), match=message):

            @app.task(**{"lock": "a", **options})
            def pay(number): ...

    @pytest.mark.parametrize("kind", ["coroutine", "generator", "iterator"])
    def test_what_runs_after_it_has_returned(self, app, kind):
        """Celery would run or iterate over it after the lock is released, if at all."""

        async def coroutine(): ...

        def generator():
            yield

        async def iterator():
            yield

        late = {"coroutine": coroutine, "generator": generator, "iterator": iterator}[kind]
        app.finalize()
        with pytest.raises(TypeError, match=f"{late.__name__} is async or a generator"):
            app.task(late, lock="a")

    def test_an_application_without_locks(self, bare):
        """A task that wants a lock does not run without one."""

        @bare.task(base=LockedTask, lock="a")
        def pay(): ...

        assert "WebLock(app" in str(pay.apply().result)

    @pytest.mark.parametrize(
        "made",
        [made_and_never_finalized, made_late, made_shared, made_at_once, registered, retrying],
    )
    def test_wherever_a_task_comes_from(self, app, made):
        """One that would ignore its lock never runs, whenever and however the application gets it."""
        task = made(app)
        assert isinstance(task.apply().result, ConfigurationError)
        with pytest.raises(ConfigurationError, match="would ignore"):
            task()

    def test_a_task_from_before(self, bare, locks):
        """One that the application had before its locks does not run without its own."""
        task = made_at_once(bare)
        assert task() == "ran without its lock"
        WebLock(bare, locks)
        assert isinstance(task.apply().result, ConfigurationError)

    def test_settings_that_a_base_ignores(self, app):
        """A lock that ``task_annotations`` give to a task which would ignore it is found, too."""
        app.conf.task_annotations = {"theirs": {"lock": "theirs"}}

        @app.task(name="theirs", base=Task)
        def theirs(): ...

        assert "lock='theirs'" in str(theirs.apply().result)

    @pytest.mark.parametrize("is_earlier", [True, False])
    @pytest.mark.parametrize(
        "lock",
        [
            lambda self: "a method",
            property(lambda self: f"{1 / 0}"),
            threading.Lock(),
            (1, 2),
            [],
            "",
            None,
        ],
        ids=["method", "property", "mutex", "numbers", "nothing", "empty", "none"],
    )
    def test_what_else_a_class_calls_its_lock(self, bare, locks, lock, is_earlier):
        """A base that does not lock has no ``lock``: what it means by another is not guessed."""
        if not is_earlier:
            WebLock(bare, locks)
        body = {"name": "own", "lock": lock, "run": lambda self: "ran"}
        task = bare.register_task(type("Own", (Task,), body)())
        if is_earlier:
            WebLock(bare, locks)
        if lock is None:
            assert task.apply().get() == task() == "ran"
            return
        assert isinstance(task.apply().result, ConfigurationError)
        with pytest.raises(ConfigurationError, match="give it another name"):
            task()

    def test_the_application_is_not_finalized_early(self, bare, locks):
        """``WebLock`` looks at the tasks before there are any; a later access gets all."""
        bare.task(name="earlier")(unlocked)
        WebLock(bare, locks)
        assert not bare.finalized
        bare.task(name="later")(unlocked)
        assert {"earlier", "later"} <= bare.tasks.keys()
        assert bare.finalized
        assert isinstance(bare.tasks, TaskRegistry)

    def test_an_application_twice(self, app, url):
        """One application has one ``WebLock``, and the other way round."""
        web = WebLock()
        with pytest.raises(ConfigurationError, match="no application"):
            _ = web.locks
        with pytest.raises(ConfigurationError, match="already"):
            web.init_app(app)

    def test_something_else_in_the_place_of_the_application(self, app):
        """The error names what was given, without a password, and what to write."""
        for given, named in (
            ("redis://:secret@host", "'redis://host'"),
            (WebLock, "<class .*WebLock"),
        ):
            for install in (WebLock, WebLock().init_app):
                with pytest.raises(
                    TypeError, match=f"Celery application first, .* given {named}.*write"
                ):
                    install(given)


class TestSettings:
    def test_settings_go_first(self, bare, url):
        """``app.conf`` decides, read when it is first needed, and with a prefix as Celery has it."""
        web = WebLock(bare, "memory://not-this", ttl=3)
        bare.config_from_object(
            {"CELERY_WEBLOCK_URL": url, "CELERY_WEBLOCK_NAMESPACE": "shop"}, namespace="CELERY"
        )
        with web.locks as locks:
            assert (locks.engine, locks.namespace) == (url, "shop")
            assert web.locks is locks

    def test_settings_that_cannot_work(self, bare, url):
        """An unknown one is named, and so are a URL and locks at once."""
        bare.conf.weblock_timeout = 3
        with pytest.raises(
            ConfigurationError, match=r"weblock_timeout is not a setting; available: weblock_url"
        ):
            _ = WebLock(bare, url).locks
