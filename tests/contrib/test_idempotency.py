"""``contrib.kit.idempotency``: what one request is, what is stored of its answer, and what is sent again."""

import hashlib
import sqlite3
from typing import Any
from uuid import UUID

import pytest

from tests.support.events import Heard
from weblock import ConfigurationError, Locks, LockTimeout, Observer, errors
from weblock.contrib.kit import LockSpec, idempotency, problem_of
from weblock.contrib.kit.idempotency import Answer, Answers, BodyDigest, IdempotencySpec
from weblock.contrib.status.page import History
from weblock.events import Repeated

PLAIN: dict[str, Any] = {
    "caller": 7,
    "method": "POST",
    "path": "/orders",
    "sent": ["abc"],
    "parts": [b"", b"{}"],
}


def someone() -> None:
    """Return the caller, in an application."""


SPEC = IdempotencySpec.written(someone)


def asked(spec=SPEC, **other):
    """Return the plain request, with some things changed."""
    return spec.asked(**{**PLAIN, **other})


@pytest.mark.parametrize("sent", ['"abc"', " abc\t", '  "abc" '])
def test_a_quoted_and_a_bare_key_are_one(sent):
    """The draft requires a quoted string, and most clients send it without quotes."""
    assert asked(sent=[sent]) == asked()


@pytest.mark.parametrize(
    "sent",
    [[], [""], ['""'], ['"a'], ["a b"], ["a,b"], ["abc", "abc"], ['"a";b=1'], ["é"], ["x" * 256]],
    ids=repr,
)
def test_a_key_that_is_missing_or_malformed_is_rejected_with_400(sent):
    """Nothing runs for it; the code of the problem distinguishes the two."""
    with pytest.raises(errors.IdempotencyKeyInvalid) as rejected:
        asked(sent=sent)
    problem = problem_of(rejected.value)
    assert problem is not None
    assert (problem.status, problem.code.removeprefix("idempotency_key_")) == (
        400,
        "invalid" if sent else "missing",
    )


@pytest.mark.parametrize(
    "other",
    [{"caller": 8}, {"method": "PUT"}, {"path": "/orders/7/pay"}, {"sent": ["abd"]}],
    ids=repr,
)
def test_another_caller_method_path_or_key_is_another_request(other):
    """One user never gets the answer that another one got."""
    assert asked(**other).digest != asked().digest
    assert SPEC.keys_of(asked(**other)) != SPEC.keys_of(asked())


@pytest.mark.parametrize("parts", [[b"a", b"{}"], [b"", b"{ }"], [b"{}", b""], [b"{}"]])
def test_another_query_or_body_is_another_payload_of_the_same_request(parts):
    """Also where the same bytes are divided otherwise."""
    assert asked(parts=parts).digest == asked().digest
    assert asked(parts=parts).fingerprint != asked().fingerprint


def test_a_caller_is_who_it_is_by_value():
    """The number 7 and its text are one user, and a user with the name "anonymous" is not all clients."""
    assert asked(caller="7") == asked()
    everyone = IdempotencySpec.written("anonymous")
    assert asked(everyone, caller=None).caller != asked(caller="anonymous").caller
    assert asked(caller=UUID(int=7)).caller != asked().caller


@pytest.mark.parametrize(
    "caller",
    [None, "", True, someone, [7], 7.0],
    ids=["None", "empty", "bool", "object", "list", "float"],
)
def test_a_caller_without_an_identity_is_a_mistake_of_the_program(caller):
    """An object whose text changes would be another caller each time, so that nothing were ever replayed."""
    with pytest.raises(ConfigurationError, match="return the id of the user"):
        asked(caller=caller)


@pytest.mark.parametrize(
    "wrong",
    [
        {"caller": None},
        {"caller": "user"},
        {"keep": 0},
        {"max_answers": 0},
        {"max_body": 1.5},
        {"wait": -1},
    ],
    ids=repr,
)
def test_an_option_that_cannot_work_is_rejected_where_it_is_written(wrong):
    """Not at the first request."""
    options = {"caller": someone, **wrong}
    with pytest.raises(ConfigurationError):
        IdempotencySpec.written(options.pop("caller"), **options)


