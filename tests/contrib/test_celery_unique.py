"""Unique tasks of ``weblock.contrib.celery``: what a second sender gets, and when the key is free again."""

import functools
import itertools
import threading
from contextlib import contextmanager
from datetime import timedelta

import pytest
from celery import Celery, chain, chord, group
from celery.contrib.testing.worker import start_worker
from celery.exceptions import QueueNotFound
from celery.signals import setup_logging
from celery.worker import state
from kombu.exceptions import EncodeError, OperationalError

from tests.support.waiting import PATIENCE, eventually
from weblock import ConfigurationError, EngineUnavailable, Lease, Locks
from weblock._adapting import give_up, rest
from weblock._core.keeping import Keeper
from weblock.contrib.celery import AlreadyQueued, LockedTask, WebLock, lease_of
from weblock.contrib.celery import task as task_module
from weblock.contrib.celery.unique import HEADER

setup_logging.connect(
    lambda **_options: None, weak=False
)  # Else a worker sets the root logger's level.

numbers = itertools.count()


@pytest.fixture
def locks(url):
    """Locks of this test's own."""
    with Locks.from_url(url, wait=PATIENCE, label="sender") as locks:
        yield locks


@pytest.fixture
def app(locks):
    """An application with locks, a broker and a result backend in this process."""
    name = f"unique{next(numbers)}"
    app = Celery(name, broker="memory://", backend="cache+memory://", set_as_current=False)
    app.conf.task_default_queue = name
    app.task = functools.partial(app.task, shared=False)
    WebLock(app, locks)
    yield app
    app.close()


@pytest.fixture
def pay(app):
    """A unique task, which notes its runs in ``pay.ran``, and waits for ``pay.may_end``."""

    @app.task(bind=True, lock="pay:{0}", unique="raise", unique_for=600)
    def pay(self, number):
        pay.begun.set()
        assert pay.may_end.wait(PATIENCE)
        pay.ran.append(lease_of().fence)
        return number

    pay.begun, pay.may_end, pay.ran = threading.Event(), threading.Event(), []
    return pay


@contextmanager
def worker(app):
    """A worker in a thread of this process."""
    with start_worker(app, pool="solo", perform_ping_check=False, shutdown_timeout=PATIENCE):
        yield


def same(number):
    """What a task does."""
    return number


def doubled(number):
    """What another task does."""
    return 2 * number


def collected(results):
    """What the body of a chord does."""
    return results


def unavailable(*_args, **_options):
    """What an engine that is down does."""
    raise EngineUnavailable("redis://", "it is down")


def nothing():
    """What a task without arguments does."""


@contextmanager
def sent_by(app, monkeypatch):
    """The headers of the message that is sent in the block, which no broker gets."""
    headers = {}
    with monkeypatch.context() as patch:
        send = lambda *_args, **options: headers.update(options["headers"])  # noqa: E731
        patch.setattr(app.amqp, "send_task_message", send)
        yield headers


def is_free(locks, key):
    """Whether nobody has the key."""
    return locks.inspect(key) is None


def test_a_second_one_is_not_sent_while_the_first_is_queued_or_runs(app, locks, pay):
    """The second sender learns the id of the queued task, until the first has ended; then it may send."""
    first = pay.delay(7)
    with pytest.raises(AlreadyQueued, match=r"'pay:7' was not sent: task .* has the key") as queued:
        pay.delay(7)
    assert (queued.value.key, queued.value.task_id) == ("pay:7", first.id)
    assert 500 < queued.value.remaining <= 600
    fence = locks.inspect("pay:7").fence
    with worker(app):
        assert pay.begun.wait(PATIENCE)
        with pytest.raises(AlreadyQueued) as running:
            pay.s(7).apply_async()
        assert running.value.task_id == first.id
        pay.may_end.set()
        assert first.get(timeout=PATIENCE) == 7
        assert pay.ran == [fence]
        eventually(lambda: is_free(locks, "pay:7"))
        assert pay.delay(7).get(timeout=PATIENCE) == 7


def test_another_key_is_another_job(pay):
    """Only tasks with equal keys are duplicates."""
    pay.delay(7)
    assert pay.delay(8).id


def test_a_duplicate_is_dropped_or_joined(app, pay):
    """With ``drop`` the sender gets ``None``, with ``join`` the result of the task that is queued."""
    drop = app.task(name="drop", lock="pay:{0}", unique="drop", unique_for=600)(same)
    join = app.task(name="join", lock="pay:{0}", unique="join", unique_for=600)(same)
    first = pay.delay(7)
    assert drop.delay(7) is None
    joined = join.delay(7)
    pay.may_end.set()
    with worker(app):
        assert joined.id == first.id
        assert joined.get(timeout=PATIENCE) == 7


