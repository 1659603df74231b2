"""What the answers of several servers amount to: pure functions, after the Redlock algorithm.

A server's clock says how long a lease has left there, and nothing else. All returned times are on
the asker's own clock, counted from before the first request was sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from ..._core.ports import Reply
from ..._core.table import Answer, Asked, Busy, Gone, Held, Released, Waiting
from ...errors import EngineUnavailable

A = TypeVar("A", bound=Answer)

Replies = Mapping[int, Reply | EngineUnavailable]
"""Each server's answer, by its number; a server that was not asked is not in it."""


class Tally:
    """The answers of ``servers`` servers to one question, which was sent at ``sent``."""

    __slots__ = ("_held", "replies", "sent", "servers")

    def __init__(self, servers: int, sent: float, replies: Replies) -> None:
        self.servers = servers
        self.sent = sent
        self.replies = replies
        self._held = {
            server: reply.answer
            for server, reply in replies.items()
            if isinstance(reply, Reply) and isinstance(reply.answer, Held)
        }

    @property
    def majority(self) -> int:
        return self.servers // 2 + 1

    @property
    def answered(self) -> int:
        return len(self.heard)

    @property
    def heard(self) -> list[int]:
        """The servers that gave an answer."""
        return [server for server, reply in self.replies.items() if isinstance(reply, Reply)]

    @property
    def silent(self) -> list[int]:
        """The servers that were asked and gave no answer."""
        return [server for server, reply in self.replies.items() if not isinstance(reply, Reply)]

    @property
    def holding(self) -> list[int]:
        """The servers that say that the asker holds the key."""
        return list(self._held)

    @property
    def granted(self) -> bool:
        return len(self._held) >= self.majority

    @property
    def fence(self) -> int:
        """The largest fence that any of them gave."""
        return max(held.fence for held in self._held.values())

    @property
    def level(self) -> list[int]:
        """The servers that gave it."""
        fence = self.fence
        return [server for server, held in self._held.items() if held.fence == fence]

    @property
    def refusing(self) -> list[int]:
        """The servers where other callers hold or wait, and the asker does not."""
        return self._that_say(Busy)

    @property
    def waiting(self) -> list[int]:
        """The servers where the asker waits."""
        return self._that_say(Waiting)

    @property
    def forgetful(self) -> list[int]:
        """The servers that know nothing of the asker."""
        return self._that_say(Gone)

    def outcome(self) -> Reply | None:
        """The majority's answer; ``None`` if there is none, because too few have answered."""
        if self.granted:
            return Reply(Held(self.fence, self._kept_until(), asked=self.told), self.sent)
        if self.answered < self.majority:
            return None
        if self.forgetful:
            return Reply(Gone(), self.sent)
        if busy := self._answers(Busy):
            most = max(each.waiters for each in busy)
            refusal = Busy(self._freed_at(), most, False, self.recovering, *_holders(busy))  # noqa: FBT003
            return Reply(refusal, self.sent)
        waiting = self._answers(Waiting)
        position = max(each.position for each in waiting)
        answer = Waiting(position, self._freed_at(), (), self.recovering, *_holders(waiting))
        return Reply(answer, self.sent)

    @property
    def recovering(self) -> str:
        """Why so many servers grant nothing that no majority is left; nothing if one is."""
        answers: list[Waiting | Busy] = [*self._answers(Waiting), *self._answers(Busy)]
        reasons = [each.recovering for each in answers if each.recovering]
        if self.servers - len(reasons) >= self.majority:
            return ""
        return f"of {len(reasons)} of its {self.servers} servers, {reasons[0]}"

    def time_of(self, server: int) -> float:
        """The time on a server's clock at which it answered."""
        reply = self.replies[server]
        assert isinstance(reply, Reply)
        return reply.now

    def until(self, server: int) -> float:
        """When the asker's lease there ends, on the server's clock."""
        return self._held[server].until

    def heartbeat(self, fence: int | None) -> Reply | None:
        """The majority's answer to a heartbeat; ``None`` while it is not known.

        ``fence`` is what a majority has agreed on: others may have given larger ones on their own.
        ``Gone`` for a waiter to which any server has granted the key: it must ask, to agree on a
        fence with a majority, or to release what others have a better claim to.
        """
        waiting = len(self.waiting)
        if self.holding and not fence:
            return Reply(Gone(), self.sent)
        if self.granted:
            return Reply(Held(fence or 0, self._kept_until(), asked=self.told), self.sent)
        if waiting >= self.majority:
            return self.outcome()
        unknown = self.servers - self.answered
        if unknown and len(self.holding) + waiting + unknown >= self.majority:
            return None
        return Reply(Gone(), self.sent)

    def released(self) -> Reply | None:
        """The majority's answer to a release; ``None`` while it is not known."""
        released = len(self._that_say(Released))
        if released >= self.majority:
            return Reply(Released(), self.sent)
        unknown = self.servers - self.answered
        return None if released + unknown >= self.majority else Reply(Gone(), self.sent)

    def asked(self) -> Reply | None:
        """The answer to a caller that asks the holders to release; ``None`` while it is not known."""
        if self.answered < self.majority:
            return None
        asked = bool(self._that_say(Asked))
        return Reply(Asked() if asked else Gone(), self.sent)

    @property
    def told(self) -> bool:
        """Whether any server tells the asker that it was asked to release."""
        return any(held.asked for held in self._held.values())

    def _kept_until(self) -> float:
        """Return until when a majority keeps the lease."""
        return sorted(self._ends(Held), reverse=True)[self.majority - 1]

    def _freed_at(self) -> float:
        """Return when enough of the leases of others may have ended."""
        ends = sorted([*self._ends(Waiting), *self._ends(Busy)])
        wanted = self.majority - len(self.holding)
        return ends[min(wanted, len(ends)) - 1]

    def _ends(self, kind: type[Held | Waiting | Busy]) -> list[float]:
        """Return when the leases end, if the server's clock runs as ours does."""
        return [
            self.sent + reply.answer.until - reply.now
            for reply in self.replies.values()
            if isinstance(reply, Reply) and isinstance(reply.answer, kind)
        ]

    def _answers(self, kind: type[A]) -> list[A]:
        return [
            reply.answer
            for reply in self.replies.values()
            if isinstance(reply, Reply) and isinstance(reply.answer, kind)
        ]

    def _that_say(self, kind: type[Answer]) -> list[int]:
        return [
            server
            for server, reply in self.replies.items()
            if isinstance(reply, Reply) and isinstance(reply.answer, kind)
        ]


def _holders(answers: Sequence[Waiting | Busy]) -> tuple[str, int]:
    """Return the label of a holder and the number of others, by the server that knows of most."""
    return max(each.holder for each in answers), max(each.others for each in answers)
