"""Histograms of the values that rules compare, with the thresholds they compare them with."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from curate.families.step import named_families
from curate.rules import RULE_SETS
from pipelines.catalog import Connection
from schemas.families import FAMILIES
from schemas.signals import SIGNALS
from schemas.store import read_json

Json = Any

BINS = 40
MOST_HISTOGRAMS = 24
LINEAR = 50
"""Counts up to this have a bar each; larger ones are drawn on a logarithmic axis."""
MOST_THRESHOLDS = 4
"""Of one rule: thresholds by language are many."""

COUNTED = frozenset([*SIGNALS.names, *(name for columns in FAMILIES.values() for name in columns.names)])
"""Columns that rules may compare as they are."""

_SIMPLE = re.compile(r"\s*([a-z_0-9]+)\s*(<=|>=|<|>)\s*([0-9][0-9_]*(?:\.[0-9]+)?)\s*")
_OUTCOMES = ("kept", "held_out", "dropped")

_FAILED = """
SELECT failure.rule AS rule, count(*) AS failed, list_sort(list_distinct(list(failure.threshold))) AS thresholds
FROM (SELECT unnest(failures) AS failure FROM verdicts) GROUP BY ALL ORDER BY failed DESC, rule
"""


@dataclass(frozen=True)
class Threshold:
    """A rule as a histogram shows it."""

    rule: str
    comparison: str
    threshold: float
    failed: int


def signal_histograms(db: Connection, root: Path, share: float) -> list[dict[str, Json]]:
    """A histogram for each value that a rule compares, those that fail most documents first.

    Args:
        db: the catalogue.
        root: the lake, whose runs' recipes tell rules of their own.
        share: share of the documents to count, lowest doc_ids first.

    Returns:
        Mappings of value (its SQL), log (whether edges are even in the logarithm), thresholds, and bins of low, high, state, documents.
    """
    by_value: dict[str, list[Threshold]] = defaultdict(list)
    for value, threshold in _thresholds(db, root):
        by_value[value].append(threshold)
    ordered = sorted(by_value, key=lambda value: (-sum(each.failed for each in by_value[value]), value))[:MOST_HISTOGRAMS]
    made = (_histogram(db, value, by_value[value], share) for value in ordered)
    return [histogram for histogram in made if histogram is not None]


def _thresholds(db: Connection, root: Path) -> Iterator[tuple[str, Threshold]]:
    """SQL of each value that rules of the lake compare, with a rule."""
    published = {rule.name: rule for rules in RULE_SETS.values() for rule in rules.rules}
    failed = db.execute(_FAILED).fetchall()
    for rule, count, thresholds in failed:
        if rule in published and published[rule].comparison is not None:
            for threshold in [each for each in thresholds if each is not None][:MOST_THRESHOLDS]:
                yield published[rule].value, Threshold(rule, published[rule].comparison or "", threshold, count)
    counts = {rule: count for rule, count, _ in failed}
    for name, sql in sorted(set(_own_rules(root))):
        simple = _SIMPLE.fullmatch(sql)
        if simple is not None and simple[1] in COUNTED:
            yield simple[1], Threshold(name, simple[2], float(simple[3].replace("_", "")), counts.get(name, 0))


def _own_rules(root: Path) -> Iterable[tuple[str, str]]:
    """Rules of their own in the recipes of the lake's runs."""
    for path in sorted(root.glob("runs/*/recipe.json")):
        for entry in read_json(path).get("recipe", {}).get("rules", ()):
            if entry.get("sql") and entry.get("name"):
                yield entry["name"], entry["sql"]


def _histogram(db: Connection, value: str, thresholds: list[Threshold], share: float) -> dict[str, Json] | None:
    # ``value`` is an expression of our own rule sets or the name of a signal, never a user's text.
    below = f"{int(share * (1 << 32)):08x}" if share < 1 else "g"
    families = "".join(f" LEFT JOIN {family} USING (doc_id)" for family in sorted(named_families([value])))
    found = db.execute(
        f"SELECT CAST(({value}) AS DOUBLE) AS value, state FROM (FROM signals WHERE doc_id < $below){families} JOIN"
        " (SELECT doc_id, state FROM verdicts WHERE doc_id < $below) USING (doc_id) WHERE value IS NOT NULL",
        {"below": below},
    ).fetchnumpy()
    values = np.asarray(found["value"], dtype=np.float64)
    if not len(values):
        return None
    limits = [each.threshold for each in thresholds]
    counted = value in COUNTED
    log = counted and max(np.quantile(values, 0.995), *limits) > LINEAR
    edges = _edges(values, limits, counted, log)
    states = np.asarray(found["state"])
    bins = []
    for state in _OUTCOMES:
        counts, _ = np.histogram(np.clip(values[states == state], edges[0], edges[-1]), edges)
        bins += [
            {"low": float(low), "high": float(high), "state": state.replace("_", " "), "documents": int(count)}
            for low, high, count in zip(edges, edges[1:], counts, strict=False)
            if count
        ]
    return {"value": _readable(value), "log": log, "thresholds": [vars(each) for each in thresholds], "bins": bins}


def _edges(values: np.ndarray[Any, Any], limits: list[float], counted: bool, log: bool) -> np.ndarray[Any, Any]:
    """Edges that hold all but the outermost half percents, and every threshold."""
    low, high = np.quantile(values, [0.005, 0.995])
    low, high = min(low, *limits), max(high, *limits)
    if counted and not log:
        return np.arange(np.floor(low) - 0.5, np.ceil(high) + 1)
    if log:  # whole numbers of any size: even in the logarithm of one more
        return np.unique(np.round(np.expm1(np.linspace(np.log1p(max(0.0, low)), np.log1p(max(high, low + 1)), BINS + 1))))
    margin = (high - low or 1.0) / BINS
    return np.linspace(low - margin if low else 0.0, high + margin, BINS + 1)


def _readable(value: str) -> str:
    """An expression without the casts that only exactness needs."""
    plain = re.sub(r"CAST\(([a-z_0-9]+) AS DOUBLE\)", r"\1", value)
    return re.sub(r"nullif\(([a-z_0-9]+), 0\)", r"\1", plain)
