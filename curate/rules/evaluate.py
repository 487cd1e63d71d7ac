"""Which rules each document fails, computed by DuckDB over stored signals."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from curate.rules.expression import kept_sandbox
from curate.rules.rule_sets import Rule
from schemas.errors import RecipeError
from schemas.tables import FAILURE

Numbers = npt.NDArray[np.float64]
ROWS = 1 << 17
"""Rows a query takes at once, which bounds memory whatever the table's length."""
FAILS: dict[str | None, Callable[[Numbers, Numbers], npt.NDArray[np.bool_]]] = {
    "<": np.less,
    ">": np.greater,
    "<=": np.less_equal,
    None: lambda values, _: values == 1,
}
"""How a value fails against its limit, by comparison."""


def evaluate(signals: pa.Table, rules: Sequence[Rule], *, threads: int = 1) -> pa.Table:
    """Every failing rule of every document.

    Args:
        signals: Rows with the columns that the rules read.
        rules: What `resolve_rules` returns.
        threads: DuckDB's threads; the result does not depend on them.

    Returns:
        One row a row of `signals`, in the same order: `failures`, a list of structs of rule, value and threshold in the order of
        `rules`, empty where the document passes. A recipe's own rule has neither value nor threshold.

    Raises:
        RecipeError: A rule reads a column that is missing, or fails while it is computed (an overflow).
    """
    db = kept_sandbox(threads).cursor()
    try:
        parts = [_failures(db, signals.slice(start, ROWS), rules) for start in range(0, signals.num_rows, ROWS)]
    except duckdb.Error as error:
        message = str(error).split("\n", 1)[0]
        raise RecipeError(f"a rule cannot be computed: {message}", where="rules", fix="correct the expression or the signals") from error
    finally:
        db.close()
    return pa.table({"failures": pa.chunked_array(parts, pa.list_(FAILURE))})


def _failures(db: duckdb.DuckDBPyConnection, signals: pa.Table, rules: Sequence[Rule]) -> pa.Array:
    """The lists of failures of one part of the table."""
    if not rules:
        return pa.array([[]] * signals.num_rows, pa.list_(FAILURE))
    columns = [f'{_column(rule)} AS "value {i}"' for i, rule in enumerate(rules)]
    columns += [f'{rule.limit} AS "limit {i}"' for i, rule in enumerate(rules) if rule.by_language]
    db.register("signals", signals)
    result = db.sql(f"SELECT {', '.join(columns)} FROM signals").to_arrow_table()
    db.unregister("signals")
    numbers, limits = (np.empty((signals.num_rows, len(rules))) for _ in range(2))
    for i, rule in enumerate(rules):
        numbers[:, i] = result.column(f"value {i}").to_numpy()
        limits[:, i] = result.column(f"limit {i}").to_numpy() if rule.by_language else np.nan if rule.threshold is None else rule.threshold
    # NULL comes as NaN, which compares as false. A recipe's own rule is 1 where it fails.
    failed = np.stack([FAILS[rule.comparison](numbers[:, i], limits[:, i]) for i, rule in enumerate(rules)], axis=1)
    which = np.nonzero(failed)[1]
    own = np.array([rule.comparison is None for rule in rules])[which]
    names = pa.array([rule.name for rule in rules], pa.string()).take(pa.array(which))
    fields = [names, pa.array(numbers[failed], mask=own), pa.array(limits[failed], mask=own)]
    offsets = np.concatenate([[0], np.cumsum(failed.sum(axis=1))]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.StructArray.from_arrays(fields, fields=list(FAILURE)), type=pa.list_(FAILURE))


def _column(rule: Rule) -> str:
    """What SQL computes of a rule: its value, of a recipe's own rule whether it fails."""
    return rule.predicate if rule.comparison is None else f"CAST(({rule.value}) AS DOUBLE)"
