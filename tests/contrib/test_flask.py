"""``weblock.contrib.flask``, request by request."""

import functools
import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy
from flask import Blueprint, Flask, Response, request, stream_with_context
from flask.views import MethodView
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy.orm import scoped_session, sessionmaker

from tests.support.waiting import PATIENCE, eventually
from weblock import ConfigurationError, LeaseLost, Locks, LockTimeout, WeblockError
from weblock.contrib.flask import WebLock, lease_of
from weblock.contrib.sqlalchemy import fence_table

from . import losing
from .gateway import is_free


@pytest.fixture
def locks(url):
    with Locks.from_url(url, wait=PATIENCE) as locks:
        yield locks


@pytest.fixture
def web(locks):
    """The extension, not yet in an application."""
    return WebLock(locks=locks)


@pytest.fixture
def app(web):
    app = Flask(__name__)
    web.init_app(app)
    return app


def keys_of(locks):
    return [info.key for info in locks.list()]


def innermost_function(thread):
    return sys._current_frames()[thread].f_code.co_name


def lose(locks, lease):
    locks.force_release(lease.key)
    losing.lose(lease)


class TestViews:
    def test_every_kind_of_view(self, app, web, locks):
        """Methods of a ``MethodView``, its ``decorators``, blueprints, and async ones of all kinds."""

        class Items(MethodView):
            @web.lock("get:{item_id}")
            def get(self, item_id):
                return keys_of(locks)

            @web.lock("post:{item_id}")
            async def post(self, item_id):
                return keys_of(locks)

        class Shops(MethodView):
            decorators = (web.lock("shop:{shop}"),)

            def get(self, shop):
                return keys_of(locks)

        blueprint = Blueprint("more", __name__, url_prefix="/more")

        @blueprint.get("/<name>")
        @web.lock("more:{name}")
        async def more(name):
            assert lease_of().held
            return keys_of(locks)

        app.add_url_rule("/items/<int:item_id>", view_func=Items.as_view("items"))
        app.add_url_rule("/shops/<shop>", view_func=Shops.as_view("shops"))
        app.register_blueprint(blueprint)
        client = app.test_client()
        assert client.get("/items/7").json == ["get:7"]
        assert client.post("/items/7").json == ["post:7"]
        assert client.get("/shops/a").json == ["shop:a"]
        assert client.get("/more/b").json == ["more:b"]
        assert keys_of(locks) == []

    def test_where_keys_come_from(self, app, web, locks):
        """Path, query, headers, defaults of the view, and functions of what they name."""

        def of_user(item_id):
            return f"user:{request.headers['X-User']}:{item_id}"

        async def of_all(**values):
            return sorted(values)

        @app.get("/items/<int:item_id>")
        @web.lock("i:{item_id}", "q:{query.page:int}", "h:{header.X-User}", of_user, of_all)
        @web.lock("p:{page}", lambda: "nothing")
        def show(item_id, page=3):
            return keys_of(locks)

        done = app.test_client().get("/items/07?page=07", headers={"X-User": "ann"})
        expected = ["h:ann", "i:7", "item_id", "nothing", "p:3", "page", "q:7", "user:ann:7"]
        assert done.json == expected

    def test_locks_that_nest_and_repeat_are_one(self, app, web, locks):
        """Keys of several decorators are acquired in one order, each once; each has its own lease."""
        seen = []

        @web.lock("b", "a")
        def helper():
            seen.append(lease_of().keys)
            return keys_of(locks)

        @app.get("/")
        @web.lock("c", "a")
        @web.lock("b", wait=0)
        def view():
            seen.append(lease_of().keys)
            return helper()

        assert app.test_client().get("/").json == ["a", "b", "c"]
        assert seen == [("b",), ("a", "b")]
        assert keys_of(locks) == []

    def test_a_lock_of_some_methods(self, app, web, locks):
        """Requests by other methods neither wait for its key nor hold it, and GET includes HEAD."""

        @app.route("/", methods=["GET", "POST"])
        @web.lock("read", methods=["get"], wait=0)
        @web.lock("written", methods={"POST"}, wait=0)
        def serve():
            return keys_of(locks)

        client = app.test_client()
        assert (client.get("/").json, client.post("/").json) == (["read"], ["written"])
        with locks.hold("read"):
            asked = [getattr(client, each)("/").status_code for each in ("get", "head", "post")]
        assert asked == [409, 409, 200]
        with pytest.raises(ConfigurationError, match="method 'PSOT' is unknown"):
            web.lock("x", methods=["PSOT"])


