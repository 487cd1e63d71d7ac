"""Commands that work: from raw text to a trained model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from pipelines import tables
from pipelines.commands.options import LAKE, Changes, Engine, Json, Lake, Ranks, Recipe, Run, Sample, Workers, read_parameters, show
from schemas.store import address_of, open_lake


def run(
    recipe: Recipe,
    /,
    *,
    lake: Lake = LAKE,
    changes: Changes = (),
    workers: Workers = 0,
    engine: Engine = "local",
    run: Run = None,
    sample: Sample = "100%",
    ranks: Ranks = 1,
    no_prefect: Annotated[bool, Parameter(negative=(), help="Call the same functions without Prefect.")] = False,
    json: Json = False,
) -> None:
    """Run a recipe from raw text to the end of its last stage, and sum it up."""
    from pipelines.dedup_report import print_dedup
    from pipelines.progress import reporter
    from pipelines.state import lake_status
    from pipelines.summary import print_summary

    parameters = read_parameters(recipe, lake, changes, sample, workers=workers, engine=engine, run=run, ranks=ranks)
    console = tables.console(stderr=json)
    loaded = parameters.load()
    name = parameters.run_name(loaded)
    if no_prefect:
        from pipelines.run import run_curriculum

        with reporter(console) as progress:
            run_curriculum(parameters, progress, tables.speaker(console))
    else:
        from pipelines.embedded import run_under_prefect

        run_under_prefect(parameters, console)
    print_dedup(parameters.root, loaded, console)
    show(lake_status(parameters.root), json, lambda status, console: print_summary(parameters.root, name, status["sources"], console))


def curate(
    recipe: Recipe,
    /,
    *,
    lake: Lake = LAKE,
    changes: Changes = (),
    workers: Workers = 0,
    engine: Engine = "local",
    sample: Sample = "100%",
    json: Json = False,
) -> None:
    """Read, filter, deduplicate, hold out, tokenise and pack, without training."""
    from pipelines.dedup_report import print_dedup
    from pipelines.progress import reporter
    from pipelines.run import curate_lake
    from pipelines.state import lake_status, print_sources

    parameters = read_parameters(recipe, lake, changes, sample, workers=workers, engine=engine)
    loaded = parameters.load()
    with reporter(tables.console(stderr=json)) as progress:
        curate_lake(parameters, loaded, progress)
    sources = lake_status(parameters.root)["sources"]
    show(sources, json, print_sources)
    print_dedup(parameters.root, loaded, tables.console(stderr=json))


def stage(
    recipe: Recipe,
    name: Annotated[str, Parameter(help="Stage name.")],
    /,
    *,
    lake: Lake = LAKE,
    changes: Changes = (),
    run: Run = None,
    sample: Sample = "100%",
    write: Annotated[
        bool,
        Parameter(
            name=["--write"], negative=(), help="Also write its rows in the order in which they are trained on, to be read in sequence."
        ),
    ] = False,
) -> None:
    """Plan one stage of a curated lake within the budgets and write what its trainer reads."""
    from pipelines.parameters import stage_position
    from pipelines.run import lay_out, plan_stage

    parameters = read_parameters(recipe, lake, changes, sample, run=run)
    loaded = parameters.load()
    settings = plan_stage(parameters, loaded, stage_position(loaded, name))
    print(parameters.root / settings.folder / "stage.json")
    if write:
        print(f"{parameters.root / settings.folder / 'written'}: {lay_out(parameters.root, settings):,} rows")


def train(
    recipe: Recipe,
    name: Annotated[str, Parameter(help="Stage name.")],
    /,
    *,
    lake: Lake = LAKE,
    changes: Changes = (),
    run: Run = None,
    sample: Sample = "100%",
    ranks: Ranks = 1,
    dry_run: Annotated[bool, Parameter(negative=(), help="Only build it and do one step; report memory by part and time.")] = False,
    json: Json = False,
) -> None:
    """Train one planned stage to its end; a stage that was interrupted resumes."""
    from dataclasses import asdict

    from pipelines.run import prepared_stage, train_stage

    parameters = read_parameters(recipe, lake, changes, sample, run=run, ranks=ranks)
    settings = prepared_stage(parameters, parameters.load(), name)
    if dry_run:
        from pipelines.trainer import dry_run as try_stage

        text = try_stage(parameters.root, settings, ranks)
        return show({"stage": name, "report": text.splitlines()}, json, lambda _, console: tables.speaker(console)(text))

    def tell(_: object, console: Console) -> None:
        console.print(f"{name}: {outcome.reason}: {outcome.detail}", highlight=False, soft_wrap=True)

    outcome = train_stage(parameters, settings, tables.speaker(tables.console(stderr=json)))
    return show({"stage": name, **asdict(outcome)}, json, tell)


def rewind(
    run: Annotated[str, Parameter(help="Run name.")],
    /,
    *,
    to: Annotated[int, Parameter(name=["--to"], help="Step to go on from; there must be a checkpoint before it.")],
    exclude: Annotated[
        tuple[str, ...],
        Parameter(
            name=["--exclude"],
            negative=(),
            consume_multiple=False,
            help="Steps (120..140) or a document whose rows are left out: its own id, a doc_id or its beginning; may be repeated.",
        ),
    ] = (),
    lake: Lake = LAKE,
    json: Json = False,
) -> None:
    """Go back to a checkpoint of a run, and leave out the rows of some steps or documents from there on."""
    from dataclasses import asdict

    from pipelines.rewind import parse_exclusions, print_rewound, rewind

    show(asdict(rewind(open_lake(lake), run, to, *parse_exclusions(exclude))), json, print_rewound)


def ablate(
    a: Recipe,
    b: Annotated[Path, Parameter(help="The recipe to compare it with.")],
    /,
    *,
    neutral: Annotated[Path, Parameter(help="A recipe whose held-out documents belong to neither.")],
    seeds: Annotated[int, Parameter(help="Trainings of each recipe; at least 3.")] = 3,
    tokens: Annotated[
        int | None, Parameter(help="Train each on so many, sources in proportion, instead of by the recipes' own stages.")
    ] = None,
    lake: Annotated[str, Parameter(name=["--lake"], help="A lake of the comparison's own.")] = "ablation",
    changes: Changes = (),
    workers: Workers = 0,
    json: Json = False,
) -> None:
    """Train small models by two recipes at equal compute, and compare them on what either and a third one held out."""
    from pipelines.ablation import ablate
    from pipelines.ablation_picture import print_ablation
    from pipelines.progress import reporter

    both = [read_parameters(recipe, lake, changes, "100%", workers=workers) for recipe in (a, b)]
    console = tables.console(stderr=json)
    say = tables.speaker(console)
    with reporter(console) as progress:
        found = ablate(both, read_parameters(neutral, lake, (), "100%", workers=workers), seeds, tokens, progress, say)
    show(found, json, print_ablation)
    place = address_of(open_lake(lake))
    say(f"Table, picture and numbers are in {place}/ablation; SQL: gristmill sql 'FROM ablations' --lake {place}")


def score(
    output: Annotated[Path, Parameter(name=["--output", "-o"], help="Parquet file to write.")],
    *,
    run: Annotated[str | None, Parameter(help="Run whose newest model scores; needed only where the lake has several.")] = None,
    lake: Lake = LAKE,
    json: Json = False,
) -> None:
    """Measure the loss of a run's model on every document, for curricula and rules by it."""
    from pipelines.generate import only_run
    from pipelines.progress import counted
    from pipelines.score import print_scores, score_documents

    root = open_lake(lake)
    with counted("score", "rows", json) as tell:
        found = score_documents(root, run or only_run(root), output, tell)
    show(found, json, print_scores)


def generate(
    *,
    prompt: Annotated[str, Parameter(help="Text to go on from; empty begins a document.")] = "",
    tokens: Annotated[int, Parameter(help="Most tokens to add.")] = 128,
    temperature: Annotated[float, Parameter(help="0 takes the likeliest token each time.")] = 0.8,
    top_k: Annotated[int, Parameter(help="Sample among this many likeliest tokens; 0 among all.")] = 40,
    seed: Annotated[int, Parameter(help="The same seed gives the same text.")] = 0,
    lake: Lake = LAKE,
    run: Annotated[str | None, Parameter(help="Run name; needed only where the lake has several.")] = None,
) -> None:
    """Let the newest model of a run write."""
    from pipelines.generate import generate_text, only_run

    text = generate_text(open_lake(lake), run or only_run(open_lake(lake)), prompt, tokens, temperature, top_k, seed)
    print(tables.printable(text) if sys.stdout.isatty() else text)
