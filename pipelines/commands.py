"""The commands of ``gristmill``: each reads its options and calls the module that does the work, imported when the command runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

from cyclopts import Parameter
from rich.console import Console

from pipelines import tables

if TYPE_CHECKING:
    from pipelines.parameters import RunParameters

Lake = Annotated[Path, Parameter(name=["--lake"], env_var="GRISTMILL_LAKE", help="The lake's folder.")]
Changes = Annotated[
    tuple[str, ...],
    Parameter(name=["--set"], negative=(), consume_multiple=False, help="Change a field of the recipe: --set a.b=c; may be repeated."),
]
Workers = Annotated[int, Parameter(name=["--workers"], help="Shards worked on at once; 0 is one for each core.")]
Engine = Annotated[Literal["local", "dask"], Parameter(name=["--engine"], help="Where shards are worked on: here, or on a Dask cluster.")]
Run = Annotated[str | None, Parameter(name=["--run"], help="Name of the training run; the recipe's own name by default.")]
Sample = Annotated[str, Parameter(name=["--sample"], help="Share of the documents to run on, for example 1%.")]
Ranks = Annotated[int, Parameter(name=["--ranks"], help="Training processes; more than one are started by torchrun.")]
Json = Annotated[bool, Parameter(name=["--json"], negative=(), help="Print JSON.")]
Recipe = Annotated[Path, Parameter(help="The recipe's YAML file.")]

T = TypeVar("T")
LAKE = Path("lake")


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
) -> None:
    """Run a recipe from raw text to the end of its last stage, and sum it up."""
    from pipelines.dedup_report import print_dedup
    from pipelines.progress import reporter
    from pipelines.summary import print_summary

    parameters = _parameters(recipe, lake, changes, sample, workers=workers, engine=engine, run=run, ranks=ranks)
    console = tables.console()
    name = parameters.run_name(parameters.load())
    if no_prefect:
        from pipelines.run import run_curriculum

        with reporter(console) as progress:
            run_curriculum(parameters, progress, tables.speaker(console))
    else:
        from pipelines.embedded import run_under_prefect

        run_under_prefect(parameters, console)
    print_dedup(parameters.root, parameters.load(), console)
    print_summary(parameters.root, name, parameters.recipe, console)


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

    parameters = _parameters(recipe, lake, changes, sample, workers=workers, engine=engine)
    with reporter(tables.console(stderr=json)) as progress:
        curate_lake(parameters, parameters.load(), progress)
    sources = lake_status(parameters.root)["sources"]
    _show(sources, json, print_sources)
    print_dedup(parameters.root, parameters.load(), tables.console(stderr=json))


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
    from pipelines.run import plan_stage

    parameters = _parameters(recipe, lake, changes, sample, run=run)
    loaded = parameters.load()
    settings = plan_stage(parameters, loaded, stage_position(loaded, name))
    print(parameters.root / settings.folder / "stage.json")
    if write:
        from train.stage import Stage
        from train.written import write_rows

        print(f"{parameters.root / settings.folder / 'written'}: {write_rows(Stage(parameters.root, settings)):,} rows")


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
) -> None:
    """Train one planned stage to its end; a stage that was interrupted resumes."""
    from pipelines.run import prepared_stage, train_stage

    parameters = _parameters(recipe, lake, changes, sample, run=run, ranks=ranks)
    console = tables.console()
    if dry_run:
        from pipelines.trainer import dry_run as try_stage

        return print(try_stage(parameters.root, prepared_stage(parameters, parameters.load(), name), ranks))
    outcome = train_stage(parameters, prepared_stage(parameters, parameters.load(), name), tables.speaker(console))
    console.print(f"{name}: {outcome.reason}: {outcome.detail}", highlight=False, soft_wrap=True)
    return None


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
            help="Steps (120..140) or a doc_id whose rows are left out; may be repeated.",
        ),
    ] = (),
    lake: Lake = LAKE,
    json: Json = False,
) -> None:
    """Go back to a checkpoint of a run, and leave out the rows of some steps or documents from there on."""
    from dataclasses import asdict

    from pipelines.rewind import parse_exclusions, print_rewound, rewind

    _show(asdict(rewind(lake.absolute(), run, to, *parse_exclusions(exclude))), json, print_rewound)


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
    lake: Annotated[Path, Parameter(name=["--lake"], help="A lake of the comparison's own.")] = Path("ablation"),
    changes: Changes = (),
    workers: Workers = 0,
    json: Json = False,
) -> None:
    """Train small models by two recipes at equal compute, and compare them on what either and a third one held out."""
    from curate.step import Silent
    from pipelines.ablation import ablate
    from pipelines.ablation_picture import print_ablation

    both = [_parameters(recipe, lake, changes, "100%", workers=workers) for recipe in (a, b)]
    say = tables.speaker(tables.console(stderr=json))
    found = ablate(both, _parameters(neutral, lake, (), "100%", workers=workers), seeds, tokens, Silent(), say)
    _show(found, json, print_ablation)
    say(f"Table, picture and numbers are in {lake / 'ablation'}; SQL: gristmill sql 'FROM ablations' --lake {lake}")


def score(
    output: Annotated[Path, Parameter(name=["--output", "-o"], help="Parquet file to write.")],
    *,
    run: Annotated[str | None, Parameter(help="Run whose newest model scores; needed only where the lake has several.")] = None,
    lake: Lake = LAKE,
    json: Json = False,
) -> None:
    """Measure the loss of a run's model on every document, for curricula and rules by it."""
    from rich.progress import Progress

    from pipelines.generate import only_run
    from pipelines.score import print_scores, score_documents

    root = lake.absolute()
    with Progress(console=tables.console(stderr=True), transient=True) as bar:
        task = bar.add_task("rows", total=None)
        found = score_documents(root, run or only_run(root), output, lambda done, total: bar.update(task, completed=done, total=total))
    _show(found, json, print_scores)


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

        return prompt(lake.absolute())
    text = query_text(query, file)
    if out is None:
        return run_query(lake.absolute(), text, "json" if json else format)
    print(f"{out}: {save_query(lake.absolute(), text, out):,} rows")
    return None