class TestAnswers:
    @pytest.fixture
    def busy(self, app, web, locks):
        blueprint = Blueprint("shop", __name__)
        blueprint.get("/blue")(web.lock("x", wait=0)(lambda: "done"))
        app.add_url_rule("/", view_func=web.lock("x", wait=0)(lambda: "done"))

        def ask(path="/"):
            if "shop" not in app.blueprints:
                app.register_blueprint(blueprint)
            with locks.hold("x"), ThreadPoolExecutor(1) as thread:
                return thread.submit(app.test_client().get, path).result()

        ask.blueprint = blueprint
        return ask

    @pytest.mark.parametrize("kind", [LockTimeout, WeblockError])
    def test_handlers_of_the_application_go_first(self, app, busy, kind):
        """For the error itself, or for all of weblock's; of a blueprint, for its views."""
        app.register_error_handler(kind, lambda error: (f"busy: {error.key}", 423))
        busy.blueprint.register_error_handler(kind, lambda error: ("blue", 400))
        assert (busy().status_code, busy().text) == (423, "busy: x")
        assert (busy("/blue").status_code, busy("/blue").text) == (400, "blue")

    def test_a_handler_that_was_there_before(self, web, locks):
        """Whether the application has its handler before or after ``init_app`` makes no difference."""
        app = Flask(__name__)
        app.register_error_handler(WeblockError, lambda error: ("mine", 418))
        web.init_app(app)
        app.add_url_rule("/", view_func=web.lock("x", wait=0)(lambda: "done"))
        with locks.hold("x"), ThreadPoolExecutor(1) as thread:
            assert thread.submit(app.test_client().get, "/").result().status_code == 418

    @pytest.mark.parametrize("key", ["{x}", lambda *, x: x], ids=["template", "function"])
    @pytest.mark.parametrize(
        "view", [lambda x: x, lambda **url: url["x"], lambda: ""], ids=["x", "any", "none"]
    )
    def test_a_key_that_no_request_can_fill_in(self, app, web, key, view):
        """It is refused before the first request, unless the URL or the view has what it wants."""
        app.testing = True
        app.add_url_rule("/", endpoint="optional", view_func=web.lock(lambda x="1": x)(lambda: "1"))
        can = view.__code__.co_varnames
        app.add_url_rule("/<x>" if can else "/mine", view_func=web.lock(key)(view))
        if can:
            assert app.test_client().get("/7").text == "7"
        else:
            with pytest.raises(
                ConfigurationError, match=r"/mine: .* needs the view's argument 'x'"
            ):
                app.test_client().get("/")


class TestTheRelease:
    @pytest.mark.parametrize("kind", ["plain", "async", "stream", "context"])
    def test_comes_after_everything_else(self, app, web, locks, kind):
        """After ``after_request``, teardown functions, streams, and what is called on close."""
        events = []

        def note(name):
            events.append((name, is_free(locks, "x")))

        app.after_request(lambda response: note("after") or response)
        app.teardown_request(lambda error: note("teardown"))
        app.teardown_appcontext(lambda error: note("appcontext"))

        def parts():
            yield b"a"
            note("stream")
            yield b"b"

        def answer():
            made = {"stream": parts, "context": lambda: stream_with_context(parts())}
            response = Response(made.get(kind, lambda: b"ab")())
            response.call_on_close(lambda: note("close"))
            return response

        async def answer_async():
            return answer()

        view = web.lock("x")(answer_async if kind == "async" else answer)
        app.add_url_rule("/", view_func=view)
        done = app.test_client().get("/")
        assert done.data == b"ab"
        assert {name for name, _ in events} >= {"after", "teardown", "appcontext", "close"}
        assert not any(free for _, free in events)
        assert is_free(locks, "x")


