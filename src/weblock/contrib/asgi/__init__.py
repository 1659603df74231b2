"""The request layer: it owns the leases of an HTTP request, whatever the framework.

Frameworks' adapters acquire through it, from inside (``request_locks``); it releases, from outside.
"""

from .layer import RequestLayer
from .problems import Problem, problem_of
from .request import RequestLocks, request_locks

__all__ = ["Problem", "RequestLayer", "RequestLocks", "problem_of", "request_locks"]
