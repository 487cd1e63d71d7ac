"""Shows plans: what a curriculum would come to, and what a run has committed, by stage and source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from curate.forecast import forecast
from curate.model_size import CHINCHILLA, parameters
from curate.plan import plan_curriculum, training_lots
from pipelines.catalog import Connection, ask, open_catalog
from pipelines.estimate import STATED, Rates
from pipelines.estimate_view import estimates, print_estimates
from pipelines.parameters import RunParameters
from pipelines.tables import BLOCKS, table
from schemas.manifest import read_snapshot
from schemas.recipe import Recipe
from schemas.store import address_of
from train.schedule import scale

Json = Any

_COMMITTED = """
WITH totals AS (SELECT source, sum(rows * row_length)::BIGINT AS tokens FROM lots WHERE split = 'train' GROUP BY ALL)
SELECT plans.run, plans.position, plans.stage, plans.source, sum(plans.rows)::BIGINT AS rows,
    sum(plans.rows * lots.row_length)::BIGINT AS tokens, sum(plans.rows * lots.row_length) / any_value(totals.tokens) AS epochs,
    coalesce(sum(plans.rows * lots.row_length) FILTER (plans.returned), 0)::BIGINT AS returned
FROM plans JOIN lots USING (lot) JOIN totals ON totals.source = plans.source WHERE plans.run = ?
GROUP BY plans.run, plans.position, plans.stage, plans.source ORDER BY plans.position, plans.source
"""


def planned(asked: RunParameters, recipe: Recipe, rates: Rates = STATED, compute: float | None = None) -> dict[str, Json]:
    """What the whole curriculum comes to with fresh budgets, and what the run has committed so far.

    Where nothing is packed yet, what the recipe alone tells: ``forecast`` is null, and ``missing`` says what is not known and why.

    Raises:
        PlanError: the budgets do not hold what the stages ask for.
    """
    root, run, lots = asked.root, asked.run_name(recipe), []
    if any(stage.adaptive for stage in recipe.stages):
        from curate.stage import check_references

        check_references(root, recipe)
    if (root / "snapshots/current.json").is_file():
        with open_catalog(root) as db:
            lots = training_lots(ask(db, "SELECT * FROM lots ORDER BY source, lot"))
    if not lots:
        from curate.tokenize import expected_vocabulary

        vocabulary = expected_vocabulary(recipe)
        whole = asked_for(recipe, vocabulary)
        costs = estimates(recipe, whole, vocabulary, rates, compute)
        return {"run": run, "forecast": None, "asked": whole, "estimates": costs, "committed": [], "missing": _missing(asked)}
    vocabulary = read_snapshot(root).steps["tokenizer"][0].counts["vocabulary"]
    whole = asdict(forecast(plan_curriculum(recipe, lots, vocabulary), recipe.model, vocabulary, recipe.pack.row_length))
    whole["learning_rates"] = learning_rates(recipe, whole["steps"])
    costs = estimates(recipe, whole, vocabulary, rates, compute)
    return {"run": run, "forecast": whole, "estimates": costs, "committed": committed_plan(root, run)}


def asked_for(recipe: Recipe, vocabulary: int) -> dict[str, Json]:
    """Parameters, and tokens and steps by stage, as far as a recipe alone tells them: stages of ``rest`` are left out."""
    size = parameters(recipe.model, vocabulary, recipe.pack.row_length)
    tokens, steps = {}, {}
    for stage in recipe.stages:
        if stage.tokens != "rest":
            wanted = CHINCHILLA * size if stage.tokens == "chinchilla" else int(stage.tokens)
            batch = recipe.training_of(stage).batch_rows * recipe.pack.row_length
            steps[stage.name] = wanted // batch
            tokens[stage.name] = wanted // batch * batch
    return {"parameters": size, "tokens": sum(tokens.values()), "steps": steps, "tokens_by_stage": tokens}


def _missing(asked: RunParameters) -> str:
    return (
        f"Nothing is packed in {address_of(asked.root)} yet: what each source holds, and so epochs, shares, the expected loss, stages of "
        f"`rest` and whether the budgets hold what is asked, is not known. Run `{asked.command('curate')}` first."
    )


def learning_rates(recipe: Recipe, steps: Mapping[str, int]) -> dict[str, list[float]]:
    """Learning rate of each step by stage, as the schedules plan it; early stops and plateaus are not foreseen."""
    rates: dict[str, list[float]] = {}
    before = 0.0
    for stage in recipe.stages:
        training, count = recipe.training_of(stage), steps.get(stage.name, 0)
        peak = training.optimizer.lr
        rates[stage.name] = [peak * scale(training.schedule, step, count, before / peak if peak else 0.0) for step in range(count)]
        before = rates[stage.name][-1] if count else before
    return rates


def committed_plan(root: Path, run: str) -> list[dict[str, Json]]:
    """What the run has committed so far: a line for each stage and source."""
    with open_catalog(root) as db:
        return committed_lines(db, run)


def committed_lines(db: Connection, run: str) -> list[dict[str, Json]]:
    """The same, of an open catalogue."""
    return ask(db, _COMMITTED, run)


def print_planned(plan: dict[str, Json], console: Console) -> None:
    """Print a whole plan for people."""
    if plan["forecast"] is None:
        print_asked(plan["asked"], console)
    else:
        print_forecast(plan["forecast"], console)
    print_estimates(plan["estimates"], console)
    if plan["committed"]:
        print_committed(plan["committed"], console)
    if "missing" in plan:
        console.print(plan["missing"], highlight=False, markup=False, soft_wrap=True)


def print_asked(whole: dict[str, Json], console: Console) -> None:
    """Print what a recipe asks for before anything is curated: ``asked_for``."""
    shown = table("Asked for", ("stage",), ("steps", "tokens"))
    for stage, tokens in whole["tokens_by_stage"].items():
        shown.add_row(stage, f"{whole['steps'][stage]:,}", f"{tokens:,}")
    console.print(shown)
    console.print(f"{whole['parameters']:,} parameters, {whole['tokens']:,} tokens asked for", highlight=False)


def print_forecast(whole: dict[str, Json], console: Console) -> None:
    """Print what a curriculum comes to: a ``Forecast`` as a mapping."""
    lines = whole["lines"]
    shown = table("Plan", ("stage", "source"), ("steps", "tokens", "share", "new documents", "epochs so far", "worth in new tokens"))
    for stage in dict.fromkeys(line["stage"] for line in lines):
        for number, line in enumerate(line for line in lines if line["stage"] == stage):
            first = (stage, line["source"], f"{whole['steps'][stage]:,}") if number == 0 else ("", line["source"], "")
            cells = (
                f"{line['tokens']:,}",
                f"{line['share']:.1%}",
                f"{line['documents']:,}",
                f"{line['epochs']:.2f}",
                f"{line['worth']:,.0f}",
            )
            shown.add_row(*first, *cells)
        shown.add_section()
    console.print(shown)
    print_learning_rates(whole["learning_rates"], console)
    about = f"{whole['parameters']:,} parameters, {whole['tokens']:,} tokens ({whole['chinchilla']:.2f} of 20 for each parameter)"
    console.print(f"{about}; estimated final loss {whole['loss']:.2f} nats per token (a law fitted on other corpora)", highlight=False)


def print_learning_rates(rates: dict[str, list[float]], console: Console) -> None:
    """Draw each stage's learning rate, all on one scale, as wide as its share of the steps."""
    highest, total = max((rate for stage in rates.values() for rate in stage), default=0.0), sum(map(len, rates.values()))
    shown = table("Learning rate", ("stage",), ("steps", "first", "highest", "last"), ("curve",))
    for name, stage in rates.items():
        if stage:
            width = max(4, round(48 * len(stage) / total))
            picked = [stage[i * (len(stage) - 1) // (width - 1)] / (highest or 1) for i in range(width)]
            curve = "".join(BLOCKS[round((len(BLOCKS) - 1) * height)] for height in picked)
            shown.add_row(name, f"{len(stage):,}", f"{stage[0]:.2g}", f"{max(stage):.2g}", f"{stage[-1]:.2g}", curve)
    console.print(shown)


def print_committed(lines: list[dict[str, Json]], console: Console) -> None:
    """Print what a run has committed."""
    shown = table("Stage plan", ("stage", "source"), ("tokens", "share", "epochs", "returned"))
    for stage in dict.fromkeys(line["stage"] for line in lines):
        mine = [line for line in lines if line["stage"] == stage]
        total = sum(line["tokens"] for line in mine)
        for number, line in enumerate(mine):
            share = f"{line['tokens'] / total:.1%}"
            cells = (line["source"], f"{line['tokens']:,}", share, f"{line['epochs']:.2f}", f"{line['returned']:,}")
            shown.add_row(stage if number == 0 else "", *cells)
        shown.add_section()
    console.print(shown)
    console.print("Tokens are positions in rows, epochs are uses of a source's rows; returned tokens were left by earlier stages.")


def plan_markdown(root: Path, run: str) -> str:
    """The committed plan as a Markdown table."""
    lines = ["| stage | source | tokens | epochs | returned by earlier stages |", "|-|-|-:|-:|-:|"]
    for line in committed_plan(root, run):
        lines.append(f"| {line['stage']} | {line['source']} | {line['tokens']:,} | {line['epochs']:.2f} | {line['returned']:,} |")
    return "\n".join(lines)