class Shop:
    """Items in a database, of which there may be three; the commit is a teardown function's."""

    def __init__(self, app):
        self.db = db = SQLAlchemy()

        class Item(db.Model):
            id = db.Column(db.Integer, primary_key=True)

        self.item = Item
        db.init_app(app)
        fence_table(db.metadata)
        with app.app_context():
            db.create_all()
        app.teardown_request(self.commit)

    def commit(self, error):
        if self.db.session.new:
            self.db.session.commit()

    def count(self):
        return self.db.session.query(self.item).count()

    def add(self):
        if self.count() >= 3:
            return "full", 422
        self.db.session.add(self.item())
        return "made", 201


@pytest.fixture
def project(tmp_path):
    """An application with a database, and without weblock yet."""
    app = Flask(__name__)
    app.config["SQLALCHEMY_DATABASE_URI"] = f"sqlite:///{tmp_path}/shop.sqlite3"
    return app


@pytest.fixture
def shop(project):
    shop = Shop(project)
    yield shop
    with project.app_context():
        shop.db.engine.dispose()


class TestFlaskSQLAlchemy:
    @staticmethod
    def serve(app, view):
        app.add_url_rule("/", methods=["POST"], view_func=view)

    @staticmethod
    def answers(app, count):
        with ThreadPoolExecutor(count) as threads:
            asked = [threads.submit(app.test_client().post, "/") for _ in range(count)]
            return sorted(each.result().status_code for each in asked)

    @pytest.mark.parametrize("keys", [(), ("items",)])
    def test_acquire_needs_a_request_and_a_key(self, app, web, keys):
        """Outside a request, or without a key, the error names the alternative."""
        with app.app_context(), pytest.raises(ConfigurationError, match=r"locks\.hold\("):
            web.acquire(*keys)

    @staticmethod
    def overtake(app, locks):
        """Gives the lease to another request; the holder has not noticed when it commits."""
        locks.force_release("items")
        with ThreadPoolExecutor(1) as thread:
            assert thread.submit(app.test_client().post, "/next").result().status_code == 201

    @pytest.mark.parametrize(
        "case",
        [
            ("database", None, "refused"),
            (None, "database", "refused"),
            ("lease", "database", "refused"),
            ("database", "lease", "stale"),
            (None, None, "stale"),
        ],
    )
    def test_the_database_as_referee(self, project, shop, web, locks, case):
        """A setting, or one lock: the database refuses a holder that does not know of its loss."""
        setting, guard, commit = case
        if setting:
            project.config["WEBLOCK_GUARD"] = setting
        web.init_app(project)

        def overtaken():
            answer = shop.add()
            self.overtake(project, locks)
            return answer

        self.serve(project, web.lock("items", guard=guard)(overtaken))
        following = web.lock("items", guard=guard)(shop.add)
        project.add_url_rule("/next", methods=["POST"], view_func=following)
        assert self.answers(project, 1) == [503]  # Its release finds out that it was lost.
        with project.app_context():
            assert shop.count() == {"refused": 1, "stale": 2}[commit]

    @pytest.mark.parametrize("how", ["above", "below", "another view", "new session"])
    def test_one_guard_of_several_is_enough(self, project, shop, web, locks, how):
        """A key is guarded if one of its locks says so, in each session that the request makes."""
        guarded, plain = web.lock("items", guard="database"), web.lock("items")
        web.init_app(project)

        def overtaken():
            if how == "new session":
                shop.db.session.remove()
            answer = shop.add()
            self.overtake(project, locks)
            return answer

        view = {
            "above": lambda: guarded(plain(overtaken)),
            "below": lambda: plain(guarded(overtaken)),
            "another view": lambda: plain(lambda: (shop.count(), guarded(overtaken)())[1]),
            "new session": lambda: guarded(overtaken),
        }[how]()
        self.serve(project, view)
        project.add_url_rule("/next", methods=["POST"], view_func=guarded(shop.add))
        assert self.answers(project, 1) == [503]
        with project.app_context():
            assert shop.count() == 1

    def test_applications_that_share_the_database_object(self, project, shop, locks):
        """A factory makes one for each test: the last of them sends the database no more than the first."""
        sent = []
        for number in range(3):
            app = Flask(f"shop {number}")
            app.config.update(project.config, WEBLOCK_GUARD="database")
            shop.db.init_app(app)
            app.teardown_request(shop.commit)
            web = WebLock(app, locks)
            self.serve(app, web.lock("items")(lambda: (shop.db.session.remove(), shop.add())[1]))
            with app.app_context():
                engine = shop.db.engine
            statements = []
            sqlalchemy.event.listen(
                engine, "before_cursor_execute", lambda *args, to=statements: to.append(args[2])
            )
            assert self.answers(app, 1) == [201]
            sent.append(statements)
            engine.dispose()
        assert sent[0] == sent[1] == sent[2]
        assert "INTO weblock_fence" in sent[0][0]  # Before anything is read.

    def test_a_guard_after_writing_is_refused(self, project, shop, web):
        """What was written under a lock without the guard would be committed without its check."""
        web.init_app(project)
        project.testing = True

        def view():
            shop.add()
            return web.lock("items", guard="database")(shop.add)()

        self.serve(project, web.lock("items")(view))
        with pytest.raises(ConfigurationError, match="written already"):
            project.test_client().post("/")

    @pytest.mark.parametrize("guard", ["lease", "database"])
    def test_a_session_of_a_test_outlives_its_requests(self, project, shop, web, guard):
        """In an application context of a test's own, all requests share its session: it commits later, too."""
        project.config["WEBLOCK_GUARD"] = guard
        web.init_app(project)
        self.serve(project, web.lock("items")(shop.add))
        with project.app_context():
            assert project.test_client().post("/").status_code == 201
            assert project.test_client().post("/").status_code == 201
            shop.db.session.execute(sqlalchemy.text("SELECT 1"))
            shop.db.session.add(shop.item())
            shop.db.session.commit()
            assert shop.count() == 3


