"""An application that uses its locks while it is imported, for servers that import it before they fork."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from weblock import LeaseLost, Locks, Observer, observe
from weblock.events import Lost

locks = Locks.from_url(json.loads(os.environ["LOCKS"]), namespace=os.environ["NAMESPACE"], wait=60)
counter = Path(os.environ["COUNTER"])

lost: list[Lost] = []
observe(Observer(lost.append, only=[Lost]))

of_master = locks.acquire("of the master", ttl=3600)
with locks.hold("counter"):
    counter.write_text("0")
    counter.chmod(0o666)


def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    answer = {
        "/count": count,
        "/engine": lambda: locks.engine,
        "/lease": lease,
        "/locked": locked,
        "/renewed": renewed,
    }
    body = json.dumps(answer[environ["PATH_INFO"]]()).encode()
    start_response("200 OK", [("Content-Type", "application/json")])
    return [body]


def count() -> list[int]:
    with locks.hold("counter") as held:
        before = int(counter.read_text())
        time.sleep(0.001)
        counter.write_text(str(before + 1))
        held.check()
    return [os.getpid(), before + 1]


def renewed() -> float:
    with locks.hold("renewed", ttl=1) as held:
        time.sleep(3)
        return held.remaining()


def lease() -> list[Any]:
    seen: list[Any] = [of_master.held, of_master.remaining()]
    for use in (of_master.check, lambda: of_master.extend(1), of_master.release):
        try:
            use()
        except LeaseLost as error:
            seen.append(error.reason)
    return [*seen, len(lost)]


def locked() -> bool:
    return locks.try_acquire("of the master") is None
