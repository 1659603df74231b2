"""Decide what the replies of several servers amount to: pure functions, after the Redlock algorithm.

A server's clock says how long a lease has left there, and nothing else. All returned times are on
the asker's own clock, counted from before the first request was sent.

A server that recovers from a loss of its data answers a claim with ``Waiting`` or ``Busy``, also if
it knows the claim's lease: it might have forgotten a later one. So it has no vote for a grant.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from ..._core.ports import Reply
from ..._core.table import Answer, Asked, Busy, Gone, Held, Released, Waiting
from ...errors import EngineUnavailable

A = TypeVar("A", bound=Answer)


class Tally:
    """The replies of ``servers`` servers to one question, which was sent at ``sent``.

    They are by number; one of a server that was not asked, or has not answered yet, is missing.
    """

    __slots__ = ("_answers", "majority", "replies", "sent", "servers")

    def __init__(
        self, servers: int, sent: float, replies: Mapping[int, Reply | EngineUnavailable]
    ) -> None:
        self.servers = servers
        self.majority = servers // 2 + 1
        self.sent = sent
        self.replies = replies
        self._answers: dict[type, dict[int, Any]] = {}
        for server, reply in replies.items():
            if isinstance(reply, Reply):
                self._answers.setdefault(type(reply.answer), {})[server] = reply.answer

    @property
    def answered(self) -> int:
        return len(self.replies) - len(self.silent)

    @property
    def silent(self) -> list[int]:
        """The servers that were asked and gave no answer."""
        return [server for server, reply in self.replies.items() if not isinstance(reply, Reply)]

    def answers(self, kind: type[A]) -> dict[int, A]:
        """Return the answers of one kind, by server."""
        return self._answers.get(kind, {})

    @property
    def holding(self) -> set[int]:
        """The servers that say that the asker holds the key."""
        return set(self.answers(Held))

    @property
    def granted(self) -> bool:
        return len(self._answers.get(Held, ())) >= self.majority

    @property
    def fence(self) -> int:
        """The largest fence that any of them gave."""
        return max([held.fence for held in self.answers(Held).values()])

    @property
    def level(self) -> set[int]:
        """The servers that gave it."""
        largest = self.fence
        return {server for server, held in self.answers(Held).items() if held.fence == largest}

    def outcome(self) -> Reply | None:
        """The majority's answer; ``None`` if there is none, because too few have answered."""
        if self.granted:
            return self._kept(self.fence)
        if self.answered < self.majority:
            return None
        if self.answers(Gone):
            return Reply(Gone(), self.sent)
        busy, waiting = self.answers(Busy).values(), self.answers(Waiting).values()
        others = busy or waiting
        # Their holder's label and the number of others, by the server that knows of most.
        holders = max(each.holder for each in others), max(each.others for each in others)
        if busy:
            most = max(each.waiters for each in busy)
            refusal = Busy(self._freed_at(), most, False, self.recovering, *holders)  # noqa: FBT003
            return Reply(refusal, self.sent)
        position = max(each.position for each in waiting)
        answer = Waiting(position, self._freed_at(), (), self.recovering, *holders)
        return Reply(answer, self.sent)

    @property
    def recovering(self) -> str:
        """Why so many servers grant nothing that no majority is left; nothing if one is."""
        answers: list[Waiting | Busy] = [
            *self.answers(Waiting).values(),
            *self.answers(Busy).values(),
        ]
        reasons = [each.recovering for each in answers if each.recovering]
        if self.servers - len(reasons) >= self.majority:
            return ""
        return f"of {len(reasons)} of its {self.servers} servers, {reasons[0]}"

    def heartbeat(self, fence: int | None) -> Reply | None:
        """The majority's answer to a heartbeat; ``None`` while it is not known.

        ``fence`` is what a majority has agreed on: others may have given larger ones on their own.
        ``Gone`` for a waiter to which any server has granted the key: it must ask, to agree on a
        fence with a majority, or to release what others have a better claim to.
        """
        waiting = len(self.answers(Waiting))
        if self.holding and not fence:
            return Reply(Gone(), self.sent)
        if self.granted:
            return self._kept(fence or 0)
        if waiting >= self.majority:
            return self.outcome()
        unknown = self.servers - self.answered
        if unknown and len(self.holding) + waiting + unknown >= self.majority:
            return None
        return Reply(Gone(), self.sent)

    def released(self) -> Reply | None:
        """The majority's answer to a release; ``None`` while it is not known."""
        released = len(self.answers(Released))
        if released >= self.majority:
            return Reply(Released(), self.sent)
        unknown = self.servers - self.answered
        return None if released + unknown >= self.majority else Reply(Gone(), self.sent)

    def asked(self) -> Reply | None:
        """The answer to a caller that asks the holders to release; ``None`` while it is not known."""
        if self.answered < self.majority:
            return None
        return Reply(Asked() if self.answers(Asked) else Gone(), self.sent)

    def _kept(self, fence: int) -> Reply:
        """Return the lease that a majority keeps. Any server may say that its release was asked for."""
        until = sorted(self._ends(Held), reverse=True)[self.majority - 1]
        asked = True in [held.asked for held in self.answers(Held).values()]
        return Reply(Held(fence, until, asked=asked), self.sent)

    def _freed_at(self) -> float:
        """Return when enough of the leases of others may have ended."""
        ends = sorted([*self._ends(Waiting), *self._ends(Busy)])
        wanted = self.majority - len(self.holding)
        return ends[min(wanted, len(ends)) - 1]

    def _ends(self, kind: type[Held | Waiting | Busy]) -> list[float]:
        """Return when the leases end, if the server's clock runs as ours does."""
        return [
            self.sent + answer.until - self.replies[server].now  # type: ignore[union-attr]
            for server, answer in self.answers(kind).items()
        ]
