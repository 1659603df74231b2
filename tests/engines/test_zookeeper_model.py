"""The simulator's model of ZooKeeper's nodes, beside a real server: the same answers, and the same nodes."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.protocol.states import ZnodeStat

from tests.core.simulation.zookeeper_nodes import (
    Create,
    Delete,
    List,
    Multi,
    Node,
    Read,
    Write,
    perform,
    read,
)
from tests.servers.zookeeper import shared_zookeeper

SEQUENCES, STEPS = 8, 80
KEYS = ("/a", "/b")
NAMES = ("lease-x", "lease-y", "place-x-")
VERSIONS = (-1, 0, 1, 2)
SESSION = 7


@pytest.fixture(scope="module")
def client() -> Iterator[KazooClient]:
    client = KazooClient(shared_zookeeper().address)
    client.start()
    yield client
    client.stop()
    client.close()


class Both:
    """The model and a node of a real server, to which the same is done."""

    def __init__(self, client: KazooClient) -> None:
        self._client = client
        self._root = f"/{uuid.uuid4().hex}"
        self._zxid = 0
        self.tree: dict[str, Node] = {"": Node(b"", 0, 0, 0, 0)}
        client.create(self._root)

    def do(self, request: Create | Delete | Write | Multi) -> None:
        self._zxid += 1
        expected, changes = perform(
            self.tree, request, zxid=self._zxid, stamp=self._zxid, session=SESSION
        )
        for path, node in changes.items():
            if node is None:
                self.tree.pop(path, None)  # One that this transaction has created, too.
            else:
                self.tree[path] = node
        assert _comparable(self._on_the_server(request)) == _comparable(expected), request

    def compare(self) -> None:
        """Compares all nodes, and the order in which they were created and changed."""
        real: dict[str, ZnodeStat] = {}
        for path, node in self.tree.items():
            data, real[path] = self._client.get(self._root + path)
            assert data == read(self.tree, Read(path))[0]
            children, expected = self._client.get_children(self._root + path), List(path)
            assert set(children) == set(read(self.tree, expected)[0])
            assert bool(real[path].ephemeralOwner) == bool(node.session)
        assert _order(real) == _order({path: node.stat for path, node in self.tree.items()})

    def _on_the_server(self, request: Any) -> Any:
        client, path = self._client, self._root + getattr(request, "path", "")
        try:
            match request:
                case Create():
                    found = client.create(
                        path, request.data, ephemeral=request.ephemeral, sequence=request.sequence
                    )
                    return found.removeprefix(self._root)
                case Delete():
                    return client.delete(path, request.version)
                case Write():
                    return client.set(path, request.data, request.version)
            transaction = client.transaction()
            for part in request.parts:
                match part:
                    case Create():
                        transaction.create(self._root + part.path, part.data)
                    case Delete():
                        transaction.delete(self._root + part.path, part.version)
                    case Write():
                        transaction.set_data(self._root + part.path, part.data, part.version)
            return [
                each.removeprefix(self._root) if isinstance(each, str) else each
                for each in transaction.commit()
            ]
        except KazooException as error:
            return error


def _comparable(answer: Any) -> Any:
    """What of an answer has to be the same on both."""
    if isinstance(answer, list):
        return [_comparable(each) for each in answer]
    if isinstance(answer, ZnodeStat):
        return answer.version, answer.cversion, answer.numChildren, answer.dataLength
    return type(answer) if isinstance(answer, Exception) else answer


def _order(stats: dict[str, ZnodeStat]) -> dict[str, Any]:
    """Each node's counts, and its transactions by their ranks: what number they have is their server's."""
    fields = {path: (stat.czxid, stat.mzxid, stat.pzxid) for path, stat in stats.items()}
    ranks = {zxid: rank for rank, zxid in enumerate(sorted(set().union(*fields.values())))}
    return {
        path: ([ranks[zxid] for zxid in fields[path]], _comparable(stat))
        for path, stat in stats.items()
    }


def _part(random: Random) -> Create | Delete | Write:
    """A change to a key's node or to one below it, which may be in the way of others, or not there."""
    key = random.choice(KEYS)
    path = random.choice([key, *(f"{key}/{name}" for name in NAMES[:2])])
    data, version = random.choice([b"", b"more"]), random.choice(VERSIONS)
    return random.choice([Create(path, data), Delete(path, version), Write(path, data, version)])


def _change(random: Random, tree: dict[str, Node]) -> Create | Delete | Write | Multi:
    key = random.choice(KEYS)
    places = [path for path in tree if "place" in path]
    choice = random.random()
    if choice < 0.2:
        return Create(f"{key}/{NAMES[2]}", ephemeral=True, sequence=True)
    if choice < 0.4 and places:
        return Delete(random.choice(places))
    if choice < 0.7:
        return Multi(tuple(_part(random) for _ in range(random.randint(1, 4))))
    return _part(random)


@pytest.mark.parametrize("seed", range(SEQUENCES))
def test_the_model_does_what_a_server_does(client: KazooClient, seed: int) -> None:
    """Creations, deletions, writes and transactions, with conditions that hold or do not, one after the other."""
    random, both = Random(seed), Both(client)
    for _ in range(STEPS):
        both.do(_change(random, both.tree))
    both.compare()
