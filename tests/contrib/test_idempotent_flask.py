"""``@locks.idempotent(...)``: each request to a Flask view is executed once."""

import io
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from flask import Flask, Response, abort, jsonify, request
from flask_sqlalchemy import SQLAlchemy

from tests.servers.postgres import shared_postgres
from weblock import ConfigurationError, Locks
from weblock.contrib.flask import WebLock
from weblock.contrib.sqlalchemy import answer_table
from weblock.contrib.wsgi import LockMiddleware


class Shop:
    """An application with a database."""

    def __init__(self, locks: Locks, url: str) -> None:
        self.db = db = SQLAlchemy()
        self.locks = locks
        self.web = WebLock(locks=locks)
        self.app = Flask(__name__)
        self.app.config["SQLALCHEMY_DATABASE_URI"] = url
        self.web.init_app(self.app)
        db.init_app(self.app)
        self.answers = answer_table(db.metadata)
        self.ran: list[str] = []

        class Order(db.Model):
            __tablename__ = "flask_order"
            id = db.Column(db.Integer, primary_key=True)

        self.order = Order
        with self.app.app_context():
            db.drop_all()
            db.create_all()

    def add(self, path, end, **options):
        """A view that commits an order, and ends in its way."""

        @self.app.post(path, endpoint=path)
        @self.web.idempotent(**{"caller": lambda: request.headers["X-User"], **options})
        def view():
            self.ran.append(path)
            self.db.session.add(self.order())
            self.db.session.commit()
            return end()

    def post(self, path="/orders", key="key", user="anna", **more):
        headers = {"Idempotency-Key": key, "X-User": user}
        return self.app.test_client().post(path, headers=headers, **more)

    def rows(self):
        with self.app.app_context():
            return tuple(
                self.db.session.scalar(self.db.select(self.db.func.count()).select_from(table))
                for table in (self.order.__table__, self.answers)
            )


@pytest.fixture(params=["sqlite", "postgresql"])
def shop(request, url, tmp_path):
    """A shop with a database of each kind."""
    with Locks.from_url(url) as locks:
        on_server = request.param == "postgresql"
        database = (
            shared_postgres().url(driver="psycopg") if on_server else f"sqlite:///{tmp_path}/db"
        )
        found = Shop(locks, database)
        yield found
        with found.app.app_context():
            assert found.db.engine.pool.checkedout() == 0
            found.db.engine.dispose()


def test_a_request_that_is_sent_again_gets_the_same_answer(shop):
    """It is marked; functions after the request run again; neither another user nor another body gets it."""
    shop.add("/orders", lambda: (jsonify(n=len(shop.ran)), 201, {"X-A": "é", "Set-Cookie": "a=b"}))

    @shop.app.after_request
    def mark(response):
        response.headers["X-Again"] = "yes"
        return response

    first, again = shop.post(), shop.post(key='"key"')
    assert (first.status_code, again.status_code) == (201, 201)
    assert first.get_data() == again.get_data()
    assert again.headers["Idempotency-Replayed"] == "true"
    assert "Idempotency-Replayed" not in first.headers
    assert (first.headers["X-A"], first.headers["X-Again"]) == ("é", "yes")
    assert (again.headers["X-A"], again.headers["X-Again"]) == ("é", "yes")
    assert "Set-Cookie" in first.headers
    assert "Set-Cookie" not in again.headers
    assert shop.post(data=b"other").status_code == 422
    assert shop.post(key="").status_code == 400
    assert shop.post(user="bert").status_code == 201
    assert shop.rows() == (2, 2)


@pytest.mark.parametrize("how", ["raised", "failed", "409", "503", "stream", "long", "busy"])
def test_what_is_not_stored_is_not_committed(shop, how):
    """Though the view has committed: so a retry can be executed."""
    ends = {
        "raised": lambda: abort(404),
        "failed": lambda: 1 // 0,
        "stream": lambda: Response(iter(["a"])),
        "busy": lambda: Response(iter(["a"]), 503),
        "long": lambda: "x" * 1000,
    }
    shop.add("/orders", ends.get(how, lambda: ("", int(how))), max_body=100)
    statuses = {"raised": 404, "409": 409, "503": 503, "busy": 503}
    for _ in range(2):
        assert shop.post().status_code == statuses.get(how, 500)
    assert shop.rows() == (0, 0)
    assert len(shop.ran) == 2


