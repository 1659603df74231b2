"""The request layer: it owns the leases of an HTTP request, whatever the framework.

Frameworks' adapters acquire through it, from inside (``request_locks``); it releases, from outside.
``LockMiddleware`` acquires by itself, what its rules say.
"""

from ..rules import Rule, RuleSet
from .layer import RequestLayer
from .middleware import LockMiddleware
from .problems import Problem, Rewrite, problem_of
from .request import RequestLease, RequestLocks, request_locks

__all__ = [
    "LockMiddleware",
    "Problem",
    "RequestLayer",
    "RequestLease",
    "RequestLocks",
    "Rewrite",
    "Rule",
    "RuleSet",
    "problem_of",
    "request_locks",
]
