"""A Redis server as far as the scripts go: it runs the Lua that is shipped, on dicts.

The Lua is that of the servers, 5.1. Arguments and replies are converted as they do it: numbers are
cut, nil is false to Lua, and the first nil ends an array.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import pytest

from weblock.stores.redis.scripts import Script

lua51 = pytest.importorskip("lupa.lua51")
msgpack = pytest.importorskip("msgpack")

Value = dict[str, str] | dict[str, float] | str


LONG_AGO = 600_000_000
"""Microseconds for which a new server has been up: it has forgotten nobody."""


class RedisModel:
    """The keys of one server, and what it says of itself. ``now`` gives microseconds."""

    def __init__(self, now: Callable[[], int], publish: Callable[[str, str], None]) -> None:
        self.values: dict[str, Value] = {}
        self.run = 1
        self.replid = 1
        self.replica_once = False
        self.flushed = False
        self.full = self._wrote = False
        self._clock = now
        self._frozen: int | None = None
        self.publish = publish
        self._expires: dict[str, int] = {}
        self._started_at = now() - LONG_AGO

    @property
    def incarnation(self) -> str:
        """What a client that connects now knows it by."""
        return f"{self.run_id}:{self.master_replid}"

    @property
    def run_id(self) -> str:
        return f"r{self.run:04}"

    @property
    def master_replid(self) -> str:
        return f"i{self.replid:04}"

    def in_common(self, key: str) -> dict[str, Any]:
        """What a lock's leases have in common, by the names of ``head.lua``."""
        value: Any = self.values.get(key)
        return dict(zip(_IN_COMMON, unpacked(value["lock"]), strict=True)) if value else {}

    def evaluate(self, script: Script, keys: Sequence[str], args: Sequence[str]) -> Any:
        _serving[0] = self
        self._wrote = False
        self._frozen = self._clock()  # A script sees one time from its first line to its last.
        _watch(_recorded[-1].setdefault(script.name, _lua.table()) if _recorded else None)
        try:
            return _from_lua(_compiled(script.text)(_table(keys), _table(args)))
        finally:
            self._frozen = None

    def flush(self) -> None:
        self.values, self._expires, self.flushed = {}, {}, True

    def restart(self, *, forget: bool) -> None:
        self.run += 1
        self.replid += 1
        self._started_at = self._now()
        self.flushed = self.replica_once = False
        if forget:
            self.values, self._expires = {}, {}

    def promote(self) -> None:
        """Another server takes over with the same keys: it was a replica until now."""
        self.run += 1
        self.replid += 1
        self.replica_once, self.flushed = True, False

    def fail_back(self) -> None:
        """It is a master again, and has what another granted meanwhile: its connections may have stayed."""
        self.replid += 1
        self.replica_once = True

    def move(self) -> None:
        """The keys come to another server, which has been up for long."""
        self.run += 1
        self.replid += 1
        self.replica_once = self.flushed = False
        self._started_at = self._now() - LONG_AGO

    def flush_epoch(self) -> None:
        for key in [key for key in self.values if key.endswith(":epoch")]:
            self._del(key)

    def rename(self) -> None:
        """It gets another replication id, as one does that has had no replicas for an hour."""
        self.replid += 1
        self.replica_once = False

    def snapshot(self) -> tuple[dict[str, Any], dict[str, int]]:
        values = {
            key: dict(value) if isinstance(value, dict) else value
            for key, value in self.values.items()
        }
        return values, dict(self._expires)

    def roll_back(self, snapshot: tuple[dict[str, Any], dict[str, int]]) -> None:
        self.values, self._expires = snapshot

    def copy_of(self, *keys: str) -> tuple[Any, ...]:
        """What these keys have at this moment, to be compared with what they have later."""
        for key in keys:
            self._expire(key)
        values = (self.values.get(key) for key in keys)
        return tuple(dict(value) if isinstance(value, dict) else value for value in values)

    def expiring(self, prefix: str) -> list[tuple[str, int]]:
        """The keys that start so and have not expired, and when they will."""
        now = self._now()
        return [
            (key, until)
            for key, until in self._expires.items()
            if until > now and key.startswith(prefix)
        ]

    def call(self, command: str, *args: Any) -> Any:
        assert not any(each is None or isinstance(each, bool) for each in args), f"{command} of nil"
        words = [each if type(each) is str else _word(each) for each in args]
        if words and words[0] in self._expires and command != "PUBLISH":
            self._expire(words[0])
        if command in _CHANGING:
            # A script that has written may go on, whatever it needs.
            assert not self.full or self._wrote or command not in _MEMORY, "OOM command not allowed"
            self._wrote = True
        return getattr(self, _METHODS[command])(*words)

    def _now(self) -> int:
        return self._clock() if self._frozen is None else self._frozen

    def _expire(self, key: str) -> None:
        if self._expires.get(key, _NEVER) <= self._now():
            self._del(key)

    def _hash(self, key: str) -> dict[str, Any]:
        value = self.values.get(key, {})
        assert isinstance(value, dict), f"WRONGTYPE {key}"
        return value

    def _keep(self, key: str, value: dict[str, Any]) -> None:
        if value:
            self.values[key] = value
        else:
            self._del(key)

    # The commands.

    def _time(self) -> list[str]:
        seconds, micros = divmod(self._now(), 1_000_000)
        return [str(seconds), str(micros)]

    def _info(self, section: str) -> str:
        # Of whole seconds, as servers do it: up to a second more than it has been.
        uptime = self._now() // 1_000_000 - self._started_at // 1_000_000
        offset = 7 if self.replica_once else -1
        return {
            "server": f"run_id:{self.run_id}\r\nuptime_in_seconds:{uptime}\r\n",
            "replication": (
                f"role:master\r\nmaster_replid:{self.master_replid}\r\nsecond_repl_offset:{offset}\r\n"
            ),
            "commandstats": f"cmdstat_{'flushall' if self.flushed else 'info'}:calls=1,usec=1\r\n",
        }[section]

    def _del(self, key: str) -> int:
        self._expires.pop(key, None)
        return int(self.values.pop(key, None) is not None)

    def _exists(self, *keys: str) -> int:
        for key in keys:
            self._expire(key)
        return sum(key in self.values for key in keys)

    def _set(self, key: str, value: str, _px: str, millis: str) -> str:
        self.values[key] = value
        self._expires[key] = self._now() + int(millis) * 1000
        return "OK"

    def _pexpire(self, key: str, millis: str) -> int:
        if key not in self.values:
            return 0
        self._expires[key] = self._now() + int(millis) * 1000
        return 1

    def _hget(self, key: str, field: str) -> str | None:
        return self._hash(key).get(field)

    def _hgetall(self, key: str) -> list[str]:
        return [word for pair in self._hash(key).items() for word in pair]

    def _hexists(self, key: str, field: str) -> int:
        return int(field in self._hash(key))

    def _hmget(self, key: str, *fields: str) -> list[str | None]:
        value = self._hash(key)
        return [value.get(field) for field in fields]

    def _hset(self, key: str, *pairs: str) -> int:
        value = self._hash(key)
        before = len(value)
        value.update(zip(pairs[::2], pairs[1::2], strict=True))
        self._keep(key, value)
        return len(value) - before

    def _hdel(self, key: str, *fields: str) -> int:
        value = self._hash(key)
        gone = [value.pop(field, None) for field in fields]
        self._keep(key, value)
        return sum(each is not None for each in gone)

    def _hincrby(self, key: str, field: str, by: str) -> int:
        number = int(self._hash(key).get(field, "0")) + int(by)
        self._hset(key, field, str(number))
        return number

    def _zadd(self, key: str, score: str, member: str) -> int:
        value = self._hash(key)
        new = member not in value
        value[member] = float(score)
        self._keep(key, value)
        return int(new)

    def _zrem(self, key: str, member: str) -> int:
        return self._hdel(key, member)

    def _zremrangebyscore(self, key: str, least: str, most: str) -> int:
        value = self._hash(key)
        over = [each for each, score in value.items() if float(least) <= score <= float(most)]
        return self._hdel(key, *over)

    def _zcard(self, key: str) -> int:
        return len(self._hash(key))

    def _zrange(self, key: str, first: str, last: str) -> list[str]:
        ranked = self._ranked(key)
        return ranked[int(first) : int(last) + 1 or None]

    def _zrank(self, key: str, member: str) -> int | None:
        ranked = self._ranked(key)
        return ranked.index(member) if member in ranked else None

    def _ranked(self, key: str) -> list[str]:
        value = self._hash(key)
        return sorted(value, key=lambda member: (value[member], member))

    def _ping(self) -> str:
        return "PONG"

    def _publish(self, channel: str, payload: str) -> int:
        self.publish(channel, payload)
        return 1


