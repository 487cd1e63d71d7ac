"""From a recipe's rule entries to the list of rules that runs."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from curate.rules.expression import validate_predicate
from curate.rules.rule_sets import RULE_SETS, Rule
from schemas.errors import RecipeError, nearest
from schemas.signals import SIGNALS

_SET_KEYS = frozenset(["set", "off", "thresholds"])
_OWN_KEYS = frozenset(["sql", "name"])


def resolve_rules(entries: Sequence[Mapping[str, Any]], columns: pa.Schema = SIGNALS, places: Sequence[int] = ()) -> list[Rule]:
    """The rules of a recipe in declared order.

    Args:
        entries: Each is `{"set": name, "off": [reason, ...], "thresholds": {reason: number}}` for a rule set with its changes, or
            `{"sql": expression, "name": reason}` for a rule of the recipe's own, which drops a document where the expression is true.
        columns: What a rule of the recipe's own may name.
        places: Where the entries stand in the recipe, if not one after another.

    Returns:
        The rules that are on. A rule that two sets share appears once.

    Raises:
        RecipeError: An unknown set, reason or key, a threshold that is no number, a reason used for two different rules, or SQL that is
            not one allowed expression.
    """
    rules: list[Rule] = []
    for place, entry in zip(places or range(len(entries)), entries, strict=True):
        where = f"rules[{place}]"
        if unknown := sorted(set(entry) - _SET_KEYS - _OWN_KEYS):
            raise RecipeError(
                f"unknown key {unknown[0]!r}{nearest(unknown[0], _SET_KEYS | _OWN_KEYS)}", where=where, fix="remove or correct it"
            )
        if ("set" in entry) == ("sql" in entry):
            raise RecipeError("a rule has either 'set' or 'sql'", where=where, fix="name a rule set, or give one SQL expression")
        if "set" in entry:
            rules += [rule for rule in _of_set(entry, where) if not _same(rule, rules)]
        else:
            rules.append(_own(entry, where, rules, columns))
    return rules


def _same(rule: Rule, rules: Sequence[Rule]) -> bool:
    """Whether a rule is listed already, whatever set it came from."""
    return any(replace(other, origin=rule.origin) == rule for other in rules)


def _of_set(entry: Mapping[str, Any], where: str) -> list[Rule]:
    """The rules of a set with its changes."""
    name = entry["set"]
    if name not in RULE_SETS:
        fix = "C4 rewrites text, so it is an edit: write `edits: [{edit: c4}]`" if name == "c4" else "correct the name"
        raise RecipeError(f"unknown rule set {name!r}{nearest(str(name), RULE_SETS)}", where=f"{where}.set", fix=fix)
    if "name" in entry:
        raise RecipeError("'name' belongs to a rule with 'sql'", where=where, fix="remove it")
    rules = {rule.name: rule for rule in RULE_SETS[name].rules}
    off = entry.get("off", [])
    thresholds = entry.get("thresholds", {})
    for field, reasons in (("off", off), ("thresholds", thresholds)):
        for reason in reasons:
            if reason not in rules:
                raise RecipeError(f"{name} has no rule {reason!r}{nearest(str(reason), rules)}", where=f"{where}.{field}", fix="correct it")
    for reason, threshold in thresholds.items():
        if isinstance(threshold, bool) or not isinstance(threshold, int | float) or not math.isfinite(threshold):
            raise RecipeError(f"threshold {threshold!r} is no number", where=f"{where}.thresholds.{reason}", fix="give a finite number")
        if reason in off:
            raise RecipeError(f"{reason!r} is off and has a threshold", where=where, fix="keep one of the two")
        rules[reason] = replace(rules[reason], threshold=float(threshold), by_language=())
    return [rule for reason, rule in rules.items() if reason not in off]


def _own(entry: Mapping[str, Any], where: str, before: Sequence[Rule], columns: pa.Schema) -> Rule:
    """The recipe's own rule."""
    name = entry.get("name")
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name):
        raise RecipeError(f"a rule with 'sql' needs a reason code, not {name!r}", where=f"{where}.name", fix="use letters, digits and _")
    taken = {rule.name for rule in before} | {rule.name for rules in RULE_SETS.values() for rule in rules.rules}
    if name in taken:
        raise RecipeError(f"the reason {name!r} is taken", where=f"{where}.name", fix="choose another name")
    if extra := sorted(set(entry) & {"off", "thresholds"}):
        raise RecipeError(f"{extra[0]!r} belongs to a rule set", where=where, fix="write the threshold into the expression")
    sql = entry["sql"]
    if not isinstance(sql, str):
        raise RecipeError(f"{sql!r} is no SQL text", where=f"{where}.sql", fix="give an expression as text")
    validate_predicate(sql, columns, where=f"{where}.sql")
    return Rule(name, sql, None, None)