def test_an_option_that_does_not_exist_is_named():
    """With the options that there are."""
    with pytest.raises(TypeError, match=r"no option 'keeps': did you mean 'keep'\? .* max_answers"):
        IdempotencySpec.written(someone, keeps=7)


def test_a_request_that_changes_nothing_is_rejected():
    """A GET is repeated anyway, and its stored answer would be outdated."""
    with pytest.raises(ConfigurationError, match="GET requests can be repeated"):
        asked(method="GET")


def test_what_is_stored_and_what_is_not():
    """Success, redirects and errors that the handler returned; nothing that a retry might do better."""
    stored = [
        each
        for each in (200, 201, 302, 404, 409, 422, 429, 500, 503)
        if SPEC.answer_of(each, [], b"")
    ]
    assert stored == [200, 201, 302, 404, 422]
    headers = [("Set-Cookie", "a=b"), ("X-A", "1"), ("date", "now"), ("TE", "x"), ("Tenant", "2")]
    answer = SPEC.answer_of(201, headers, b"{}")
    assert answer is not None
    assert answer.headers == [("X-A", "1"), ("Tenant", "2")]
    assert answer.replayed.headers == [*answer.headers, ("Idempotency-Replayed", "true")]


@pytest.mark.parametrize("body", [b"12345678901", None], ids=["long", "streams"])
def test_a_response_that_cannot_be_stored_is_an_error(body):
    """It is raised inside the transaction, which rolls back."""
    few = IdempotencySpec.written(someone, max_body=10)
    with pytest.raises(errors.AnswerNotStored, match="its work was rolled back"):
        few.answer_of(200, [], body)
    assert few.answer_of(503, [], body) is None  # It is rolled back anyway.


@pytest.fixture
def locks(url):
    """Locks, whose observers are told."""
    with Locks.from_url(url) as found:
        yield found


@pytest.fixture
def database():
    """A database with the table, and nothing in it."""
    columns = [f"{name} TEXT" for name in idempotency.ANSWER_LENGTHS]
    columns += ["status INT", "headers TEXT", "body BLOB", "expires_at INT", "PRIMARY KEY (digest)"]
    with sqlite3.connect(":memory:") as found:
        found.execute(f"CREATE TABLE {idempotency.ANSWERS} ({', '.join(columns)})")
        yield found
    found.close()


def test_answers_are_stored_found_counted_and_deleted(database, locks, monkeypatch):
    """The whole life of a stored answer, on a database."""

    def answers(spec=SPEC, **other):
        def execute(sql, values):
            return database.execute(sql, values).fetchall()

        found = asked(spec, **other)
        return Answers(spec, found, locks, "sqlite", execute, failures=(sqlite3.Error,), remedy="")

    answer = Answer(201, [("X-A", "é")], b"\x00\xff")
    few = IdempotencySpec.written(someone, max_answers=1, keep=60)
    assert answers(few).find_or_admit() is None
    answers(few).store(answer)
    found = answers().find()
    assert found == answer
    with pytest.raises(errors.IdempotencyKeyReused):
        answers(parts=[b"", b"other"]).find()
    with pytest.raises(errors.TooManyAnswers) as too_many:
        answers(few, sent=["other"]).find_or_admit()
    assert 0 < too_many.value.retry_after <= 60
    assert answers(few, sent=["other"], caller=8).find_or_admit() is None
    with pytest.raises(sqlite3.IntegrityError):  # The referee of two that were executed.
        answers(few).store(answer)

    now = idempotency.time.time()
    monkeypatch.setattr(idempotency.time, "time", lambda: now + 61)
    monkeypatch.setattr(idempotency, "ANSWER_SWEEPS", 1.0)
    again = answers(few)
    assert again.find_or_admit() is None
    again.store(answer)  # In the place of the one that has expired.
    answers(few).sweep()
    assert answers().find() == answer
    monkeypatch.setattr(idempotency.time, "time", lambda: now + 200)
    answers().sweep()
    assert database.execute(f"SELECT COUNT(*) FROM {idempotency.ANSWERS}").fetchone() == (0,)


