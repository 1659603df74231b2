"""Which private names may be used where.

Those of other packages stand in one module of each part of weblock, and still exist. Those of the API
classes are for the package's core alone.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import redis
import redis.asyncio
import redis.sentinel

from weblock._platform import threads
from weblock.stores.redis import internals as of_redis
from weblock.stores.redis.connections import quiet

SOURCE = Path(__file__).parents[1] / "src" / "weblock"

HOME = "internals.py"
"""The name of the modules in which private names of other packages may stand."""

PUBLIC = {"_asdict", "_fields", "_meta"}
"""Named tuples and Django document them, and keep them as they do public names."""


def private(name: str) -> bool:
    """Whether a name has one underscore in front, and is no dunder."""
    return name.startswith("_") and not name.endswith("__") and name != "_"


def defined(tree: ast.AST) -> Iterator[str]:
    """Every name that a module gives to something of its own."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name
            case ast.Name(id=name, ctx=ast.Store()) | ast.alias(asname=str(name)):
                yield name
            case ast.Attribute(attr=name, ctx=ast.Store(), value=ast.Name(id="self" | "cls")):
                yield name
            case ast.Constant(value=str(name)):  # In __slots__.
                yield name


def used(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every private name that a module takes from something else, and on which line."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name) if private(name):
                yield node.lineno, name
            case ast.ImportFrom(level=0, module=str(module), names=names):
                for each in (*module.split("."), *(alias.name for alias in names)):
                    if private(each):
                        yield node.lineno, each
            case ast.Import(names=names):
                for each in (part for alias in names for part in alias.name.split(".")):
                    if private(each):
                        yield node.lineno, each


def test_only_the_modules_for_it_use_private_names_of_other_packages() -> None:
    """A private name that weblock does not define itself stands in a module ``internals`` alone."""
    trees = {path: ast.parse(path.read_text()) for path in SOURCE.rglob("*.py")}
    ours = {name for path, tree in trees.items() if path.name != HOME for name in defined(tree)}
    foreign = [
        f"{path.relative_to(SOURCE)}:{line}: {name}"
        for path, tree in trees.items()
        if path.name != HOME
        for line, name in used(tree)
        if name not in ours | PUBLIC
    ]
    assert foreign == []
    assert any(name == "_sock" for tree in trees.values() for _, name in used(tree))  # It looks.


API = {"BaseLocks", "Locks", "AsyncLocks", "BaseLease", "Lease", "AsyncLease"}

ADAPTERS = [
    path
    for part in ("contrib", "cli", "compat", "testing")
    for path in (SOURCE / part).rglob("*.py")
]


def names_of_api() -> set[str]:
    """Every private name of the classes that users have, whether a method's or an attribute's."""
    return {
        name
        for module in ("_api.py", "sync.py", "aio.py")
        for each in ast.walk(ast.parse((SOURCE / module).read_text()))
        if isinstance(each, ast.ClassDef) and each.name in API
        for name in [*defined(each), *(name for _, name in used(each))]
        if private(name)
    }


def taken_from_api(tree: ast.Module, names: set[str]) -> Iterator[tuple[int, str]]:
    """Every one of the names that a module takes from something else than a class of its own."""
    classes = {each.name: each for each in ast.walk(tree) if isinstance(each, ast.ClassDef)}
    own: set[ast.AST] = set()
    for each in classes.values():
        bases = {base.id for base in each.bases if isinstance(base, ast.Name)}
        for node in ast.walk(each):
            match node:
                case ast.Attribute(value=ast.Name(id="self" | "cls")) if not bases & API:
                    own.add(node)
                case ast.Assign(targets=[ast.Name(id="__slots__")]):
                    own.update(ast.walk(node))
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=name)) if name in classes:
                continue
            case ast.Attribute(attr=name) | ast.Constant(value=str(name)) if name in names:
                if node not in own:
                    yield node.lineno, name


@pytest.mark.parametrize("path", ADAPTERS, ids=lambda path: str(path.relative_to(SOURCE)))
def test_adapters_use_no_private_name_of_the_api_classes(path: Path) -> None:
    """They have ``_adapting`` instead, and spell a private name in no other way, such as ``getattr``."""
    assert list(taken_from_api(ast.parse(path.read_text()), names_of_api())) == []


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A socket that stands for a server: the test accepts its connections."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        listening.settimeout(30)
        yield listening


def test_a_redis_connection_hands_over_its_socket(listener: socket.socket) -> None:
    """What ``socket_of`` returns is connected to the server, and still the connection's."""
    host, port = listener.getsockname()
    connection = redis.Connection(host, port, protocol=2, **quiet(redis.Connection))
    connection.connect()
    server, address = listener.accept()
    with server:
        assert of_redis.socket_of(connection).getsockname() == address
        connection.disconnect()
        assert server.recv(1) == b""


async def test_an_asyncio_connection_hands_over_its_stream(listener: socket.socket) -> None:
    """What ``take_writer`` returns writes to the server, and the connection has nothing left to close."""
    host, port = listener.getsockname()
    options = quiet(redis.asyncio.Connection)
    connection = redis.asyncio.Connection(host=host, port=port, protocol=2, **options)
    await connection.connect()
    server, _ = listener.accept()
    with server:
        server.settimeout(30)
        writer = of_redis.take_writer(connection)
        assert not connection.is_connected
        await connection.disconnect()
        writer.write(b"x")
        assert await asyncio.to_thread(server.recv, 1) == b"x"
        writer.close()


def test_a_sentinel_has_the_address_that_it_forces() -> None:
    """``forced_master_of`` finds it, in the releases of redis-py that can force one."""
    for sentinel in (redis.sentinel.Sentinel, redis.asyncio.Sentinel):
        assert of_redis.forced_master_of(sentinel([("h", 1)])) is None
        if "force_master_ip" in inspect.signature(sentinel).parameters:
            assert of_redis.forced_master_of(sentinel([("h", 1)], force_master_ip="i")) == "i"


def test_asyncio_tells_which_loop_runs_without_an_exception() -> None:
    """The quick way to ask for the running loop is there, and agrees with the public one."""

    async def ask() -> bool:
        return threads.running_loop() is asyncio.get_running_loop()

    assert threads.running_loop is asyncio._get_running_loop
    assert threads.running_loop() is None
    assert asyncio.run(ask())
