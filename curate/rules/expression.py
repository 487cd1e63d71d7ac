"""Checks that a recipe's SQL is one scalar expression over known columns, so that a recipe from a stranger can be run.

The text is parsed by DuckDB itself and the tree is walked: every node must be of a class listed here, every function on the list, every
column known. Whatever is not listed is refused: subqueries, files, macros, windows, aggregates, lambdas, parameters, odd casts, and
text but where a column of text is compared with it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence, Set
from functools import lru_cache
from typing import Any

import duckdb
import pyarrow as pa

from schemas.errors import RecipeError, nearest

FUNCTIONS = frozenset(
    [
        "+",
        "-",
        "*",
        "/",
        "//",
        "%",
        "**",
        "^",
        "abs",
        "ceil",
        "exp",
        "floor",
        "greatest",
        "least",
        "ln",
        "log10",
        "log2",
        "mod",
        "nullif",
        "pow",
        "power",
        "round",
        "sign",
        "sqrt",
    ]
)
OPERATORS = frozenset(["OPERATOR_NOT", "OPERATOR_IS_NULL", "OPERATOR_IS_NOT_NULL", "OPERATOR_COALESCE", "COMPARE_IN", "COMPARE_NOT_IN"])
CLASSES = frozenset(
    ["BETWEEN", "CASE", "CAST", "COLUMN_REF", "COMPARISON", "CONJUNCTION", "CONSTANT", "FUNCTION", "OPERATOR", "TYPE"],
)
CASTS = frozenset(["BIGINT", "BOOLEAN", "DOUBLE", "INTEGER"])
MAX_LENGTH = 10_000

Node = dict[str, Any]


def sandbox(threads: int = 1) -> duckdb.DuckDBPyConnection:
    """An in-memory DuckDB without access to files, the network or extensions, whose settings cannot be changed back."""
    return duckdb.connect(
        ":memory:",
        config={
            "threads": threads,
            "enable_external_access": "false",
            "autoload_known_extensions": "false",
            "autoinstall_known_extensions": "false",
            "python_enable_replacements": "false",
            "lock_configuration": "true",
        },
    )


@lru_cache(maxsize=4)
def kept_sandbox(threads: int = 1) -> duckdb.DuckDBPyConnection:
    """A sandbox kept for the process, of which callers take a cursor: opening one takes longer than a shard's query."""
    return sandbox(threads)


def validate_predicate(sql: str, columns: pa.Schema | Sequence[str], *, where: str = "") -> None:
    """Accepts one boolean scalar expression over `columns`.

    Args:
        sql: The text of the expression.
        columns: Schema of the table it will see, or column names, which count as BIGINT.
        where: Where the text stands, for the message.

    Raises:
        RecipeError: The text is anything else; the message says which part and at which character.
    """
    kind = _checked_type(sql, columns, where)
    if kind != "BOOLEAN":
        raise RecipeError(f"{sql!r} gives {kind}, not true or false", where=where, fix="compare it with a number")


def validate_expression(sql: str, columns: pa.Schema | Sequence[str], *, where: str = "") -> None:
    """Accepts one numeric scalar expression over `columns`; arguments and errors as for `validate_predicate`."""
    kind = _checked_type(sql, columns, where)
    if not kind.startswith(("DECIMAL", "DOUBLE", "FLOAT", "BIGINT", "HUGEINT", "INTEGER", "SMALLINT", "TINYINT", "UBIGINT")):
        raise RecipeError(f"{sql!r} gives {kind}, not a number", where=where, fix="give an expression that computes a number")


def _checked_type(sql: str, columns: pa.Schema | Sequence[str], where: str) -> str:
    """Checks an expression and returns its SQL type."""
    schema = columns if isinstance(columns, pa.Schema) else pa.schema([(name, pa.int64()) for name in columns])
    if len(sql) > MAX_LENGTH:
        raise RecipeError(f"the expression is {len(sql)} characters long; {MAX_LENGTH} are allowed", where=where, fix="make it shorter")
    # Columns, functions and numbers are ASCII; anything else could only make a reader see another text than runs.
    for place, char in enumerate(sql):
        if not (" " <= char <= "~" or char in "\n\r\t"):
            raise RecipeError(f"{sql!r} holds {char!r} at character {place + 1}", where=where, fix="use plain ASCII characters")
    if "--" in sql or "/*" in sql:
        raise RecipeError(f"{sql!r} holds a comment", where=where, fix="remove it")
    db = kept_sandbox().cursor()
    try:
        tree = _parse(db, f"SELECT {sql}", sql, where)
        # What runs is the text in brackets: it must mean the same (no alias or DISTINCT that reaches outside).
        if _shape(tree) != _shape(_parse(db, f"SELECT ({sql}\n)", sql, where)):
            raise RecipeError(f"{sql!r} is not one expression", where=where, fix="remove aliases and DISTINCT")
        texts = _compared_texts(tree, {field.name.lower() for field in schema if pa.types.is_string(field.type)})
        for node in _nodes(tree):
            if id(node) not in texts:
                _check(node, sql, schema.names, where)
        db.register("signals", schema.empty_table())
        return str(db.sql(f"SELECT ({sql}\n) AS value FROM signals").types[0])
    except duckdb.Error as error:
        raise RecipeError(f"{sql!r} is refused: {_first_line(error)}", where=where, fix="correct the expression") from error
    except RecursionError:
        raise RecipeError("the expression is nested too deeply", where=where, fix="make it simpler") from None
    finally:
        db.close()


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0]


