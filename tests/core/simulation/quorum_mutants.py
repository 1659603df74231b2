"""The quorum with one mistake at a time, and the properties that may find it."""

from __future__ import annotations

from typing import Final

from weblock.stores.quorum import QuorumEngine
from weblock.stores.quorum.acquisition import Acquisition, Clocks, Votes
from weblock.stores.quorum.store import QuorumStore

from .mutants import Mutant

MUTANTS: Final = (
    # Votes.
    Mutant(
        "half of the servers are a majority",
        Votes,
        "__init__",
        "// 2 + 1",
        "// 2",
        ("P1", "P2", "P7"),
    ),
    Mutant(
        "a majority takes one server more",
        Votes,
        "__init__",
        "// 2 + 1",
        "// 2 + 2",
        ("P4", "P10", "P11"),
        seed=44,
    ),
    Mutant(
        "a majority is not enough",
        Votes,
        "granted",
        ">= self.majority",
        "> self.majority",
        ("P4", "P10", "P11"),
    ),
    Mutant(
        "those who wait vote as well",
        Votes,
        "granted",
        "len(self._answers.get(Held, ()))",
        "len(self._answers.get(Held, ()) or self._answers.get(Waiting, ()))",
        ("P1", "P2", "P7", "P11"),
    ),
    # Deadlines.
    # Fences.
    Mutant(
        "a renewal has the largest fence that any server gave",
        Votes,
        "heartbeat",
        "self._kept(fence or 0)",
        "self._kept(self.fence)",
        ("P10",),
        seed=66,
    ),
    Mutant(
        "a heartbeat grants what nobody has agreed on",
        Votes,
        "heartbeat",
        "if holding and not fence:",
        "if False:",
        ("P1", "P2", "P7"),
        seed=10,
    ),
    Mutant(
        "servers need not agree on the fence",
        QuorumStore,
        "_agree",
        "if len(level) >= votes.majority:",
        "if True:",
        ("P2",),
        seed=4,
    ),
    Mutant(
        "fences are agreed on by fewer than a majority",
        QuorumStore,
        "_agree",
        "if len(level) >= votes.majority:",
        "if len(level) >= votes.majority - 1:",
        ("P2",),
        seed=4,
    ),
    # What is not known.
    Mutant(
        "a release that a majority confirmed is none",
        Votes,
        "released",
        "released >= self.majority",
        "released > self.servers",
        ("P11", "P10"),
        seed=1,
    ),
    # Giving back.
    Mutant(
        "nobody waits behind others",
        QuorumStore,
        "_wait_behind",
        "if not held:",
        "if True:",
        ("P4", "P10"),
        seed=94,
    ),
    Mutant(
        "only those that voted are released",
        QuorumStore,
        "acquire",
        "acquisition.waits(votes)",
        "acquisition.asked.clear(), acquisition.asked.update([*votes.answers(Held)])",
        ("P6", "P9"),
        seed=2,
    ),
    Mutant(
        "a request that nobody answered is forgotten",
        QuorumStore,
        "_ask",
        "acquisition.under_way.update([(this, server) for server in asked])",
        "pass",
        ("P6",),
        seed=18,
    ),
    Mutant(
        "a release that finds nothing means that no request is late",
        QuorumStore,
        "release",
        "reply if type(reply.answer) is Released else None",
        "reply",
        ("P6",),
        seed=148,
    ),
    Mutant(
        "a server that was asked several times counts as asked once",
        Acquisition,
        "asks",
        "self.asked.update(servers)",
        "self.asked |= dict.fromkeys(servers, 1)",
        ("P6",),
        seed=18,
    ),
    Mutant(
        "who was refused by some leaves its place with others",
        QuorumStore,
        "acquire",
        "bool(acquisition.asked.keys() - votes.answers(Busy).keys())",
        "False",
        ("P6",),
        seed=113,
    ),
    Mutant(
        "a server that did not answer a release is not asked again",
        QuorumStore,
        "release",
        "if not votes.silent:",
        "if votes.answered >= votes.majority:",
        ("P6",),
        seed=297,
    ),
    # Who came first.
    Mutant(
        "waiters are ordered by what their own clocks show",
        Clocks,
        "time",
        "now + sorted(",
        "now + 0 * sorted(",
        ("P5",),
        seed=8,
    ),
    # What a process remembers.
    Mutant(
        "an acquisition that failed is remembered",
        Acquisition,
        "asked_for",
        "now + 2 * ttl + LATEST",
        'float("inf")',
        ("P9",),
        seed=154,
    ),
    Mutant(
        "every question makes another acquisition",
        QuorumEngine,
        "acquisition",
        "if claim.owner not in self.acquisitions:",
        "if True:",
        ("P2", "P4", "P6", "P9", "P10"),
        seed=142,
    ),
)
