"""Which requests lock what: rules by URL, for the middlewares of any framework."""

from .explaining import Explanation, Verdict, explain
from .rule import Match, Rule, methods_of
from .ruleset import RuleSet

__all__ = ["Explanation", "Match", "Rule", "RuleSet", "Verdict", "explain", "methods_of"]
