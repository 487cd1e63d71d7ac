"""Commands that answer: plans, states, statistics, documents' lives."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from pipelines.commands.options import LAKE, Changes, Json, Lake, Recipe, Run, Sample, read_parameters, show
from schemas.store import open_lake


def plan(
    recipe: Recipe,
    /,
    *,
    lake: Lake = LAKE,
    changes: Changes = (),
    run: Run = None,
    sample: Sample = "100%",
    compute: Annotated[float | None, Parameter(help="Also show what this many FLOPs buy, for example 1e19.")] = None,
    tflops: Annotated[float, Parameter(help="TFLOP/s of a GPU by its data sheet.")] = 989.0,
    mfu: Annotated[float, Parameter(help="Share of them that training reaches.")] = 0.4,
    rate: Annotated[float, Parameter(help="Measured tokens/s of a GPU, in place of the two; 0 is none.")] = 0.0,
    calibrate: Annotated[bool, Parameter(negative=(), help="Measure that rate by two steps of the first stage on this machine.")] = False,
    watts: Annotated[float, Parameter(help="Power of a GPU.")] = 700.0,
    price: Annotated[float, Parameter(help="Price of a GPU-hour.")] = 2.5,
    json: Json = False,
) -> None:
    """Show what the recipe's stages come to on a curated lake and what they cost, and what the run has committed."""
    from pipelines.estimate import Rates
    from pipelines.plan_view import planned, print_planned
    from schemas.errors import GristmillError

    rates = Rates(tflops, mfu, rate, watts, price)
    rates.check()
    if compute is not None and not 0 < compute < float("inf"):
        raise GristmillError(f"{compute:g} is no number of FLOPs", where="--compute", fix="give one above 0, such as 1e19")
    if calibrate and rate:
        raise GristmillError("a rate is either given or measured", where="--rate", fix="leave out --rate or --calibrate")
    parameters = read_parameters(recipe, lake, changes, sample, run=run)
    loaded = parameters.load()
    if calibrate:
        from dataclasses import replace

        from pipelines.calibrate import measured_rate

        rates = replace(rates, tokens_per_second=measured_rate(parameters.root, loaded))
    show(planned(parameters, loaded, rates, compute), json, print_planned)


def what_if(
    recipe: Recipe,
    /,
    *,
    rule: Annotated[
        tuple[str, ...],
        Parameter(name=["--rule"], negative=(), consume_multiple=False, help="One more rule in SQL, true for documents to drop."),
    ] = (),
    lake: Lake = LAKE,
    changes: Changes = (),
    sample: Sample = "100%",
    json: Json = False,
) -> None:
    """Show what other rules or thresholds would drop, by the signals that a curated lake has stored."""
    from pipelines.progress import counted
    from pipelines.what_if import print_what_if, what_if

    with counted("what if", "shards", json) as tell:
        found = what_if(read_parameters(recipe, lake, changes, sample), rule, tell)
    show(found, json, print_what_if)


def classify_train(
    good: Annotated[str, Parameter(help="Good documents: JSON lines, Parquet or text; a file, folder or glob.")],
    bad: Annotated[str, Parameter(help="Bad documents, likewise.")],
    /,
    *,
    output: Annotated[Path, Parameter(name=["--output", "-o"], help="File to write.")] = Path("model.safetensors"),
    field: Annotated[str, Parameter(help="Field that holds the text.")] = "text",
    json: Json = False,
) -> None:
    """Train a quality classifier from two sets of documents; a recipe uses it as a signal."""
    from pipelines.classify import print_classifier, train_classifier
    from pipelines.progress import counted

    with counted("classify", "texts", json) as tell:
        found = train_classifier(good, bad, field, output, tell)
    show(found, json, print_classifier)


def status(*, lake: Lake = LAKE, json: Json = False) -> None:
    """Show what the lake holds and how far its runs are."""
    from pipelines.state import lake_status, print_status

    show(lake_status(open_lake(lake)), json, print_status)


