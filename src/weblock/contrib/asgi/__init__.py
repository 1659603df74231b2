"""The request layer: it owns the leases of an HTTP request, whatever the framework.

Frameworks' adapters acquire through it, from inside (``request_locks``); it releases, from outside.
``LockMiddleware`` acquires by itself, what its rules say.
"""

from ..kit import Idempotent, Problem, Rewrite, Rule, RuleSet, problem_of
from .layer import LockMiddleware, RequestLayer
from .protocol import ProblemResponse
from .request import AsyncRequestLocks, RequestLease, request_locks

__all__ = [
    "AsyncRequestLocks",
    "Idempotent",
    "LockMiddleware",
    "Problem",
    "ProblemResponse",
    "RequestLayer",
    "RequestLease",
    "Rewrite",
    "Rule",
    "RuleSet",
    "problem_of",
    "request_locks",
]