def test_what_is_no_task_holds_the_key(locks, pay):
    """A key that other code holds is busy, and nobody waits for it in ``delay``."""
    with locks.hold("pay:7"), pytest.raises(AlreadyQueued, match="something other than") as busy:
        pay.delay(7)
    assert busy.value.task_id is None
    assert pay.delay(7).id


def test_the_key_lasts_until_the_eta_and_unique_for_after_it(app, locks, pay):
    """A countdown or an ETA is added to ``unique_for``, however short the ttl is."""
    pay.apply_async((1,), countdown=1000)
    pay.apply_async((2,), eta=app.now() + timedelta(seconds=2000))
    pay.apply_async((3,), eta=(app.now() + timedelta(seconds=3000)).isoformat())
    for number in (1, 2, 3):
        assert 1000 * number < locks.inspect(f"pay:{number}").remaining <= 1000 * number + 600


def test_a_task_that_nobody_runs_frees_its_key(app, locks):
    """After ``unique_for``, a job that the broker has lost can be sent again."""
    lost = app.task(lock="lost", unique="raise", unique_for=0.5)(nothing)
    lost.delay()
    app.control.purge()
    eventually(lambda: is_free(locks, "lost"))
    assert lost.delay().id


def test_with_until_start_the_next_one_may_be_sent_while_the_task_runs(app, locks, pay):
    """The key is free as soon as the run has begun."""

    @app.task(lock="early:{0}", unique="raise", unique_for=600, until="start")
    def early(number):
        pay.begun.set()
        pay.may_end.wait(PATIENCE)
        with pytest.raises(ConfigurationError, match="no task holds a lock here"):
            lease_of()
        return number

    first = early.delay(7)
    with worker(app):
        assert pay.begun.wait(PATIENCE)
        assert is_free(locks, "early:7")
        second = early.delay(7)
        with pytest.raises(AlreadyQueued):
            early.delay(7)
        pay.may_end.set()
        assert [each.get(timeout=PATIENCE) for each in (first, second)] == [7, 7]


@pytest.mark.parametrize("until", ["end", "start"])
def test_a_retry_is_no_duplicate_and_nobody_gets_in_between(app, locks, until):
    """The next attempt continues the lease, longer than its ttl, and is never dropped."""
    fences, refused = [], []

    @app.task(bind=True, lock="again", unique="raise", unique_for=600, until=until, ttl=0.5)
    def again(self):
        if until == "end":
            fences.append(lease_of().fence)
        if self.request.retries == 0:
            raise self.retry(countdown=1)
        return self.request.id

    result = again.delay()
    with worker(app):
        eventually(lambda: result.state == "RETRY")
        try:
            again.delay()
        except AlreadyQueued as error:
            refused.append(error.task_id)
        assert result.get(timeout=PATIENCE) == result.id
    assert refused == [result.id]
    assert len(set(fences)) <= 1
    assert is_free(locks, "again")


def test_a_broker_that_may_have_the_message_keeps_the_key(app, locks, pay, monkeypatch):
    """After an error while publishing nobody knows; a message that was never made frees its key."""

    def failing(number, error):
        def send(*_args, **_options):
            raise error

        monkeypatch.setattr(app.amqp, "send_task_message", send)
        with pytest.raises(type(error)):
            pay.delay(number)

    unknown = OperationalError("lost"), OSError("reset"), RuntimeError("?"), SystemExit()
    for number, error in enumerate(unknown):
        failing(number, error)
    for number, error in enumerate((EncodeError("?"), ValueError("?"), QueueNotFound("?")), 10):
        failing(number, error)
        eventually(lambda key=f"pay:{number}": is_free(locks, key))
    assert all(locks.inspect(f"pay:{number}").holder for number in range(len(unknown)))


@pytest.mark.parametrize(
    "options", [{"args": ()}, {"args": (7,), "time_limit": 1, "soft_time_limit": 2}]
)
def test_what_celery_refuses_to_send_frees_its_key(app, locks, options):
    """A call without its arguments, or with limits that contradict each other, holds nothing afterwards."""

    @app.task(lock="alone", unique="raise", unique_for=600, **options)
    def alone(number):
        """Its key needs no argument."""

    with pytest.raises((TypeError, ValueError)):
        alone.apply_async(options["args"])
    eventually(lambda: is_free(locks, "alone"))


