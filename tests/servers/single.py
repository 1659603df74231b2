"""One Redis or Valkey server, as a test holds it: started, stopped, killed, started again."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.support.urls import ANSWERED
from tests.support.waiting import PATIENCE

from .binaries import binary
from .ports import free_port
from .process import Running, spawn


class PortTaken(Exception):
    """Somebody else listens on the port of a server that was to start."""


class Server(Running):
    """A server on a free port of loopback, with its data in a temporary folder.

    ``config`` are lines of its configuration: ``{"appendonly": "yes"}``.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        port: int | None = None,
        password: str | None = None,
        replicaof: tuple[str, int] | None = None,
        sentinel: Sequence[str] = (),
        **config: str | int,
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="weblock-server-"))
        self.port = port or free_port()
        self.password = password
        self._binary = binary(name)
        self._sentinel = sentinel
        self._replicaof = replicaof
        self._config = {key.replace("_", "-"): str(value) for key, value in config.items()}
        try:
            self._start_where_free(given=port is not None)
        except BaseException:
            self.close()
            raise

    def url(self, *, user: str = "", port: int | None = None, **query: Any) -> str:
        """Its URL, with options of the engine; those of ``ANSWERED`` unless others are given.

        ``user`` is a name and a password. ``port`` is that of something in front of it.
        """
        user = user or (f":{self.password}" if self.password else "")
        userinfo = f"{user}@" if user else ""
        options = urlencode({**ANSWERED, **query})
        return f"redis://{userinfo}127.0.0.1:{port or self.port}?{options}"

    def client(self, **options: Any) -> redis.Redis:
        """A client for the test itself, which says once what it says."""
        once = Retry(NoBackoff(), 0)
        options = {
            "password": self.password,
            "socket_timeout": PATIENCE,
            "retry": once,
            "protocol": 2,  # A server that knows no HELLO is asked, too.
            **options,
        }
        return redis.Redis(port=self.port, decode_responses=True, **options)

    def command(self, *parts: str | int) -> Any:
        with self.client() as client:
            return client.execute_command(*parts)

    def start(self) -> None:
        """Starts it, and waits until it answers. Raises ``PortTaken`` if it cannot listen."""
        config: dict[str, object] = {
            "port": self.port,
            "bind": "127.0.0.1",
            "dir": self.folder,
            **self._config,
        }
        if not self._sentinel:
            config.setdefault("save", "")
        if self.password:
            config["requirepass"] = self.password
        lines = [f'{key} "{value}"' for key, value in config.items()]
        lines += [f"sentinel {line}" for line in self._sentinel]
        if self._replicaof:
            lines.append("replicaof {} {}".format(*self._replicaof))
        conf = self.folder / "server.conf"
        conf.write_text("\n".join([*lines, ""]))
        sentinel = ["--sentinel"] if self._sentinel else []
        self._process = spawn([self._binary, conf, *sentinel], log=self._log)
        self.wait_until_up()

    def wait_until_up(self) -> None:
        give_up_at = time.monotonic() + PATIENCE
        with self.client(socket_timeout=1) as client:
            while not self._answers(client):
                if not self.alive:
                    log = self._log.read_text(errors="replace")
                    if "Address already in use" in log:
                        raise PortTaken(self.port)
                    raise AssertionError(f"the server has ended:\n{log[-2000:]}")
                assert time.monotonic() < give_up_at, "the server does not answer"
                time.sleep(0.005)

    def restart(self, *, keep_data: bool) -> None:
        """Kills it and starts it again, on the same port."""
        self.kill()
        if not keep_data:
            for each in self.folder.iterdir():
                shutil.rmtree(each) if each.is_dir() else each.unlink()
        self.start()

    @property
    def _log(self) -> Path:
        return self.folder / "server.log"

    def _start_where_free(self, *, given: bool) -> None:
        """Starts it; where nobody insists on the port, on another if somebody was quicker."""
        for _ in range(10):
            try:
                return self.start()
            except PortTaken:
                if given:
                    raise
                self.port = free_port()
        raise PortTaken(self.port)

    def _answers(self, client: redis.Redis) -> bool:
        """Whether it answers; somebody else on its port does not count."""
        try:
            pid: int = client.info("server")["process_id"]
        except (redis.ConnectionError, redis.TimeoutError):
            return False
        return pid == self.pid
