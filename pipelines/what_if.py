"""``gristmill what-if``: shows what a changed rule, threshold or recipe would drop, before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.text import Text

from curate.rehearse import rehearse
from curate.rules import validate_predicate
from curate.scores import signal_schema
from pipelines.parameters import RunParameters
from pipelines.progress import Tell, untold
from pipelines.query import shown
from pipelines.tables import table
from schemas.curation import RuleEntry
from schemas.store import using

Json = Any


def what_if(parameters: RunParameters, rules: Sequence[str], tell: Tell = untold) -> dict[str, Json]:
    """Judge the lake's documents by the recipe with its changes and further rules, each an SQL expression; ``tell`` takes the shards done.

    Raises:
        NotStored: the change needs a pass over text.
        RecipeError: a rule that cannot be.
    """
    recipe = parameters.load()
    for sql in rules:
        validate_predicate(sql, signal_schema(recipe.signals), where="--rule")
    names = ["what_if" if number == 0 else f"what_if_{number + 1}" for number in range(len(rules))]
    more = [RuleEntry(sql=sql, name=name) for sql, name in zip(rules, names, strict=True)]
    changed = recipe.model_copy(update={"rules": [*recipe.rules, *more]})
    with using(parameters.root):
        return asdict(rehearse(parameters.root, changed, parameters.sample, tell))


def print_what_if(found: dict[str, Json], console: Console) -> None:
    """Print a rehearsal for people."""
    if not found["effects"]:
        console.print(f"No verdict of {found['documents']:,} documents would change; the stored signals suffice.")
        return
    for kind, title in (
        ("dropped", "Would be dropped (kept or held out now)"),
        ("passing", "Would pass the rules (dropped by one now; deduplication and held-out text come after)"),
    ):
        effects = [effect for effect in found["effects"] if effect["kind"] == kind]
        if not effects:
            continue
        made = table(title, ("source",), ("documents", "MB", "tokens"), ("",))
        for effect in effects:
            counts = (f"{effect['documents']:,}", f"{effect['bytes'] / 1e6:,.2f}", f"{effect['tokens']:,}")
            made.add_row(effect["source"], *counts, "tokens estimated from bytes" if effect["estimated"] else "")
        console.print(made)
        rules = table("by first failing rule" if kind == "dropped" else "by today's reason", ("source", "rule"), ("documents", "MB"))
        for line in (line for line in found["rules"] if line["kind"] == kind):
            rules.add_row(line["source"], line["rule"], f"{line['documents']:,}", f"{line['bytes'] / 1e6:,.2f}")
        console.print(rules)
    console.print(f"of {found['documents']:,} documents; nothing was read anew: the stored signals suffice", highlight=False)
    sample = table("A sample", ("document", "source", "now", "would"), (), ("text",))
    for each in found["sample"]:
        would = "pass" if each["kind"] == "passing" else ", ".join(map(_failure, each["failures"]))
        text = " ".join(each["excerpt"].split())[:100]
        sample.add_row(each["doc_id"][:12], each["source"], each["before"], Text(would), Text(text))
    console.print(sample)


def _failure(failure: dict[str, Json]) -> str:
    value = "" if failure["value"] is None else f" ({shown(failure['value'])})"
    return f"{failure['rule']}{value}"