class TestInstallation:
    def test_a_factory(self, url):
        """``init_app`` for each application that a factory makes, with settings of each."""
        web = WebLock(locks="file:///nowhere", ttl=3)

        @web.lock("x", wait=0)
        def view():
            return web.locks.namespace

        made = []
        for namespace in ("one", "two"):
            app = Flask(__name__)
            app.config.update(WEBLOCK_URL=url, WEBLOCK_NAMESPACE=namespace)
            web.init_app(app)
            app.add_url_rule("/", view_func=view)
            made.append(app)
        assert [app.test_client().get("/").text for app in made] == ["one", "two"]
        for app in made:
            with app.app_context():
                assert web.locks._options.own[0].ttl == 3
                web.locks.close()

    @pytest.mark.parametrize(
        ("config", "message"),
        [
            ({"WEBLOCK_TIMEOUT": 3}, "WEBLOCK_TIMEOUT is not a setting; available: WEBLOCK_URL"),
            ({"WEBLOCK_TTL": "long"}, "ttl='long'"),
            ({"WEBLOCK_GUARD": "me"}, "guard='me': give 'lease'"),
            ({"WEBLOCK_GUARD_WAIT": 0}, "WEBLOCK_GUARD_WAIT=0"),
            ({"WEBLOCK_REWRITE": 3}, "rewrite=3 must be a function"),
            ({"WEBLOCK": {"URL": "redis://host"}}, "WEBLOCK in app.config is not a setting"),
        ],
    )
    def test_settings_that_cannot_work(self, url, config, message):
        """They are refused where the application is made."""
        app = Flask(__name__)
        app.config.update(WEBLOCK_URL=url, **config)
        with pytest.raises(ConfigurationError, match=message):
            WebLock(app)

    @pytest.mark.parametrize("name", ["WEBLOCK_URL", "WEBLOCK_NAMESPACE"])
    def test_settings_that_come_after_the_extension(self, url, name):
        """They would not count, and so no request is served: it might be locked on this machine alone."""
        app = Flask(__name__)
        app.testing = True
        app.config["WEBLOCK_URL"] = url
        web = WebLock(app)
        app.add_url_rule("/", view_func=web.lock("x")(lambda: "done"))
        app.config[name] = "redis://host"
        with pytest.raises(ConfigurationError, match=rf"^{name} changed .* before WebLock\(app\)"):
            app.test_client().get("/")
        app.config.pop(name)
        app.config["WEBLOCK_URL"] = url
        assert app.test_client().get("/").text == "done"
        with app.app_context():
            web.locks.close()

    def test_something_else_in_the_place_of_the_application(self, web, locks):
        """The error names what was given, without a password, and what to write."""
        for given, named in (("redis://:secret@host", "'redis://host'"), (locks, "<Locks memory:")):
            for install in (WebLock, web.init_app):
                with pytest.raises(
                    TypeError, match=f"the Flask application first, .* given {named}"
                ):
                    install(given)
            with pytest.raises(TypeError, match=r"write WebLock\(app, "):
                WebLock(given, Flask(__name__))
        with pytest.raises(TypeError, match=r"no option 'url': .*\(app, \"redis://"):
            WebLock(Flask(__name__), url="redis://host")

    def test_a_guard_that_cannot_work(self, web, url):
        """It is refused where it is written, or at the request if there is no session to guard."""
        for options in ({"guard": "me"}, {"shared": True}, {"limit": 2}):
            with pytest.raises(ConfigurationError, match=r"guard"):
                web.lock("items", **{"guard": "database", **options})
        app = Flask(__name__)
        app.config["WEBLOCK_GUARD"] = "database"
        web.init_app(app)
        app.testing = True
        app.add_url_rule("/", view_func=web.lock("items")(lambda: "done"))
        with pytest.raises(ConfigurationError, match="leave the guard off"):
            app.test_client().get("/")

    def test_twice_or_with_two_engines(self, app, web, locks):
        """So are a second installation, and a URL beside locks that are open."""
        with pytest.raises(ConfigurationError, match="install it once"):
            web.init_app(app)
        other = Flask(__name__)
        other.config["WEBLOCK_URL"] = "memory://"
        with pytest.raises(ConfigurationError, match="give one of them"):
            web.init_app(other)

    def test_a_view_that_is_served_with_and_without_its_lock(self, app, web, locks):
        """A view may be served unlocked on purpose, if the lock is on another function that calls it."""
        plain = Flask(__name__)
        decorated = WebLock(plain, locks)

        def view():
            return keys_of(locks)

        plain.get("/unlocked")(view)
        decorated.lock("x")(view)
        plain.testing = True
        remedy = "put @locks.lock on another function, which calls this one"
        with pytest.raises(ConfigurationError, match=remedy):
            plain.test_client().get("/unlocked")

        app.get("/unlocked")(view)

        @app.get("/locked")
        @web.lock("x")
        def locked():
            return view()

        client = app.test_client()
        assert client.get("/unlocked").json == []
        assert client.get("/locked").json == ["x"]

    @pytest.mark.parametrize("below", ["nothing", "two decorators", "a lock"])
    def test_a_lock_above_the_route(self, app, web, below):
        """Flask would serve the function without its lock: each request is refused instead."""

        def plain(view):
            @functools.wraps(view)
            def called():
                return view()

            return called

        layers = {
            "nothing": [],
            "two decorators": [plain, plain],
            "a lock": [web.lock("y")],
        }

        def view():
            return "without a lock"

        served = view
        for decorate in layers[below]:
            served = decorate(served)
        web.lock("x")(app.get("/")(served))
        app.testing = True
        with pytest.raises(ConfigurationError, match="view is served without its lock"):
            app.test_client().get("/")

    @pytest.mark.parametrize("wraps", [True, False], ids=["wraps", "without wraps"])
    def test_a_lock_between_other_decorators(self, app, web, locks, wraps):
        """A lock below the route is held, whatever decorators stand above and below it."""

        def plain(view):
            def called():
                return view()

            return functools.wraps(view)(called) if wraps else called

        def view():
            return keys_of(locks)

        app.testing = True
        app.add_url_rule("/", "view", plain(web.lock("x")(plain(view))))
        assert app.test_client().get("/").json == ["x"]

    def test_a_lock_without_its_key(self, app, web):
        """``@locks.lock`` without parentheses takes the view for a function that makes the key."""

        @app.get("/")
        @web.lock
        def view(): ...

        app.testing = True
        with pytest.raises(ConfigurationError, match=r"given the view .* instead of a key"):
            app.test_client().get("/")

    def test_decorators_on_what_they_cannot_lock(self, web):
        """Classes, and views without a key."""
        with pytest.raises(TypeError, match=r"decorators = \[locks.lock"):
            web.lock("x")(MethodView)
        with pytest.raises(TypeError, match="name at least one key"):
            web.lock()
        with pytest.raises(TypeError, match="needs a key"):
            web.lock(lambda: "view")("x")
        with pytest.raises(ConfigurationError, match="a placeholder with a dot starts"):
            web.lock("{body.x}")
        with pytest.raises(TypeError, match="timeout"):
            web.lock("x", timeout=3)

    def test_of_the_first_requests_one_begins_and_the_others_wait(self, web):
        """Sessions get their listeners once, and no request uses them meanwhile."""
        starting, looking, gate = [], [], threading.Event()

        class Extension:
            """Stands for Flask-SQLAlchemy: whoever looks for its session is kept for a while."""

            @property
            def session(self):
                looking.append(threading.get_ident())
                gate.wait(PATIENCE)
                return scoped_session(sessionmaker())

        app = Flask(__name__)
        app.extensions["sqlalchemy"] = Extension()
        web.init_app(app)
        app.add_url_rule("/", view_func=lambda: "served")

        def serve():
            starting.append(threading.get_ident())
            return app.test_client().get("/").text

        def has_come(thread):
            return thread in looking or innermost_function(thread) == "_begin"

        with ThreadPoolExecutor(2) as threads:
            try:
                requests = [threads.submit(serve) for _ in range(2)]
                eventually(lambda: looking and all(map(has_come, starting)) and len(starting) == 2)
            finally:
                gate.set()
            assert [each.result() for each in requests] == ["served", "served"]
        assert len(set(looking)) == 1

    def test_without_an_application(self, web):
        """A view that is called where weblock is not installed, or that holds nothing, is told."""
        app = Flask(__name__)
        with app.test_request_context():
            with pytest.raises(ConfigurationError, match="not installed"):
                web.lock("x")(lambda: "view")()
            with pytest.raises(ConfigurationError, match="holds no lock"):
                lease_of()


