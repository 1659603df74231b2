"""Which requests lock what: rules by URL, for the middlewares of any framework."""

from .rule import Match, Rule, methods_of
from .ruleset import RuleSet

__all__ = ["Match", "Rule", "RuleSet", "methods_of"]