_NEVER = 1 << 62

_IN_COMMON = [
    "fence",
    "count",
    "run",
    "holder",
    "least",
    "mixed",
    "soonest",
    "longest",
    "asked",
    "voided",
    "places",
]

_MEMORY = frozenset({"SET", "HSET", "HINCRBY", "ZADD"})
"""What a server refuses whose memory is full."""

_CHANGING = _MEMORY | {"DEL", "HDEL", "ZREM", "ZREMRANGEBYSCORE", "PEXPIRE"}

_COMMANDS = (
    *("TIME", "INFO", "PING", "PUBLISH", "DEL", "EXISTS", "SET", "PEXPIRE"),
    *("HGET", "HGETALL", "HEXISTS", "HMGET", "HSET", "HDEL", "HINCRBY"),
    *("ZADD", "ZREM", "ZREMRANGEBYSCORE", "ZCARD", "ZRANGE", "ZRANK"),
)

_METHODS = {command: f"_{command.lower()}" for command in _COMMANDS}

_serving: list[Any] = [None]
"""The server whose script runs."""

_lua = lua51.LuaRuntime(unpack_returned_tuples=False, register_eval=False)


def _call(command: str, *args: Any) -> Any:
    return _to_lua(_serving[0].call(command, *args))


_lua.globals().redis = _lua.table_from({"call": _call, "error_reply": lambda text: text})