def test_forms_are_compared_by_their_parts(shop):
    """A client chooses another boundary each time, and a function before the request may have read a file."""

    @shop.app.before_request
    def read():
        request.files["f"].read()

    shop.add("/orders", lambda: request.form["a"] + request.files["f"].read().decode())

    def form(content, boundary=None):
        data = {"a": "x", "f": (io.BytesIO(content), "name")}
        return shop.post(data=data, content_type="multipart/form-data")

    assert form(b"1").text == form(b"1").text == "x1"
    assert form(b"2").status_code == 422
    assert shop.rows() == (1, 1)


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("size", [5, -1])
@pytest.mark.parametrize("content_type", ["text/plain", "multipart/form-data; boundary=b"])
def test_a_body_that_was_read_as_a_stream_is_rejected(shop, content_type, size, chunked):
    """Not all is left to compare: another body would get the old answer."""
    shop.app.before_request(lambda: shop.ran.append(request.stream.read(size)))
    shop.add("/orders", lambda: "paid")
    shop.app.testing = True
    parts = [
        b'--b\r\nContent-Disposition: form-data; name="%s"\r\n\r\n1\r\n' % each
        for each in (b"x", b"y")
    ]
    more = {"data": b"".join([*parts, b"--b--\r\n"])}
    if chunked:
        environ = {"wsgi.input_terminated": True, "HTTP_TRANSFER_ENCODING": "chunked"}
        more = {"input_stream": io.BytesIO(more["data"]), "environ_overrides": environ}
    with pytest.raises(ConfigurationError, match="something has read their body"):
        shop.post(content_type=content_type, **more)
    assert len(shop.ran) == 1
    assert shop.post().text == "paid"  # Without a body there is nothing to read.
    assert shop.rows() == (1, 1)


def test_an_empty_form_is_a_payload(shop):
    """It has a boundary and no part, as a form of a page without fields."""
    shop.add("/orders", lambda: "paid")
    for boundary in "bc":
        form = f"--{boundary}--\r\n".encode()
        assert (
            shop.post(data=form, content_type=f"multipart/form-data; boundary={boundary}").text
            == "paid"
        )
    assert shop.rows() == (1, 1)


@pytest.mark.parametrize("fails", [False, True])
def test_a_second_session_in_the_view_is_rejected(shop, fails):
    """After ``db.session.remove()`` the next one would commit without the answer."""

    @shop.app.post("/orders")
    @shop.web.idempotent(caller="anonymous")
    def view():
        shop.db.session.remove()
        if fails:
            abort(404)
        shop.db.session.add(shop.order())
        shop.db.session.commit()

    @shop.app.errorhandler(404)
    def not_found(_error):
        shop.db.session.remove()
        return str(shop.db.session.scalar(shop.db.select(1))), 404

    shop.app.testing = True
    if fails:
        assert shop.post().text == "1"  # Error handlers use sessions as always.
    else:
        with pytest.raises(ConfigurationError, match="uses a second"):
            shop.post()
    assert shop.rows() == (0, 0)


def test_of_two_that_were_executed_only_one_is_committed(shop):
    """Without any lock, the database rejects the second: it gets the answer of the first."""
    with Locks.from_url("noop://") as unlocked:
        other = Shop(unlocked, shop.app.config["SQLALCHEMY_DATABASE_URI"])

        @other.app.post("/orders")
        @other.web.idempotent(caller="anonymous")
        def view():
            other.ran.append("ran")
            if len(other.ran) == 1:  # It is overtaken before it uses the database.
                with ThreadPoolExecutor(1) as client:
                    answers.append(client.submit(other.post).result())
            other.db.session.add(other.order())
            other.db.session.commit()
            return str(len(other.ran))

        answers = []
        late = other.post()
        assert [late.text, answers[0].text] == ["2", "2"]
        assert late.headers["Idempotency-Replayed"] == "true"
        assert other.ran == ["ran", "ran"]
        assert other.rows() == (1, 1)
        with other.app.app_context():
            other.db.engine.dispose()