@pytest.mark.parametrize(
    "error", [OSError("gone"), errors.LeaseLost("key", fence=1, reason="expired")], ids=repr
)
def test_a_response_never_fails_because_expired_answers_stay(locks, monkeypatch, caplog, error):
    """They are deleted after COMMIT: the database, or its guard, may fail then, and that is logged."""

    def execute(_sql, _values):
        raise error

    monkeypatch.setattr(idempotency, "ANSWER_SWEEPS", 1.0)
    Answers(SPEC, asked(), locks, "sqlite", execute, failures=(OSError,), remedy="").sweep()
    assert "expired answers of idempotent requests were not deleted" in caplog.text


def test_requests_that_are_not_executed_are_told_and_counted(database, locks):
    """One event each, which the status page counts: a replay, a conflict (409) and a mismatch (422)."""
    heard, history = Heard(), History(locks)
    locks.observe(heard.observer)
    locks.observe(Observer(history.hear, immediate=True))

    def answers(**other):
        def execute(sql, values):
            return database.execute(sql, values).fetchall()

        found = asked(**other)
        return Answers(SPEC, found, locks, "sqlite", execute, failures=(), remedy="")

    busy = LockTimeout("key", wait=0)
    with pytest.raises(LockTimeout):
        answers().find(busy)
    answers().store(Answer(201, [], b""))
    assert answers().find(busy) == answers().find()
    with pytest.raises(errors.IdempotencyKeyReused):
        answers(parts=[]).find(busy)
    told = heard.of(Repeated)
    assert [each.outcome for each in told] == ["running", "replayed", "replayed", "reused"]
    assert {each.key for each in told} == {*SPEC.keys_of(asked())}
    assert {each.template for each in told} == {"idempotency:{digest}"}
    assert history.facts()["repeats"] == {"replayed": 2, "running": 1, "reused": 1}


@pytest.mark.parametrize(
    ("error", "status", "retry_after"),
    [
        (errors.IdempotencyKeyReused("x"), 422, None),
        (errors.TooManyAnswers(1, retry_after=9.5), 429, "10"),
        (errors.AnswersUnavailable("x"), 503, "5"),
        (errors.AnswerNotStored("x"), None, None),
    ],
)
def test_the_problems_of_idempotent_requests(error, status, retry_after):
    """Each says whether and when to send the request again; a response that cannot be stored is a 500."""
    problem = problem_of(error)
    assert (problem and problem.status) == status
    assert (problem and problem.headers.get("Retry-After")) == retry_after


def test_a_spec_is_a_lock_spec():
    """So it is listed, compared and copied as the others are."""
    assert isinstance(SPEC, LockSpec)
    assert IdempotencySpec.written(someone) == SPEC
    assert SPEC.said["caller"] is someone


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
def test_a_body_has_one_digest_however_it_arrives(size):
    """A form has it whatever separates its parts, and borders between parts count."""

    def digest_of(body, content_type):
        found = BodyDigest(content_type)
        for start in range(0, len(body), size):
            found.add(body[start : start + size])
        return found.digest()

    def form(*parts, by):
        whole = b"--%s\r\n" % by + (b"--%s\r\n" % by).join(parts) + b"--%s--" % by
        return digest_of(whole, f"multipart/form-data; boundary={by.decode()}")

    assert form(b"1", b"2", by=b"----x") == form(b"1", b"2", by=b"a-")
    assert len({form(*each, by=b"-") for each in ([b"12"], [b"1", b"2"], [b"", b"12"])}) == 3
    text = digest_of(b"--x\r\n1--x--", "text/plain; boundary=x")
    assert text == hashlib.sha256(b"--x\r\n1--x--").digest()
