"""What every adapter is made of: a lock spec, which says what to lock, and what fills it in."""

from .middleware import RuleMiddleware, Rules, RulesFound, rules_of
from .spec import LockSpec, name_of

__all__ = ["LockSpec", "RuleMiddleware", "Rules", "RulesFound", "name_of", "rules_of"]
