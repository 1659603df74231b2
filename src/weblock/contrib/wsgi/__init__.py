"""The request layer of WSGI: it owns the leases of an HTTP request, whatever the framework.

Frameworks' adapters acquire through it, from inside (``request_locks``); it releases, from outside.
``LockMiddleware`` acquires by itself, what its rules say. Needs nothing but Python.
"""

from ..kit import ClientGone, Idempotent, Problem, Rewrite, Rule, RuleSet
from .layer import LockMiddleware, RequestLayer
from .request import RequestLocks, request_locks

__all__ = [
    "ClientGone",
    "Idempotent",
    "LockMiddleware",
    "Problem",
    "RequestLayer",
    "RequestLocks",
    "Rewrite",
    "Rule",
    "RuleSet",
    "request_locks",
]
