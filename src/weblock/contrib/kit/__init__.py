"""What every adapter is made of.

- ``spec``: what to lock. A decorator, a dependency, a rule and a task each make a ``LockSpec``.
- ``book``: the leases of one request, which are released when its work is done.
- ``values``: what a key template is filled in from, and which functions make keys.
- ``rules`` and ``middleware``: locks by URL.
- ``listing``: what an application locks, for ``weblock check``.
- ``guarding``: how a database refuses the COMMIT of a stale holder.
- ``problems``: the errors of weblock over HTTP.
- ``settings``: where an application's locks come from.
"""

from .guarding import FenceLocked, StaleFence
from .listing import Asked, Locked
from .middleware import RuleMiddleware, Rules
from .problems import Problem, Rewrite, problem_of
from .spec import LockSpec, name_of

__all__ = [
    "Asked",
    "FenceLocked",
    "LockSpec",
    "Locked",
    "Problem",
    "Rewrite",
    "RuleMiddleware",
    "Rules",
    "StaleFence",
    "name_of",
    "problem_of",
]
