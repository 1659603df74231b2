"""``weblock check``: what an application locks, without serving a request."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SHOP = """
from celery import Celery, Task
from fastapi import APIRouter, Depends, FastAPI, WebSocket
from fastapi.security import HTTPBasic
from flask import Flask, request
from flask.views import MethodView
from starlette.endpoints import HTTPEndpoint
from starlette.routing import Route
from weblock.contrib import celery as weblock_celery, flask as weblock_flask, wsgi
from weblock.contrib.asgi import LockMiddleware, Rule
from weblock.contrib.fastapi import guarded, install, lock

rules = [
    Rule("/shops/{shop}/items/preview", exempt=True),
    Rule("/shops/{shop}/items/{item:int}", methods=["POST"], key="item:{shop}:{item}", wait=1),
    Rule("/carts", key="cart:{header.x-cart}"),
]

async def plain(scope, receive, send): ...

wrapped = LockMiddleware(plain, "memory://", rules)

served = wsgi.LockMiddleware(lambda environ, start_response: [], "memory://", rules)

app = FastAPI()
app.add_middleware(LockMiddleware, locks="memory://", rules=rules)

broken = FastAPI()
broken.add_middleware(LockMiddleware, locks="memory://", rules=[{"path": "/", "key": "{nothing}"}])

routed = FastAPI()
install(routed, "memory://")

@routed.post("/orders/{order}", dependencies=[Depends(lock("order:{order:int}"))])
def order(order: int): ...

locked = [Depends(lock("item"))]

@routed.post("/files/{p:path}", dependencies=[Depends(lock("file:{p:str}"))])
def file(p: str): ...

@routed.post("/numbers/{number:int}", dependencies=locked)
def number(number: int): ...

@routed.post("/items/{name}")
def item(name: str): ...

@routed.post("/items/new", dependencies=locked)
def new_item(): ...

@routed.websocket("/live", dependencies=locked)
async def live(socket: WebSocket): ...

router = APIRouter()

@router.post("/lines/{line:int}")
def line(line: int): ...

@router.post("/lines", dependencies=locked)
def lines(): ...

routed.include_router(router, prefix="/carts/{cart}")

inner = FastAPI(root_path="")
inner.include_router(router, prefix="/shops")
routed.mount("/sub/{tenant}", inner)

@inner.post("/own", dependencies=[Depends(lock("tenant:{tenant:int}"))])
def own(): ...

class Elsewhere:
    routes = [object()]
    async def __call__(self, scope, receive, send): ...

routed.mount("/elsewhere", Elsewhere())

@routed.post("/sub/a/anything", dependencies=locked)
def behind_the_mount(): ...

class Endpoint(HTTPEndpoint):
    async def post(self, request): ...

routed.router.routes.append(Route("/classes/{name}", Endpoint))

both = FastAPI()
install(both, "memory://")
both.add_middleware(LockMiddleware, locks="memory://", rules=rules)

@both.post("/shops/{shop}/items/{item}", dependencies=[Depends(lock("stock:{item:int}"))])
def stock(shop: str, item: int): ...

around = LockMiddleware(routed, "memory://", rules)

def settings(): ...
basic = HTTPBasic()
def user(given=Depends(basic)): ...
def cart_of(user=Depends(user)): ...

ordered = FastAPI()
install(ordered, "memory://")

@ordered.post("/late", dependencies=[Depends(settings), Depends(user), Depends(lock("late", ttl=20))])
def late(): ...

@ordered.post("/early", dependencies=[Depends(settings), Depends(lock("early")), Depends(user)])
def early(): ...

@ordered.post("/cart", dependencies=[Depends(lock(cart_of, on_lost="continue"))])
def cart(): ...

@ordered.post("/first", dependencies=[Depends(lock("first")), Depends(settings)])
def first(): ...

def session(): ...

@ordered.post("/guarded", dependencies=[Depends(guarded(session, lock("row"))), Depends(lock("x"))])
def guarded_row(): ...