def test_a_revoked_or_expired_task_frees_its_key(app, locks, pay):
    """A worker that meets a task that is not to run gives back its key by the token of the message."""
    revoked, expired = pay.delay(1), pay.apply_async((2,), expires=-1)
    state.revoked.add(revoked.id)
    with worker(app):
        eventually(lambda: is_free(locks, "pay:1") and is_free(locks, "pay:2"))
    assert expired.state == revoked.state == "REVOKED"
    assert pay.ran == []


def test_a_second_delivery_runs_only_where_no_other_task_has_the_key(app, locks, pay, monkeypatch):
    """A token works once: a late copy of a message acquires the key without waiting, or is skipped."""
    pay.may_end.set()
    with sent_by(app, monkeypatch) as headers:
        pay.delay(7)
    assert pay.apply((7,), task_id="a", headers=headers).get() == 7
    assert pay.apply((7,), task_id="a", headers=headers).get() == 7
    other = pay.delay(7)
    assert pay.apply((7,), task_id="a", headers=headers).state == "IGNORED"
    assert locks.inspect("pay:7").holder.endswith(f"[{other.id}]")


@pytest.mark.parametrize("until", ["end", "start"])
def test_a_next_attempt_is_sent_although_the_engine_does_not_answer(app, locks, monkeypatch, until):
    """It acquires its key when it runs; a new task is not sent then."""

    @app.task(bind=True, lock="again", unique="raise", unique_for=600, until=until)
    def again(self):
        if self.request.retries:
            return "done"
        with monkeypatch.context() as patch:
            patch.setattr(Locks, "acquire", unavailable)
            patch.setattr(Lease, "hand_over", unavailable)
            with pytest.raises(EngineUnavailable):
                again.apply_async()
            raise self.retry(countdown=0)

    result = again.delay()
    with worker(app):
        assert result.get(timeout=PATIENCE) == "done"


def test_a_task_that_replaces_itself_hands_its_key_on(app, locks):
    """Another task with the same key and the id of the first is its next attempt, and is not skipped."""
    fences = []

    @app.task(bind=True, name="first", lock="job", unique="raise", unique_for=600)
    def first(self):
        fences.append(lease_of().fence)
        raise self.replace(second.si())

    @app.task(name="second", lock="job", unique="raise", unique_for=600)
    def second():
        fences.append(lease_of().fence)
        return "second"

    result = first.delay()
    with worker(app):
        assert result.get(timeout=PATIENCE) == "second"
    assert fences[0] == fences[1]


def test_an_engine_that_fails_at_the_start_leaves_no_key_behind(app, locks, pay, monkeypatch):
    """The task fails, and its key is given back, although the outage may last for longer than the ttl."""
    pending = []

    def noted(_self, key, _owner, ttl, _void):
        pending.append((key, ttl))

    with sent_by(app, monkeypatch) as headers:
        pay.delay(7)
    with monkeypatch.context() as patch:
        patch.setattr(task_module, "take_over", unavailable)
        patch.setattr(Keeper, "release_later", noted)
        assert pay.apply((7,), task_id="a", headers=headers).state == "FAILURE"
        patch.setattr(type(locks._locker.store), "transfer", unavailable)
        with pytest.raises(EngineUnavailable):
            pay.apply_async((8,), countdown=30)
    (first, longest), (second, length), *_ = pending
    assert first.endswith(":pay:7")
    assert longest >= 600
    assert second.endswith(":pay:8")
    assert length == pytest.approx(630, abs=1)


class Unready(LockedTask):
    """A base class by which a task can end before its function is called."""

    abstract = True
    lock, unique, unique_for = "job", "raise", 600
    why = None

    def before_start(self, *_):
        if self.why == "before_start":
            raise RuntimeError(self.why)

    def __call__(self, *args, **kwargs):
        return None if self.why == "call" else super().__call__(*args, **kwargs)


@pytest.mark.parametrize("why", ["before_start", "call", "arguments", "unlocked"])
def test_a_task_that_ends_before_its_function_is_called_frees_its_key(app, locks, why):
    """A hook that raises, a class that does not call it, a worker with other code: the key is free."""
    job = app.task(base=Unready, name="job", why=why)(same)
    result = job.delay(7)
    if why == "arguments":
        job.lock = "job:{number}:{1}"
    elif why == "unlocked":
        job.lock = None
    with worker(app):
        eventually(result.ready)
    eventually(lambda: is_free(locks, "job"))


