"""What every adapter is made of.

An adapter says in its framework's words *what* to lock, and *when* a request begins and ends:

1. A decorator, a dependency, a rule and a task each make a ``LockSpec`` of what its user has written, where it
   is written. For a request, ``made_of`` makes the keys: of ``request_values``, and of key functions.
2. Each request has a ``Book``, which knows all keys that it holds; ``in_turn`` orders the keys of several specs. Each
   layer around the application has its ``RequestLeases`` in it: ``take`` acquires keys, and ``release`` releases
   them after the request's work was committed. ``to_its_end`` runs a request of an event loop so that what cancels
   it does not cancel what it does inside its lock.
3. ``Patience`` limits how long a request that locks waits for its body. ``Output`` says when the response may
   be sent, and ``problem_of`` which response an error gets.
4. ``configured`` and ``opened`` make the locks of an application from its code and its configuration.
5. ``RuleMiddleware`` and ``Rule`` lock by URL. ``Locked`` is what ``weblock check`` prints of a lock.
6. ``IdempotencySpec`` describes what is executed once for each idempotency key, and ``Answers`` stores the answers.

``guarding`` is how a database refuses the COMMIT of a stale holder.
"""

from ..._core.acquiring import LONGEST_LABEL
from .application import (
    Asked,
    Locked,
    RuleMiddleware,
    Rules,
    Wanted,
    configured,
    opened,
    refuse_engine,
    refuse_other_application,
    shown,
)
from .bodies import AHEAD, BODY_WAIT, ENDED_HERE, SENT_TOO_EARLY, Output, Patience, seconds_or_none
from .book import (
    Book,
    RequestLeases,
    current_book,
    innermost,
    to_its_end,
    watch_sessions,
)
from .guarding import FenceLocked, StaleFence
from .idempotency import BodyDigest
from .once import Execution, Idempotent
from .problems import ClientGone, Problem, Rewrite, answers, problem_of
from .rules import Match, Rule, RuleSet, methods_of
from .spec import (
    Headers,
    KeyFunction,
    LockSpec,
    lacking,
    name_of,
    request_values,
    required_by,
    sent_value,
    wanted_by,
)

__all__ = [
    "AHEAD",
    "BODY_WAIT",
    "ENDED_HERE",
    "LONGEST_LABEL",
    "SENT_TOO_EARLY",
    "Asked",
    "BodyDigest",
    "Book",
    "ClientGone",
    "Execution",
    "FenceLocked",
    "Headers",
    "Idempotent",
    "KeyFunction",
    "LockSpec",
    "Locked",
    "Match",
    "Output",
    "Patience",
    "Problem",
    "RequestLeases",
    "Rewrite",
    "Rule",
    "RuleMiddleware",
    "RuleSet",
    "Rules",
    "StaleFence",
    "Wanted",
    "answers",
    "configured",
    "current_book",
    "innermost",
    "lacking",
    "methods_of",
    "name_of",
    "opened",
    "problem_of",
    "refuse_engine",
    "refuse_other_application",
    "request_values",
    "required_by",
    "seconds_or_none",
    "sent_value",
    "shown",
    "to_its_end",
    "wanted_by",
    "watch_sessions",
]