def stats(*, lake: Lake = LAKE, json: Json = False) -> None:
    """Show what the text is like by source: sizes, drop reasons, duplicate share."""
    from pipelines.stats import lake_stats, print_stats

    show(lake_stats(open_lake(lake), silent=json), json, print_stats)


def why(
    document: Annotated[str, Parameter(help="A doc_id in hex, its beginning, or the record's own id.")],
    /,
    *,
    lake: Lake = LAKE,
    json: Json = False,
) -> None:
    """Tell one document's life: source, signals, verdict, lots, stages, and the steps that saw it."""
    from pipelines.why import life, print_life

    show(life(open_lake(lake), document), json, print_life)


def steps(
    steps: Annotated[str, Parameter(help="Steps A..B of a run, both included, or one.")],
    /,
    *,
    run: Annotated[str | None, Parameter(help="Run name; needed only where the lake has several.")] = None,
    limit: Annotated[int, Parameter(help="Documents to list, the hardest first; 0 lists all.")] = 20,
    lake: Lake = LAKE,
    json: Json = False,
) -> None:
    """Tell which documents some steps saw: by source, and each with its loss and what became of it in every snapshot."""
    from pipelines.generate import only_run
    from pipelines.step_range import parse_steps
    from pipelines.steps import print_seen, seen

    root = open_lake(lake)
    first, last = parse_steps(steps)
    show(seen(root, run or only_run(root), first, last, limit, silent=json), json, print_seen)


def sql(
    query: Annotated[str | None, Parameter(help="One query; without one, standard input, at a terminal a prompt.")] = None,
    /,
    *,
    lake: Lake = LAKE,
    file: Annotated[Path | None, Parameter(help="Read the query from this file.")] = None,
    format: Annotated[Literal["table", "csv", "json"], Parameter(name=["--format"], help="How to print rows.")] = "table",
    out: Annotated[Path | None, Parameter(help="Write all rows to this file instead: .csv, .json or .parquet.")] = None,
    json: Json = False,
) -> None:
    """Ask the lake in SQL (DuckDB), read-only: a view of every table, and macros such as funnel()."""
    from pipelines.query import query_text, run_query, save_query

    if query is None and file is None and sys.stdin.isatty():
        from pipelines.prompt import prompt

        return prompt(open_lake(lake))
    text = query_text(query, file)
    if out is None:
        return run_query(open_lake(lake), text, "json" if json else format)
    print(f"{out}: {save_query(open_lake(lake), text, out):,} rows")
    return None


def diff(
    a: Annotated[str, Parameter(help="LAKE, LAKE@SNAPSHOT, or @SNAPSHOT of the lake at hand.")],
    b: Annotated[str, Parameter(help="The other; the lake's current snapshot when left out.")] = "@current",
    /,
    *,
    lake: Lake = LAKE,
    json: Json = False,
) -> None:
    """Compare the verdicts of two snapshots: what changed, by source, reason and document."""
    from pipelines.diff import diff, place_of, print_diff

    show(diff(place_of(a, lake), place_of(b, lake), silent=json), json, print_diff)


def report(
    *,
    output: Annotated[Path, Parameter(name=["--output", "-o"], help="HTML file to write.")] = Path("report.html"),
    lake: Lake = LAKE,
) -> None:
    """Write what the lake holds and how its training went as one HTML file that needs no network."""
    from pipelines.progress import counted
    from pipelines.report import write_report

    with counted("report", "sections") as tell:
        written = write_report(open_lake(lake), output, tell)
    print(written)


def ui(
    *,
    port: Annotated[int, Parameter(help="Port of 127.0.0.1; 0 takes any free one.")] = 8421,
    lake: Lake = LAKE,
) -> None:
    """Serve the report live to this machine's browser, with search by document, an SQL box and running stages."""
    from pipelines.report.server import serve

    serve(open_lake(lake), port, lambda line: print(line, flush=True))