below = FastAPI()
below.root_path = "/api"
install(below, "memory://")

@below.post("/items/{item}", dependencies=locked)
def item_below(item: int): ...

wrong = FastAPI()
install(wrong, "memory://")

@wrong.post("/a/{text}", dependencies=[Depends(lock("a:{nothing}"))])
def wrong_key(text: str): ...

@wrong.post("/b/{text}", dependencies=[Depends(lock("b:{nothing}"))])
def another(text: str): ...

@wrong.post("/c/{text}", dependencies=[Depends(lock("c:{text}"))])
def spelled(): ...

bare = FastAPI()

@bare.post("/", dependencies=[Depends(lock("bare"))])
def uninstalled(): ...

flask = Flask(__name__)
shop_locks = weblock_flask.WebLock(flask, "memory://")

@flask.before_request
def log_in(): ...

@flask.post("/items/<int:item>")
@shop_locks.lock("item:{item}", lambda item: "all", wait=1)
def flask_item(item): ...

class Rows(MethodView):
    def get(self): ...
    @shop_locks.lock("rows")
    def put(self): ...

flask.add_url_rule("/rows", view_func=Rows.as_view("rows"))

flask.add_url_rule("/link", "link", build_only=True)

@flask.get("/open")
def flask_open(): ...

def make_flask():
    return flask

unlocked = Flask("unlocked")
other = weblock_flask.WebLock(unlocked, "memory://")

@other.lock("x")
@unlocked.post("/")
def above(): ...

@unlocked.post("/rows/<row>")
@other.lock("row:{line}", lambda shelf: f"shelf:{shelf}")
def unfillable(row): ...

ruled = Flask("ruled")
ruled.wsgi_app = wsgi.LockMiddleware(ruled.wsgi_app, "memory://", rules)

jobs = Celery("jobs", set_as_current=False)
weblock_celery.WebLock(jobs, "memory://")

@jobs.task(name="bill", lock="invoice:{0}", on_busy="skip")
def bill(invoice): ...

@jobs.task(name="mail", lock="mail:{0}", unique="drop", unique_for=60)
def mail(invoice): ...

@jobs.task(name="join", lock="join:{0}", unique="join", unique_for=60)
def join(invoice): ...

@jobs.task(name="free")
def free(): ...

@jobs.task(name="pay", lock="pay:{0}")
def pay(invoice): ...

jobs.conf.task_annotations = {"pay": {"lock": "pay:{other}"}}

class Foreign(Task): ...

@jobs.task(name="foreign", base=Foreign, lock="x")
def foreign(): ...
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shop")
    (folder / "cli_shop.py").write_text(SHOP)
    return folder