def packed(*values: Any) -> str:
    """A list as the server packs it, with a character for each byte."""
    # Only who gave up is in a table.
    plain = (dict(value) or [] if lua51.lua_type(value) == "table" else value for value in values)
    return b"".join(map(msgpack.packb, plain)).decode("latin-1")


def unpacked(text: str) -> list[Any]:
    reader = msgpack.Unpacker()
    reader.feed(text.encode("latin-1"))
    return list(reader)


_lua.globals().cmsgpack = _lua.eval("""
function(pack, read)
  return { pack = pack, unpack = function(text) return unpack(read(text)) end }
end
""")(
    packed,
    lambda text: _table_from(
        _table_from(value) if isinstance(value, (dict, list)) else value for value in unpacked(text)
    ),
)


_watch = _lua.eval("""
function(lines)
  if lines then
    debug.sethook(function(_, line) lines[line] = true end, 'l')
  else
    debug.sethook(function() error('it runs for ever') end, '', 1000000)
  end
end
""")

_items = _lua.eval("""
function(array)
  local count = 0
  while array[count + 1] ~= nil do count = count + 1 end
  return count, unpack(array, 1, count)
end
""")
"""How many values an array has before its first nil, and these."""

_table_from = _lua.table_from

_recorded: list[dict[str, Any]] = []


@contextmanager
def lines_run() -> Iterator[dict[str, set[int]]]:
    """Filled at the end: for each script that ran meanwhile, the lines that did, counted from 1."""
    lines: dict[str, set[int]] = {}
    _recorded.append({})
    try:
        yield lines
    finally:
        seen = _recorded.pop()
        lines.update((name, {line - 1 for line in numbers}) for name, numbers in seen.items())


@lru_cache(64)
def _compiled(text: str) -> Any:
    return _lua.execute(f"return function(KEYS, ARGV)\n{text}\nend")


def _table(items: Sequence[Any]) -> Any:
    return _table_from(list(items))


def _word(argument: Any) -> str:
    """As the server gets an argument: a number has 17 digits at most."""
    return f"{argument:.17g}" if isinstance(argument, float) else str(argument)


def _to_lua(reply: Any) -> Any:
    if reply is None:
        return False
    if type(reply) is list:
        return _table_from([False if each is None else each for each in reply])
    return reply


def _from_lua(value: Any) -> Any:
    kind = type(value)
    if kind is str:
        return value.encode()
    if kind is float:
        return int(value)
    if value is False:
        return None
    if kind is int or kind is bool or lua51.lua_type(value) != "table":
        return value
    items = _items(value)  # Their number, and they; or the number alone.
    return [_from_lua(item) for item in items[1:]] if type(items) is tuple else []