class TestCommands:
    def test_they_show_and_release(self, app, locks):
        """``flask weblock list``, ``show`` and ``release``, for people and for programs."""
        run = app.test_cli_runner().invoke
        assert run(args=["weblock", "list"]).output == "No key is held or waited for.\n"
        assert run(args=["weblock", "show", "x"]).output == "x is free.\n"
        lease = locks.acquire("x")
        assert "x " in run(args=["weblock", "list"]).output
        assert json.loads(run(args=["weblock", "list", "--json"]).output)[0]["key"] == "x"
        assert "holder:" in run(args=["weblock", "show", "x"]).output
        assert (
            json.loads(run(args=["weblock", "show", "x", "--json"]).output)["fence"] == lease.fence
        )
        more = run(args=["weblock", "list", "--limit", "1"])
        assert "keys are shown" in more.output
        refused = run(args=["weblock", "release", "x"])
        assert (refused.exit_code, "use --force" in refused.output) == (1, True)
        gently = ["weblock", "release", "x", "--gently", "--timeout", "0"]
        still = run(args=gently)
        assert (still.exit_code, "is still held by" in still.output) == (75, True)
        assert "Released x" in run(args=[*gently, "--force"]).output
        with pytest.raises(LeaseLost):
            lease.release()
        assert "x is not held" in run(args=["weblock", "release", "x", "--force"]).output
        wrong = run(args=["weblock", "show", "\n"])
        assert (wrong.exit_code, "control character" in wrong.output) == (1, True)
