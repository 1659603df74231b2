"""ZooKeeper's nodes: what a request changes, and what it is answered.

A change is worked out by the leader, against all that was before it; servers only apply what came of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from kazoo.exceptions import (
    BadVersionError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
    RuntimeInconsistency,
)
from kazoo.protocol.states import ZnodeStat


class Node(NamedTuple):
    """One node. Times are whole milliseconds, on the clock of the leader that wrote it."""

    data: bytes
    czxid: int
    mzxid: int
    ctime: int
    mtime: int
    version: int = 0
    session: int = 0
    """That of an ephemeral node, which vanishes with it."""
    created: int = 0
    """How many children it ever had: the number of the next one that is sequential."""
    pzxid: int = 0
    children: tuple[str, ...] = ()

    @property
    def stat(self) -> ZnodeStat:
        count = len(self.children)
        return ZnodeStat(
            *(self.czxid, self.mzxid, self.ctime, self.mtime, self.version),
            *(2 * self.created - count, 0, self.session, len(self.data), count, self.pzxid),
        )


Tree = Mapping[str, Node]
Changes = dict[str, Node | None]
"""What becomes of nodes: ``None`` where they are no more."""


class Create(NamedTuple):
    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequence: bool = False


class Delete(NamedTuple):
    path: str
    version: int = -1


class Write(NamedTuple):
    path: str
    data: bytes
    version: int = -1


class Multi(NamedTuple):
    """Several, all or none."""

    parts: tuple[Create | Delete | Write, ...]


class Forget(NamedTuple):
    """The end of a session, and with it of its ephemeral nodes."""

    paths: tuple[str, ...]


class Sync(NamedTuple):
    path: str


class Read(NamedTuple):
    path: str
    watch: Callable[[Any], None] | None = None


class List(NamedTuple):
    path: str


Writing = Create | Delete | Write | Multi | Forget
Request = Writing | Sync | Read | List


class Draft:
    """A transaction under way: what it has changed so far, on top of all that was before."""

    def __init__(self, tree: Tree, zxid: int, stamp: int, session: int) -> None:
        self.changes: Changes = {}
        self._tree = tree
        self._zxid = zxid
        self._stamp = stamp
        self._session = session

    def do(self, request: Writing) -> Any:
        """Does it, and returns its result. Raises what ZooKeeper answers."""
        if isinstance(request, Create):
            return self._create(request)
        if isinstance(request, Delete):
            return self._delete(request)
        if isinstance(request, Write):
            return self._write(request)
        if isinstance(request, Multi):
            return [self.do(part) for part in request.parts]
        for path in request.paths:
            self._delete(Delete(path))
        return True

    def _create(self, request: Create) -> str:
        above, _, name = request.path.rpartition("/")
        parent = self._there(above)
        path = f"{request.path}{parent.created:010d}" if request.sequence else request.path
        if self._get(path) is not None:
            raise NodeExistsError
        zxid, stamp = self._zxid, self._stamp
        owner = self._session if request.ephemeral else 0
        self.changes[path] = Node(request.data, zxid, zxid, stamp, stamp, session=owner, pzxid=zxid)
        name = path.rpartition("/")[2]
        self.changes[above] = parent._replace(
            created=parent.created + 1, pzxid=zxid, children=(*parent.children, name)
        )
        return path

    def _delete(self, request: Delete) -> bool:
        node = self._there(request.path, request.version)
        if node.children:
            raise NotEmptyError
        above, _, name = request.path.rpartition("/")
        parent = self._there(above)
        left = tuple(each for each in parent.children if each != name)
        self.changes[request.path] = None
        self.changes[above] = parent._replace(pzxid=self._zxid, children=left)
        return True

    def _write(self, request: Write) -> ZnodeStat:
        node = self._there(request.path, request.version)._replace(
            data=request.data, mzxid=self._zxid, mtime=self._stamp
        )
        self.changes[request.path] = node = node._replace(version=node.version + 1)
        return node.stat

    def _get(self, path: str) -> Node | None:
        return self.changes[path] if path in self.changes else self._tree.get(path)

    def _there(self, path: str, version: int = -1) -> Node:
        node = self._get(path)
        if node is None:
            raise NoNodeError
        if version not in {-1, node.version}:
            raise BadVersionError
        return node


def perform(
    tree: Tree, request: Writing, *, zxid: int, stamp: int, session: int
) -> tuple[Any, Changes]:
    """Returns the answer to a request, an error perhaps, and what it changes."""
    draft = Draft(tree, zxid, stamp, session)
    if isinstance(request, Multi):
        return _all_or_none(draft, request.parts)
    try:
        return draft.do(request), draft.changes
    except (NoNodeError, NodeExistsError, BadVersionError, NotEmptyError) as error:
        return error, {}


def _all_or_none(draft: Draft, parts: Sequence[Writing]) -> tuple[list[Any], Changes]:
    """As kazoo tells it: which part was refused, those before it undone, those after it not tried."""
    done: list[Any] = []
    for part in parts:
        try:
            done.append(draft.do(part))
        except (NoNodeError, NodeExistsError, BadVersionError, NotEmptyError) as error:
            before = [RolledBackError() for _ in done]
            after = [RuntimeInconsistency() for _ in parts[len(done) + 1 :]]
            return [*before, error, *after], {}
    return done, draft.changes


def read(tree: Tree, request: Read | List) -> Any:
    """Returns what a server tells of its own nodes."""
    node = tree.get(request.path)
    if node is None:
        return NoNodeError()
    return (list(node.children) if isinstance(request, List) else node.data), node.stat
