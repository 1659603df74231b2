"""What weblock changes in other packages' objects, since they have no hook for it: see docs/dev/architecture.md.

Each test fails when the package may have one.
"""

import inspect

from celery import Celery, Task, signals
from celery.utils.dispatch import Signal
from fastapi import APIRouter, Depends, FastAPI
from fastapi.routing import APIRoute
from sqlalchemy import create_engine, event
from sqlalchemy.orm import Session, SessionEvents, scoped_session, sessionmaker

from tests.support.http import client_of
from weblock.contrib.celery.extension import registry_of


async def test_fastapi_has_no_hook_between_an_endpoint_and_its_dependencies():
    """A route class surrounds the dependencies too, and no option of a route is about what surrounds an endpoint."""
    steps = []

    class Route(APIRoute):
        def get_route_handler(self):
            handler = super().get_route_handler()

            async def around(request):
                steps.append("the route class")
                return await handler(request)

            return around

    async def needed() -> None:
        steps.append("a dependency")

    app = FastAPI()
    app.router.route_class = Route

    @app.post("/", dependencies=[Depends(needed)])
    async def create() -> None:
        steps.append("the endpoint")

    async with client_of(app, raises=True) as client:
        assert (await client.post("/")).status_code == 200
    assert steps == ["the route class", "a dependency", "the endpoint"]
    words = ("around", "before", "after", "hook", "middleware", "wrap", "intercept", "call_next")
    options = {*inspect.signature(APIRoute).parameters, *inspect.signature(APIRouter).parameters}
    assert not [name for name in options if any(word in name for word in words)]


def test_sqlalchemy_has_no_event_before_a_session_takes_a_connection():
    """Nothing tells that a registry has made a session, nor that it is about to ask for its database."""
    steps = []

    class Asking(Session):
        def get_bind(self, *given, **options):
            steps.append("get_bind")
            return super().get_bind(*given, **options)

    engine = create_engine("sqlite://")
    sessions = scoped_session(sessionmaker(engine, class_=Asking))
    names = [
        name for name in vars(SessionEvents) if not name.startswith("_") and name != "dispatch"
    ]
    for name in names:
        event.listen(sessions, name, lambda *_, name=name: steps.append(name))
    assert len(names) > 20
    session = sessions()
    assert steps == []
    session.connection()
    assert steps == ["get_bind", "after_transaction_create", "after_begin"]
    sessions.remove()
    engine.dispose()


def test_celery_has_no_signal_for_a_task_that_it_registers():
    """A task is registered, called and bound without any signal, before the application is finalized or after."""
    app = Celery("shop", broker="memory://", set_as_current=False)
    sent = []

    def note(signal, **_sent):
        sent.append(signal)

    known = [
        signal for _, signal in inspect.getmembers(signals, lambda each: isinstance(each, Signal))
    ]
    for signal in known:
        signal.connect(note)
    for finalizes in (False, True):
        if finalizes:
            app.finalize()

        @app.task(name=f"pay{finalizes}", base=Task, shared=False)
        def pay() -> str:
            return "paid"

        assert pay() == "paid"
        assert app.finalized == finalizes
        assert pay.name in registry_of(app)
    for signal in known:
        signal.disconnect(note)
    assert len(known) > 20
    assert sent == []
    assert registry_of(app) is app.tasks
    app.close()