@pytest.mark.parametrize("how", ["before_start", "call", "replace", "autoretry_for"])
def test_a_retry_outside_of_the_function_hands_the_key_on(app, locks, how):
    """Before its run or after it, a task sends its next attempt with its lease, for ``unique_for`` again."""
    seen = []

    class Hesitant(LockedTask):
        abstract = True
        lock, unique, unique_for, ttl = "job", "raise", 600, 5
        autoretry_for, retry_kwargs = (ZeroDivisionError,), {"countdown": 0}

        def is_first(self, hook):
            return hook == how and self.name == "job" and not self.request.retries

        def before_start(self, *_):
            seen.append(locks.inspect("job"))
            if self.is_first("before_start"):
                self.retry(countdown=0)
            if self.is_first("replace"):
                self.replace(other.si())

        def __call__(self, *args, **kwargs):
            if self.is_first("call"):
                self.retry(countdown=0)
            return super().__call__(*args, **kwargs)

        def run(self):
            assert not 1 / (not self.is_first("autoretry_for")) - 1
            return lease_of().fence

    job, other = (
        app.register_task(type(name, (Hesitant,), {"name": name})()) for name in ("job", "other")
    )
    result = job.delay()
    with worker(app):
        fence = result.get(timeout=PATIENCE)
    assert [each.fence for each in seen] == [fence, fence]
    assert seen[1].remaining > 500
    last = "other" if how == "replace" else "job"
    assert seen[1].holder.endswith(f" {last}[{result.id}]")
    eventually(lambda: is_free(locks, "job"))


def test_a_task_that_is_not_retried_any_more_is_free_before_its_result_is_there(app, locks):
    """Without an attempt left, ``autoretry_for`` keeps no key."""

    class Failing(LockedTask):
        name, lock, unique, unique_for = "failing", "job", "raise", 600
        autoretry_for, max_retries = (ZeroDivisionError,), 0

        def run(self):
            return 1 / 0

        def on_failure(self, *_):
            freed.append(is_free(locks, "job"))

    freed, job = [], app.register_task(Failing())
    with worker(app):
        eventually(job.delay().ready)
    assert freed == [True]


def test_a_duplicate_in_a_canvas_is_skipped_although_a_hook_retries_it(app, locks):
    """Its next attempt is a duplicate, too, even if the key has become free meanwhile."""
    retried, ran = [], []

    class Retried(LockedTask):
        name, lock, unique, unique_for = "retried", "job", "raise", 600

        def before_start(self, task_id, *_):
            if self.request.chain and not self.request.retries:
                eventually(lambda: is_free(locks, "job"))
                retried.append(task_id)
                self.retry(countdown=0)

        def run(self):
            ran.append(self.request.id)

    job = app.register_task(Retried())
    first = job.delay()
    chained = chain(job.s(), app.task(name="twice")(doubled).s()).apply_async()
    with worker(app):
        assert chained.get(timeout=PATIENCE) is None
    assert retried == [chained.parent.id]
    assert ran == [first.id]


def test_a_hook_that_retries_with_other_arguments_holds_their_key(app, locks):
    """The next attempt has the key of its own arguments, and that of the first is free."""
    seen = []

    class Moved(LockedTask):
        name, lock, unique, unique_for = "moved", "job:{0}", "raise", 600

        def before_start(self, *_):
            if not self.request.retries:
                seen.append(locks.inspect("job:7"))
                self.retry(args=(8,), countdown=0)

        def run(self, number):
            assert is_free(locks, "job:7")
            return lease_of().key

    result = app.register_task(Moved()).delay(7)
    with worker(app):
        assert result.get(timeout=PATIENCE) == "job:8"
    assert seen[0].holder.endswith(f"[{result.id}]")


def test_a_key_is_given_back_although_the_locks_rest(tmp_path):
    """They open again for it; closed ones say that they cannot."""
    with Locks.from_url(f"file://{tmp_path}/locks") as locks:
        token = locks.acquire("job").hand_over(ttl=600)
        rest(locks)
        give_up(locks, token)
        eventually(lambda: is_free(locks, "job"))
    with pytest.raises(ConfigurationError, match="is closed"):
        give_up(locks, token)