def test_the_engine_stores_answers_for_work_in_another_database(url):
    """When the request has ended: what was raised, or whose work was not committed, is executed again."""
    app, ran = Flask(__name__), Counter()
    web = WebLock(app, url)

    @app.post("/orders/<how>")
    @web.idempotent(caller=lambda: request.headers["X-User"], store="engine")
    def create(how):
        ran[how] += 1
        if how == "raises":
            abort(422)
        if how == "streams":
            return Response(iter(["x"]))
        return jsonify(ran=ran[how]), 422 if how == "rejects" else 201

    @app.after_request
    def check(response):
        if ran["fails in place"] == 1:
            ran["fails in place"] += 1
            response.status_code = 500
        if ran["fails after"] == 1:
            ran["fails after"] += 1
            abort(500)
        return response

    @app.teardown_request
    def commit(_error):
        if ran["is not committed"] == 1:
            ran["is not committed"] += 1
            raise ZeroDivisionError

    def post(how, **more):
        headers = {"Idempotency-Key": "key", "X-User": "anna"}
        answer = app.test_client().post(f"/orders/{how}", headers=headers, **more)
        return answer.status_code, answer.headers.get("idempotency-replayed")

    assert [post("creates") for _ in range(2)] == [(201, None), (201, "true")]
    assert [post("rejects") for _ in range(2)] == [(422, None), (422, "true")]
    assert [post("raises") for _ in range(2)] == [(422, None)] * 2
    assert [post("streams") for _ in range(2)] == [(200, None)] * 2
    assert [post("fails after") for _ in range(3)] == [(500, None), (201, None), (201, "true")]
    assert [post("fails in place") for _ in range(3)] == [(500, None), (201, None), (201, "true")]
    with pytest.raises(ZeroDivisionError):
        post("is not committed")
    assert post("is not committed") == (201, None)
    assert post("creates", data="other") == (422, None)
    unfit = Flask(__name__)
    unfit.testing = True
    web = WebLock(unfit, "noop://")
    unfit.post("/orders")(web.idempotent(caller="anonymous", store="engine")(lambda: ""))
    with pytest.raises(ConfigurationError, match=r'idempotent\(store="engine"\) keeps answers'):
        unfit.test_client().post("/orders")
    for wrong in ({"max_body": 65537}, {"store": "redis"}):
        with pytest.raises(ConfigurationError, match=r"store=|max_body="):
            web.idempotent(**{"caller": "anonymous", "store": "engine", **wrong})


@pytest.mark.parametrize(
    ("methods", "why"),
    [(["POST"], "install it"), (["GET", "POST"], "GET requests can be repeated")],
)
def test_what_cannot_work_is_rejected_before_it_runs(url, methods, why):
    """Without Flask-SQLAlchemy there is no transaction, and what only reads needs none."""
    app, web = Flask(__name__), WebLock(locks=url)
    web.init_app(app)
    app.testing = True

    @app.route("/orders", methods=methods)
    @web.idempotent(caller="anonymous")
    def create(): ...

    with pytest.raises(ConfigurationError, match=why):
        app.test_client().post("/orders", headers={"Idempotency-Key": "key"})
    with pytest.raises(TypeError):
        web.idempotent(caller="anonymous")(Flask)
    with app.app_context():
        web.locks.close()


def test_a_decorator_above_the_route_is_found(url):
    """Flask would call the function inside it."""
    app, web = Flask(__name__), WebLock(locks=url)
    web.init_app(app)
    app.testing = True

    @web.idempotent(caller="anonymous")
    @app.post("/orders")
    def create(): ...

    with pytest.raises(ConfigurationError, match=r"put @locks.idempotent below"):
        app.test_client().post("/orders")
    with app.app_context():
        web.locks.close()


def test_a_rule_around_a_view_finds_the_answer_that_the_view_has_kept():
    """Both compare a body alike, so the request is not taken for another one with the same key."""
    locks, ran = Locks.from_url("memory://"), []
    app = Flask(__name__)
    web = WebLock(app, locks)

    @app.post("/orders")
    @web.idempotent(caller="anonymous", store="engine")
    def order():
        ran.append(1)
        return {"error": "out of stock"}, 400

    rule = {"path": "/orders", "methods": ["POST"], "idempotent": {"caller": "anonymous"}}
    app.wsgi_app = LockMiddleware(app.wsgi_app, locks, [rule])
    with locks:
        for _ in range(2):
            headers = {"Idempotency-Key": "key"}
            response = app.test_client().post("/orders", headers=headers, json={"item": 7})
            assert response.status_code == 400
    assert ran == [1]