def _parse(db: duckdb.DuckDBPyConnection, query: str, sql: str, where: str) -> Node:
    """The tree of the only expression that a query without a table selects."""
    rows = db.execute("SELECT json_serialize_sql(?::VARCHAR)", [query]).fetchall()
    parsed = json.loads(rows[0][0])
    if parsed["error"]:
        raise RecipeError(f"{sql!r} is not an expression: {parsed['error_message']}", where=where, fix="correct the expression")
    if len(parsed["statements"]) != 1:
        raise RecipeError(f"{sql!r} holds more than one statement", where=where, fix="keep one expression")
    select = parsed["statements"][0]["node"]
    extra = [
        select["type"] != "SELECT_NODE" or len(select.get("select_list", [])) != 1,
        select.get("from_table", {}).get("type") != "EMPTY",
        any(select.get(clause) for clause in ("where_clause", "having", "qualify", "sample", "group_expressions", "modifiers")),
        bool(select.get("cte_map", {}).get("map")),
    ]
    if any(extra):
        raise RecipeError(f"{sql!r} is more than one expression", where=where, fix="remove FROM, WHERE and other clauses, and commas")
    expression: Node = select["select_list"][0]
    return expression


def _shape(node: Any) -> Any:
    """A tree without the places of its parts."""
    if isinstance(node, dict):
        return {key: _shape(value) for key, value in node.items() if not key.startswith("query_location")}
    return [_shape(part) for part in node] if isinstance(node, list) else node


def _nodes(node: Any) -> Iterator[Node]:
    """Every node of a tree: a node is an object that names its class."""
    if isinstance(node, dict):
        if "class" in node:
            yield node
        for value in node.values():
            yield from _nodes(value)
    elif isinstance(node, list):
        for value in node:
            yield from _nodes(value)


def _compared_texts(tree: Node, columns: Set[str]) -> set[int]:
    """Which nodes are constants of text that is compared with one of these columns."""
    found: set[int] = set()
    for node in _nodes(tree):
        compared = node["class"] == "COMPARISON" or node["type"] in ("COMPARE_IN", "COMPARE_NOT_IN")
        parts = [part for part in (node.get("left"), node.get("right"), *node.get("children", [])) if part] if compared else []
        if any(part["class"] == "COLUMN_REF" and part["column_names"][-1].lower() in columns for part in parts):
            found |= {id(part) for part in parts if part["class"] == "CONSTANT" and "string" in _constant_problem(part)}
    return found


def _check(node: Node, sql: str, columns: Sequence[str], where: str) -> None:
    """Raises unless a node is of a kind that is listed."""
    kind = node["class"]
    problem = ""
    if kind not in CLASSES:
        problem = f"{kind.lower().replace('_', ' ')} is not allowed"
    elif node.get("alias"):
        problem = "an alias is not allowed"
    elif kind == "FUNCTION":
        problem = _function_problem(node)
    elif kind == "OPERATOR" and node["type"] not in OPERATORS:
        problem = f"{node['type'].removeprefix('OPERATOR_').lower()} is not allowed"
    elif kind == "COLUMN_REF":
        names = node["column_names"]
        if len(names) != 1 or names[0].lower() not in {name.lower() for name in columns}:
            problem = f"column {'.'.join(names)!r} does not exist{nearest(names[-1], columns)}"
    elif kind == "CONSTANT":
        problem = _constant_problem(node)
    elif kind == "CAST":
        problem = _cast_problem(node)
    if problem:
        place = node.get("query_location", 0) - len("SELECT ")
        at = f" at character {place + 1}" if 0 <= place < len(sql) else ""
        raise RecipeError(f"{sql!r}: {problem}{at}", where=where, fix="use columns of the signals table, numbers and arithmetic")


def _function_problem(node: Node) -> str:
    """Why a function call is refused; empty if it is not."""
    name = node["function_name"].lower()
    if name not in FUNCTIONS or node.get("schema") or node.get("catalog"):
        return f"function {name!r} is not allowed{nearest(name, FUNCTIONS)}"
    orders = (node.get("order_bys") or {}).get("orders")
    special = node.get("filter") or node.get("distinct") or node.get("export_state") or orders
    return f"{name!r} takes plain arguments only" if special else ""


def _constant_problem(node: Node) -> str:
    """Why a constant is refused: only numbers, truth values and NULL are not, nor a string where ``_compared_texts`` says so."""
    if "literal" in node:  # DuckDB 2
        kind = node["literal"]["kind"]
        return "" if kind in ("INTEGER", "NUMERIC", "BOOLEAN", "NULL") else f"a constant of kind {kind.lower()} is not allowed"
    kind = node["value"]["type"]["id"]
    numeric = kind in ("DECIMAL", "DOUBLE", "FLOAT", "HUGEINT", "BIGINT", "INTEGER", "BOOLEAN", "NULL", '"NULL"', "SQLNULL")
    kind = "string" if kind == "VARCHAR" else kind
    return "" if numeric or node["value"].get("is_null") else f"a constant of kind {kind} is not allowed"


def _cast_problem(node: Node) -> str:
    """Why a cast is refused: only those to four types are not."""
    target = node["type_expr"]["type_name"] if "type_expr" in node else node["cast_type"]["id"]
    return "" if str(target).upper() in CASTS else f"a cast to {target} is not allowed; one of {', '.join(sorted(CASTS))}"