def why(
    document: Annotated[str, Parameter(help="A doc_id in hex, its beginning, or the record's own id.")],
    /,
    *,
    lake: Lake = LAKE,
    json: Json = False,
) -> None:
    """Tell one document's life: source, signals, verdict, lots, stages, and the steps that saw it."""
    from pipelines.why import life, print_life

    _show(life(lake.absolute(), document), json, print_life)


def status(*, lake: Lake = LAKE, json: Json = False) -> None:
    """Show what the lake holds and how far its runs are."""
    from pipelines.state import lake_status, print_status

    _show(lake_status(lake.absolute()), json, print_status)


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
    watts: Annotated[float, Parameter(help="Power of a GPU.")] = 700.0,
    price: Annotated[float, Parameter(help="Price of a GPU-hour.")] = 2.5,
    json: Json = False,
) -> None:
    """Show what the recipe's stages come to on a curated lake and what they cost, and what the run has committed."""
    from pipelines.estimate import Rates
    from pipelines.plan_view import planned, print_planned
    from schemas.errors import GristmillError

    limits = {"--compute": 1.0 if compute is None else compute, "--tflops": tflops, "--mfu": mfu}
    if low := next((name for name, value in limits.items() if not value > 0), None):
        raise GristmillError("it must be above 0", where=low)
    parameters = _parameters(recipe, lake, changes, sample, run=run)
    loaded = parameters.load()
    rates = Rates(tflops, mfu, rate, watts, price)
    _show(planned(parameters.root, loaded, parameters.run_name(loaded), rates, compute), json, print_planned)


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
    from pipelines.what_if import print_what_if, what_if

    _show(what_if(_parameters(recipe, lake, changes, sample), rule), json, print_what_if)


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

    _show(train_classifier(good, bad, field, output), json, print_classifier)


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

    print(generate_text(lake.absolute(), run or only_run(lake.absolute()), prompt, tokens, temperature, top_k, seed))


def export(
    target: Annotated[Path, Parameter(help="File (jsonl, parquet) or folder (hf, npy, bin, hf-model) to write.")],
    /,
    *,
    format: Annotated[
        Literal["jsonl", "parquet", "hf", "npy", "bin", "hf-model"] | None,
        Parameter(help="By default told by the target's name: .jsonl (.gz, .zst), .parquet, else a Hugging Face datasets folder."),
    ] = None,
    state: Annotated[Literal["kept", "held_out"], Parameter(help="Which documents to write as jsonl or parquet.")] = "kept",
    force: Annotated[bool, Parameter(negative=(), help="Replace what is there.")] = False,
    run: Annotated[str | None, Parameter(help="Run whose model to write; needed only where the lake has several.")] = None,
    checkpoint: Annotated[str | None, Parameter(help="Checkpoint to write, relative to the lake; by default the run's newest.")] = None,
    lake: Lake = LAKE,
) -> None:
    """Write curated text (jsonl, parquet, hf), token rows (npy, bin) or a trained model (hf-model) for use elsewhere."""
    from pipelines.export import UNITS, export, format_of

    form = format or format_of(target)
    count = export(lake.absolute(), target, form, state, force, run=run, checkpoint=checkpoint)
    print(f"{target}: {count:,} {UNITS[form]}")


def init(folder: Annotated[Path, Parameter(help="The project's folder.")] = Path(), /) -> None:
    """Start a project: a recipe, deployments, an automation and a README that run as they are."""
    from pipelines.project import init_project

    for path in init_project(folder):
        print(path)


