"""A plugin of pytest for the suites of other projects: every lock of redis-py that they make is weblock's.

It is imported by a name of its own, since each of those projects has a package called ``tests``, too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partialmethod
from typing import Any

import pytest
import redis.asyncio.cluster
import redis.asyncio.lock
import redis.cluster
import redis.lock

from weblock.compat import redis as blocking
from weblock.compat.redis import asyncio as of_asyncio
from weblock.compat.redis.base import PerClient

OURS = {redis.lock.Lock: blocking.Lock, redis.asyncio.lock.Lock: of_asyncio.Lock}

for _module in [each for name, each in sys.modules.items() if name.startswith("redis.")]:
    if (_lock := vars(_module).get("Lock")) in OURS:
        vars(_module)["Lock"] = OURS[_lock]

# The suites empty their server, which would then grant nothing for 10 s.
PerClient.of = partialmethod(PerClient.of, options={"engine_options": {"recovery": "off"}})

FACTS = json.loads(os.environ["WEBLOCK_FACTS"])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What differs has to fail. It comes last, for then it may leave its lock held."""
    for item in items:
        if reason := _different(item):
            item.add_marker(pytest.mark.xfail(reason=reason, strict=True))
    items.sort(key=lambda item: _different(item) is not None)


def _different(item: pytest.Item) -> str | None:
    return FACTS["different"].get(item.name.partition("[")[0])


class _Container:
    """A server in the place of docker's, at the port that is asked for."""

    def __init__(self, _image: str, *, ports: dict[str, int], **_: object) -> None:
        (port,) = ports.values()
        self.attrs = {"HostConfig": {"PortBindings": {"6379/tcp": [{"HostPort": str(port)}]}}}
        self._server = subprocess.Popen([FACTS["server"], "--port", str(port), "--save", ""])

    def stop(self) -> None:
        self._server.kill()
        self._server.wait()


class _Docker:
    def __init__(self) -> None:
        self.containers: Any = self
        self.run = _Container

    def list(self, **_: object) -> list[_Container]:
        return []


if "docker" in FACTS["replaced"]:
    import docker

    docker.DockerClient.from_env = _Docker

if "fakeredis" in FACTS["replaced"]:  # weblock's own connections could not reach its server.
    import fakeredis

    fakeredis.FakeRedis = lambda *, server=None, **options: redis.Redis(
        port=FACTS["port"], **options
    )