@pytest.fixture(autouse=True)
def shop(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(folder)
    monkeypatch.chdir(folder)


def checked(told, app: str, *request: str) -> dict[str, dict]:
    return {each["what"]: each for each in told("check", f"cli_shop:{app}", *request)["locked"]}


ITEM_RULE = "rules[1]: Rule('/shops/{shop}/items/{item:int}', methods=['POST'])"


@pytest.mark.parametrize("app", ["app", "wrapped", "served", "ruled"])
def test_rules_are_listed(run, told, app: str) -> None:
    """Those of ASGI and WSGI middleware, around an application or added to it, with all that they say."""
    done = run("check", f"cli_shop:{app}")
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines() == [
        "rules[0]: Rule('/shops/{shop}/items/preview'), exempt",
        "  locks nothing",
        "",
        ITEM_RULE,
        "  keys:    item:{shop}:{item}",
        "  options: wait=1",
        "  guard:   lease",
        "  engine:  memory:// (scope: process)",
        "  order:   before the application, and the authentication of its routes",
        "",
        "rules[2]: Rule('/carts')",
        "  keys:    cart:{header.x-cart}",
        "  guard:   lease",
        "  engine:  memory:// (scope: process)",
        "  order:   before the application, and the authentication of its routes",
    ]
    assert checked(told, app)[ITEM_RULE] == {
        "what": ITEM_RULE,
        "keys": ["item:{shop}:{item}"],
        "options": {"wait": 1},
        "guard": "lease",
        "engine": "memory://",
        "scope": "process",
        "order": "before the application, and the authentication of its routes",
    }


@pytest.mark.parametrize("app", ["app", "wrapped", "served", "ruled"])
def test_the_rule_that_locks_a_request_is_named(run, told, app: str) -> None:
    """It alone; what no rule locks exits with 1, and so does what is refused with 400."""
    assert list(checked(told, app, "post", "/shops/a%20b/items/07?page=2")) == [ITEM_RULE]
    done = run("check", f"cli_shop:{app}", "POST", "/shops/a/items/preview")
    assert (done.exit_code, done.stderr) == (
        1,
        "weblock: nothing locks POST /shops/a/items/preview\n",
    )
    done = run("check", f"cli_shop:{app}", "POST", "/shops/a/items/+7")
    assert done.exit_code == 1
    assert "POST /shops/a/items/+7 is rejected with 400: " in done.stderr


def test_a_middleware_that_cannot_be_made_is_an_error(run) -> None:
    """Starlette makes it with the first request; the command finds it before."""
    done = run("check", "cli_shop:broken")
    assert done.exit_code == 2
    assert "rules[0]: key '{nothing}' needs the path parameter 'nothing'" in done.stderr


def test_routes_of_fastapi_are_listed(told) -> None:
    """Also those of included routers and mounted applications, and websockets; no others."""
    found = checked(told, "routed")
    assert {what: each["keys"] for what, each in found.items()} == {
        "POST /orders/{order}": ["order:{order:int}"],
        "POST /files/{p}": ["file:{p:str}"],
        "POST /numbers/{number}": ["item"],
        "POST /items/new": ["item"],
        "websocket /live": ["item"],
        "POST /carts/{cart}/lines": ["item"],
        "POST /sub/{tenant}/shops/lines": ["item"],
        "POST /sub/{tenant}/own": ["tenant:{tenant:int}"],
        "POST /sub/a/anything": ["item"],
    }
    assert {each["engine"] for each in found.values()} == {"memory://"}


def test_it_is_said_what_comes_before_a_lock(told) -> None:
    """Whether authentication comes before the lock, and which dependencies are solved before it."""
    found = checked(told, "ordered")
    assert {what: each["order"] for what, each in found.items()} == {
        "POST /late": "after authentication: settings, HTTPBasic, user",
        "POST /early": "before authentication, after settings",
        "POST /cart": "after authentication: HTTPBasic, user, cart_of",
        "POST /first": "before all other dependencies",
        "POST /guarded": "after session, guarded(session)",
    }
    assert found["POST /late"]["options"] == {"ttl": 20}
    assert found["POST /cart"]["options"] == {"on_lost": "continue"}
    assert found["POST /cart"]["keys"] == ["cart_of"]
    listed = told("check", "cli_shop:ordered")["locked"]
    assert {each["guard"]: each["keys"] for each in listed[-2:]} == {
        "database": ["row"],
        "lease": ["x"],
    }


@pytest.mark.parametrize(
    ("request_", "route"),
    [
        ("POST /files/a/b", "POST /files/{p}"),
        ("POST /numbers/7", "POST /numbers/{number}"),
        ("WEBSOCKET /live", "websocket /live"),
        ("POST /carts/7/lines", "POST /carts/{cart}/lines"),
        ("POST /sub/a/shops/lines", "POST /sub/{tenant}/shops/lines"),
    ],
)
@pytest.mark.parametrize("app", ["routed", "around"])
def test_the_route_is_chosen_as_fastapi_chooses_it(told, app: str, request_: str, route: str):
    """Converters of the path, included routers, mounts, websockets and middleware all count."""
    assert list(checked(told, app, *request_.split())) == [route]


def test_a_mounted_application_has_the_parameters_of_its_mount(told) -> None:
    """Its keys may name them."""
    found = checked(told, "routed", "POST", "/sub/7/own")
    assert [each["keys"] for each in found.values()] == [["tenant:{tenant:int}"]]


@pytest.mark.parametrize("path", ["/items/7", "/api/items/7"])
def test_a_path_may_have_the_root_path(told, path: str) -> None:
    """A proxy may leave it in the path, or remove it."""
    assert list(checked(told, "below", "POST", path)) == ["POST /items/{item}"]


@pytest.mark.parametrize(
    "path", ["/elsewhere/x", "/numbers/abc", "/sub/a/anything", "/carts/7/nothing", "/no/such/path"]
)
def test_what_no_route_serves_locks_nothing(run, path: str) -> None:
    """A part of the path that its converter rejects is another path; a mount has all that is below it."""
    done = run("check", "cli_shop:routed", "POST", path)
    assert done.exit_code == 1
    assert done.stderr == f"weblock: nothing locks POST {path}\n"


@pytest.mark.parametrize(
    ("path", "route"),
    [
        ("/items/new", "POST /items/{name}"),
        ("/carts/7/lines/3", "POST /carts/{cart}/lines/{line}"),
        ("/classes/a", "any method /classes/{name}"),
    ],
)
def test_a_route_that_locks_nothing_is_named(run, told, path: str, route: str) -> None:
    """An unlocked route that comes before a locked one serves the request, and is named."""
    done = run("check", "cli_shop:routed", "POST", path)
    assert done.exit_code == 1
    assert done.stdout == f"{route}\n  locks nothing\n"
    assert done.stderr == f"weblock: nothing locks POST {path}\n"
    assert checked(told, "routed", "POST", path)[route]["keys"] == []


def test_a_rule_and_a_dependency_are_both_named(told) -> None:
    """A request that both a rule and its route lock holds both keys, the rule's first."""
    found = checked(told, "both", "POST", "/shops/a/items/7")
    assert [each["keys"] for each in found.values()] == [
        ["item:{shop}:{item}"],
        ["stock:{item:int}"],
    ]


def test_everything_that_cannot_work_is_said(run, told) -> None:
    """A sentence for each thing that the adapter finds at start, and the exit code is 1."""
    done = run("check", "cli_shop:wrong")
    assert done.exit_code == 1
    said = done.stderr.splitlines()
    assert len(said) == 3
    assert "POST /a/{text}: lock('a:{nothing}') needs the path parameter 'nothing'" in said[0]
    assert "POST /b/{text}: lock('b:{nothing}') needs the path parameter 'nothing'" in said[1]
    assert "POST /c/{text}: lock('c:{text}') contains 'text' as the URL spells it" in said[2]
    assert len(told("check", "cli_shop:wrong")["wrong"]) == 3
    done = run("check", "cli_shop:bare")
    assert done.exit_code == 1
    assert "weblock is not installed: call install(app)" in done.stderr


def test_views_of_flask_are_listed(run, told) -> None:
    """Functions and methods of classes, with what runs before; of a request, the view that serves it."""
    found = checked(told, "flask")
    item, rows = "OPTIONS, POST /items/<int:item>", "GET, HEAD, OPTIONS, PUT /rows"
    assert {what: each["keys"] for what, each in found.items()} == {
        item: ["item:{item}", "<lambda>"],
        rows: ["rows"],
    }
    assert found[item]["order"] == "after log_in, the decorators above @locks.lock"
    assert found[item]["options"] == {"wait": 1}
    assert (found[item]["engine"], found[item]["guard"]) == ("memory://", "lease")
    assert checked(told, "make_flask()") == found
    assert list(checked(told, "flask", "POST", "/items/7")) == [item]
    assert list(checked(told, "flask", "PUT", "/rows")) == [rows]
    assert run("check", "cli_shop:flask", "GET", "/rows").exit_code == 1
    assert run("check", "cli_shop:flask", "GET", "/open").exit_code == 1
    assert run("check", "cli_shop:flask", "GET", "/nothing").exit_code == 1
    done = run("check", "cli_shop:unlocked")
    assert done.exit_code == 1
    said = "\n".join(told("check", "cli_shop:unlocked")["wrong"])
    assert "above is served without its lock: put @locks.lock below" in said
    assert all(
        f"needs the view's argument {name!r}; available: 'row'" in said
        for name in ("line", "shelf")
    )


def test_tasks_of_celery_are_listed(run, told) -> None:
    """Tasks with a lock; one whose base class would ignore it is an error."""
    done = run("check", "cli_shop:jobs")
    assert done.exit_code == 1
    assert "task foreign has lock=" in done.stderr
    assert "'other'" in done.stderr
    facts = checked(told, "jobs")
    # What other tests of this process have shared with every application is listed, too.
    own = [
        what
        for what in facts
        if what.removeprefix("task ") in ("bill", "free", "foreign", "join", "mail", "pay")
    ]
    assert own == ["task bill", "task mail"]
    assert "unique='join' of task join returns the result of the queued task" in done.stderr
    assert facts["task mail"]["options"] == {"on_busy": "wait", "unique": "drop", "unique_for": 60}
    assert facts["task bill"]["keys"] == ["invoice:{0}"]
    assert facts["task bill"]["options"] == {"wait": 0, "on_busy": "skip"}
    assert facts["task bill"]["order"] == "before the task runs"


DJANGO = """
import django
from django.conf import settings

settings.configure(
    INSTALLED_APPS=["weblock.contrib.django"],
    MIDDLEWARE=["weblock.contrib.django.middleware.LockMiddleware"],
    ROOT_URLCONF=__name__,
    ALLOWED_HOSTS=["*"],
    WEBLOCK={"default": {"URL": "file://", "RULES": [{"view": "nowhere", "key": "x"}]}},
)
django.setup()

from django.core.handlers.asgi import ASGIHandler
from django.http import HttpResponse
from django.urls import path
from weblock.contrib.asgi import LockMiddleware
from weblock.contrib.django import lock

@lock("item:{pk}", wait=1)
def item(request, pk):
    return HttpResponse()

urlpatterns = [path("items/<int:pk>", item, name="item")]

app = LockMiddleware(ASGIHandler(), "memory://", {"all": {"path": "/{rest:path}", "key": "all"}})
"""


def test_a_django_project_is_known_by_its_handler(tmp_path: Path) -> None:
    """Its views and rules, and what its checks find, inside whatever wraps its handler."""
    (tmp_path / "site_.py").write_text(DJANGO)
    command = [sys.executable, "-m", "weblock", "check", "--json", "--app-dir", str(tmp_path)]
    done = subprocess.run([*command, "site_:app"], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    facts = json.loads(done.stdout)
    outer, view, rule = facts["locked"]
    assert outer["keys"] == ["all"]
    assert view == {
        "what": "site_.item at 'items/<int:pk>'",
        "keys": ["item:{pk}"],
        "options": {"wait": 1},
        "guard": "lease",
        "engine": view["engine"],
        "scope": "host",
        "order": "after the middleware",
    }
    assert rule["what"] == "WEBLOCK['default']['RULES'][0]: view 'nowhere'"
    assert "matches no view that a URL leads to" in facts["wrong"][0]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["cli_shop"], "does not name an application"),
        (["no_such_shop:app"], "cannot be imported"),
        (["cli_shop:application"], "cannot be imported"),
        (["cli_shop:app", "GET"], "a request is a method and a path"),
        (["cli_shop:app", "GET", "items"], 'must start with "/"'),
    ],
)
def test_what_cannot_be_checked_is_refused(run, arguments: list[str], said: str) -> None:
    """What cannot be imported, or is no request, exits with 2 and one sentence."""
    done = run("check", *arguments)
    assert done.exit_code == 2
    assert said in done.stderr


def test_an_application_without_locks_exits_with_1(run) -> None:
    """It may be the wrong one."""
    done = run("check", "cli_shop:plain")
    assert (done.exit_code, done.stderr) == (1, "weblock: cli_shop:plain locks nothing\n")