def stats(*, lake: Lake = LAKE, json: Json = False) -> None:
    """Show what the text is like by source: sizes, drop reasons, duplicate share."""
    from pipelines.stats import lake_stats, print_stats

    _show(lake_stats(lake.absolute()), json, print_stats)


def report(
    *,
    output: Annotated[Path, Parameter(name=["--output", "-o"], help="HTML file to write.")] = Path("report.html"),
    lake: Lake = LAKE,
) -> None:
    """Write what the lake holds and how its training went as one HTML file that needs no network."""
    from pipelines.report import write_report

    print(write_report(lake.absolute(), output))


def ui(
    *,
    port: Annotated[int, Parameter(help="Port of 127.0.0.1; 0 takes any free one.")] = 8421,
    lake: Lake = LAKE,
) -> None:
    """Serve the report live to this machine's browser, with search by document, an SQL box and running stages."""
    from pipelines.report.server import serve

    serve(lake.absolute(), port, lambda line: print(line, flush=True))


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

    _show(diff(place_of(a, lake), place_of(b, lake)), json, print_diff)


def forget(
    documents: Annotated[tuple[str, ...], Parameter(help="doc_ids in hex, records' own ids, or source:id.", negative=())] = (),
    /,
    *,
    file: Annotated[Path | None, Parameter(help="A file of more documents, one a line.")] = None,
    dry_run: Annotated[bool, Parameter(negative=(), help="Change nothing; only tell what holds them.")] = False,
    lake: Lake = LAKE,
    json: Json = False,
) -> None:
    """Take documents out of the lake for good, and list the lots, runs, steps and checkpoints that held them."""
    from pipelines.forget import forget, print_forgotten

    _show(forget(lake.absolute(), documents, file, dry_run), json, print_forgotten)


def snapshot(
    *,
    keep: Annotated[str | None, Parameter(help="Give the current snapshot this name.")] = None,
    use: Annotated[str | None, Parameter(help="Make this snapshot the current one, after checking its files.")] = None,
    collect: Annotated[bool, Parameter(negative=(), help="Delete files that no snapshot and no run names.")] = False,
    days: Annotated[float, Parameter(help="With --collect: leave what is younger, which an interrupted curation goes on from.")] = 7,
    dry_run: Annotated[bool, Parameter(negative=(), help="With --collect: delete nothing; only count.")] = False,
    lake: Lake = LAKE,
    json: Json = False,
) -> None:
    """List the lake's snapshots, name the current one, go back to an earlier one, or collect garbage."""
    from dataclasses import asdict

    from pipelines.snapshots import collect_garbage, garbage_line, keep_snapshot, list_snapshots, print_snapshots, use_snapshot

    root = lake.absolute()
    if keep is not None:
        keep_snapshot(root, keep)
    if use is not None:
        use_snapshot(root, use)
    if not collect:
        return _show(list_snapshots(root), json, print_snapshots)
    found = collect_garbage(root, days, dry_run)
    return _show(asdict(found), json, lambda _, console: console.print(garbage_line(found, days, dry_run), highlight=False))


def doctor(
    *,
    deep: Annotated[bool, Parameter(negative=(), help="Read every file of the snapshot and compare checksums.")] = False,
    lake: Lake = LAKE,
    json: Json = False,
) -> None:
    """Check environment, GPU, disk, locks, unfinished stages and the lake's files; exit code 2 when something is wrong."""
    from pipelines.doctor import BAD, examine, print_findings
    from schemas.errors import GristmillError

    found = examine(lake.absolute(), deep)
    _show(found, json, print_findings)
    if wrong := [line["what"] for line in found if line["state"] == BAD]:
        raise GristmillError(f"something is wrong with: {', '.join(wrong)}", where="doctor")


def schema(path: Annotated[Path, Parameter(help="File to write.")] = Path("schemas/recipe.schema.json"), /) -> None:
    """Write the JSON Schema of recipes, for editors."""
    import json

    from schemas.recipe_file import json_schema

    path.write_text(json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _parameters(recipe: Path, lake: Path, changes: tuple[str, ...], sample: str, **others: object) -> RunParameters:
    from pydantic import ValidationError

    from pipelines.parameters import RunParameters, share
    from schemas.errors import GristmillError

    values = {"recipe": recipe, "lake": lake, "changes": changes, "sample": share(sample), **others}
    try:
        return RunParameters.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        option = f"--{first['loc'][0]}" if first["loc"][0] != "recipe" else "RECIPE"
        raise GristmillError(first["msg"].removeprefix("Value error, "), where=option, fix="gristmill run --help") from error


def _show(value: T, json: bool, show: Callable[[T, Console], None]) -> None:
    """Print a report as JSON or for people."""
    if json:
        import json as codec

        print(codec.dumps(value, ensure_ascii=False, indent=1, default=str))
    else:
        show(value, tables.console())
