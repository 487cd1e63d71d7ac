"""Rules over signals: the field's rule sets as data, a recipe's changes to them, and which rules each document fails."""

from curate.rules.evaluate import evaluate
from curate.rules.expression import validate_expression, validate_predicate
from curate.rules.resolve import resolve_rules
from curate.rules.rule_sets import RULE_SETS, Rule, RuleSet

__all__ = ["RULE_SETS", "Rule", "RuleSet", "evaluate", "resolve_rules", "validate_expression", "validate_predicate"]