def test_a_worker_whose_task_has_another_key_holds_that_one(app, locks, pay):
    """During a deployment, a message brings the key of the old code; the run holds the new one."""
    result = pay.delay(7)
    pay.lock = "paid:{0}"
    with worker(app):
        assert pay.begun.wait(PATIENCE)
        assert is_free(locks, "pay:7")
        assert locks.inspect("paid:7").holder.endswith(f"[{result.id}]")
        pay.may_end.set()
        assert result.get(timeout=PATIENCE) == 7


def test_a_run_of_a_base_class_is_part_of_the_task(app, locks):
    """With ``until="start"``, what a class calls of its base does not lock again."""

    class Base(LockedTask):
        abstract = True

        def run(self):
            return "base"

    class Derived(Base):
        name = "derived"
        lock, unique, unique_for, until = "derived", "raise", 600, "start"

        def run(self):
            assert derived.delay()
            return super().run()

    derived = app.register_task(Derived())
    assert derived.apply().get() == "base"


def test_eager_tasks_are_unique_too(app, locks, pay):
    """A task that runs at once has the key while it runs, and gives it back."""
    app.conf.task_always_eager = True
    pay.may_end.set()
    assert pay.delay(7).get() == 7
    assert is_free(locks, "pay:7")

    @app.task(lock="pay:{0}", unique="drop", unique_for=9)
    def again(number):
        return number, again.delay(number)

    assert again.delay(7).get() == (7, None)


def test_other_headers_stay_what_they_are(app, pay, monkeypatch):
    """The token travels beside the application's own headers, and is not shown in a result."""
    with sent_by(app, monkeypatch) as headers:
        pay.apply_async((7,), headers={"trace": "1"}, task_id="mine", priority=3)
    assert headers["trace"] == "1"
    assert headers[HEADER].startswith("weblock1.")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"unique_for": 9}, "need unique="),
        ({"until": "start"}, "need unique="),
        ({"unique": "raise"}, "unique_for=: for how many seconds"),
        ({"unique": "once", "unique_for": 9}, "must be one of"),
        ({"unique": "raise", "unique_for": 9, "until": "never"}, "must be one of"),
        ({"unique": "raise", "unique_for": 0}, "unique_for=0 must be"),
        ({"unique": "raise", "unique_for": 9, "lock": None}, "needs lock="),
        ({"unique": "raise", "unique_for": 9, "limit": 2}, "without limit="),
    ],
)
def test_options_that_cannot_work_are_refused_where_they_are_written(app, options, message):
    """An error names the option and the remedy, before anything is sent."""
    with pytest.raises(ConfigurationError, match=message):
        app.task(**{"lock": "a", **options})(nothing).delay()


def test_options_from_elsewhere_are_refused_when_the_task_is_sent(locks):
    """Annotations and the defaults of the locks are checked too, and nothing is sent."""
    for options, message in (
        ({}, "unique_for=: for how many"),
        ({"unique_for": 9}, "without limit="),
    ):
        bare = Celery(f"bare{next(numbers)}", broker="memory://", set_as_current=False)
        bare.conf.task_annotations = {"given": {"unique": "raise", "lock": "a", **options}}
        WebLock(bare, "memory://", limit=2)
        task = bare.task(shared=False, name="given")(nothing)
        with pytest.raises(ConfigurationError, match=message):
            task.delay()


def test_joining_needs_a_result_backend(locks):
    """Without one, ``join`` is refused before a task is sent."""
    bare = Celery(f"bare{next(numbers)}", broker="memory://", set_as_current=False)
    WebLock(bare, locks)
    task = bare.task(shared=False, lock="a", unique="join", unique_for=9)(nothing)
    with pytest.raises(ConfigurationError, match="set result_backend, or write unique='drop'"):
        task.delay()
    assert is_free(locks, "a")


def test_a_duplicate_in_a_canvas_counts_as_done(app, locks, pay):
    """A group is ready and a chord calls its body, although one of their tasks was queued already."""
    twice = app.task(name="twice")(doubled)
    total = app.task(name="total")(collected)
    first = pay.delay(7)
    together = group(pay.s(7), twice.s(8)).apply_async()
    chained = chain(pay.s(7), twice.s()).apply_async()
    joined = chord([pay.s(7), twice.s(8)])(total.s())
    pay.may_end.set()
    with worker(app):
        assert first.get(timeout=PATIENCE) == 7
        assert together.get(timeout=PATIENCE) == [None, 16]
        assert chained.get(timeout=PATIENCE) is None
        assert joined.get(timeout=PATIENCE) == [None, 16]
    assert len(pay.ran) == 1
