"""Goes back to a checkpoint of a run, and leaves rows out from there on.

Failure model. The branch is a function of the run's segments and of what is asked, and is appended to them before anything else changes;
asked again it is found there, so that the same command completes a rewind that was killed. Nothing is deleted: what the later stages were
planned with and how they ended is set aside under names with ``void-``, their rows stay in the ledger as void, and the checkpoint gets a
second name (hard links) by which the next process finds it first.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from rich.console import Console

from curate.budget import States
from curate.lots import LotTable, read_lots
from curate.stage import plan_rows, run_folder, segments_path, stage_folder
from pipelines.branch import Rows, branch
from pipelines.catalog import ask, open_catalog
from pipelines.step_range import step_range
from pipelines.why import find_document
from schemas.errors import GristmillError
from schemas.manifest import read_snapshot
from schemas.recipe import Recipe
from schemas.segments import Segment, allotments, read_segments, segments_hash, write_segments
from schemas.settings import StageSettings, read_stage
from schemas.store import duplicate, lock, publish, publish_json, read_json, remove, rename, sync_folder
from schemas.strict import NAME
from schemas.tables import EVENTS
from train.attempts import next_attempt
from train.skips import ASKED

_CHECKPOINT = re.compile(r"a(\d+)-s(\d+)")
_SEEN_LAST = """
SELECT DISTINCT lot, "row" FROM ledger WHERE run = ? AND step BETWEEN ? AND ? QUALIFY attempt = max(attempt) OVER (PARTITION BY step)
"""


@dataclass(frozen=True)
class Rewound:
    """What a rewind did: the stage it went back into, the step it goes on from, the rows excluded, and how many steps became void."""

    run: str
    stage: str
    step: int
    excluded_rows: int
    void_steps: int
    rows: int


def rewind(root: Path, run: str, to: int, steps: Sequence[tuple[int, int]] = (), documents: Sequence[str] = ()) -> Rewound:
    """Go back to the checkpoint before a step, on a new branch of the run.

    Args:
        root: the lake.
        run: run name.
        to: step that the run goes on from.
        steps: ranges (first, last) of steps whose rows are never to be used again.
        documents: documents whose rows are never to be used again: their own ids, or their doc_ids in hex or beginnings of these.

    Raises:
        GristmillError: no such run, step or checkpoint; a name of no document or of several; or the run is being trained.
    """
    record = root / run_folder(run) / "recipe.json"
    if not re.fullmatch(NAME, run) or not record.is_file():
        known = ", ".join(path.parent.name for path in sorted(root.glob("runs/*/recipe.json"))) or "none"
        raise GristmillError(f"no run {run!r} in this lake", where=str(root), fix=f"it has: {known}")
    recipe = Recipe.model_validate(read_json(record)["recipe"])
    with lock(root / run_folder(run) / "train.lock", f"rewinding to step {to}"), lock(root / ".lock", "plan"):
        return _rewind(root, recipe, run, to, _rows_to_exclude(root, run, steps, documents))


def _rewind(root: Path, recipe: Recipe, run: str, to: int, excluded: Rows) -> Rewound:
    every = read_segments(root / segments_path(run))
    position = _stage_of(every, recipe, to, run)
    folder = stage_folder(run, recipe, position)
    settings = _prepared(root / folder)
    checkpoint = _checkpoint(root, folder, settings, every, to)
    table = read_lots(root, read_snapshot(root))
    before, segments, states = branch(root, recipe, table, settings, every, to, excluded)
    if len(before) == len(every):
        write_segments(root, segments_path(run), [*every, *segments])
    attempt = next_attempt(root / run_folder(run))
    void = _last_step(root, run) + 1 - to
    for later in range(position + 1, len(recipe.stages)):
        _set_aside(root / stage_folder(run, recipe, later), attempt, ("stage.json", "outcome.json", "plan.parquet", "checkpoints"))
    _set_aside(root / folder, attempt, ("outcome.json",) if checkpoint else ("outcome.json", "checkpoints"))
    if checkpoint is not None:
        _name_again(checkpoint, checkpoint.parent / f"a{attempt:04d}-s{to:08d}")
    count = sum(len(rows) for rows in excluded.values())
    _publish_event(root, folder, attempt, to, {"excluded_rows": count, "void_steps": void})
    _publish_stage(root, table, settings, before, segments, states)
    remove(root / folder / ASKED)
    return Rewound(run, settings.stage, to, count, max(0, void), sum(segment.rows for segment in segments))


def _stage_of(every: Sequence[Segment], recipe: Recipe, to: int, run: str) -> int:
    """Place of the stage that holds a step."""
    names = [stage.name for stage in recipe.stages]
    for segment in reversed(every):
        if segment.first_step <= to:
            if to < segment.first_step + segment.steps:
                return names.index(segment.stage)
            break
    last = every[-1].first_step + every[-1].steps if every else 0
    raise GristmillError(f"run {run!r} has no step {to}", where="--to", fix=f"its plan has steps 0 to {last}")


def _prepared(folder: Path) -> StageSettings:
    path = folder / "stage.json"
    if not path.is_file():
        raise GristmillError(
            "an earlier rewind set this stage aside, and it is not planned again yet", where=str(folder), fix="train on first"
        )
    return read_stage(path)


def _checkpoint(root: Path, folder: str, settings: StageSettings, every: Sequence[Segment], to: int) -> Path | None:
    """The newest checkpoint before a step; None at the stage's beginning, which starts from where the stage before ended."""
    if to == every[settings.first_segment].first_step:
        return None
    parent = root / folder / "checkpoints"
    names = sorted(path.name for path in parent.iterdir() if _CHECKPOINT.fullmatch(path.name)) if parent.is_dir() else []
    found = [name for name in names if int(name.rpartition("s")[2]) == to]
    if not found:
        first = every[settings.first_segment].first_step
        there = ", ".join(str(step) for step in sorted({first, *(int(name.rpartition("s")[2]) for name in names)}))
        raise GristmillError(
            f"there is no checkpoint before step {to}",
            where=f"stage {settings.stage!r} of run {settings.run!r}",
            fix=f"go back to one of the steps {there}; training.keep_last keeps more of them",
        )
    return parent / found[-1]


def _rows_to_exclude(root: Path, run: str, steps: Sequence[tuple[int, int]], documents: Sequence[str]) -> dict[str, list[int]]:
    """Rows that the steps saw when they last ran, and those that hold any piece of the documents, by lot."""
    found: dict[str, set[int]] = {}
    with open_catalog(root, "rows") as db:
        for first, last in steps:
            rows = ask(db, _SEEN_LAST, run, first, last)
            if not rows:
                raise GristmillError(f"the ledger of run {run!r} has no rows of steps {first} to {last}", where="--exclude")
            for row in rows:
                found.setdefault(row["lot"], set()).add(row["row"])
        for name in documents:
            doc = find_document(db, root, read_snapshot(root), name, "--exclude")
            rows = ask(db, 'SELECT DISTINCT lot, "row" FROM rows WHERE doc_id = ?', doc)
            if not rows:
                raise GristmillError(f"no packed row holds document {doc}", where="--exclude", fix=f"`gristmill why {doc}` tells why")
            for row in rows:
                found.setdefault(row["lot"], set()).add(row["row"])
    return {lot: sorted(rows) for lot, rows in sorted(found.items())}


def _last_step(root: Path, run: str) -> int:
    with open_catalog(root) as db:
        return int(ask(db, "SELECT coalesce(max(step), -1) AS last FROM ledger WHERE run = ? AND status = 'seen'", run)[0]["last"])


def _set_aside(folder: Path, attempt: int, names: Iterable[str]) -> None:
    for name in names:
        path = folder / name
        if path.exists():
            stem, dot, suffix = name.partition(".")
            rename(path, folder / f"{stem}.void-{attempt:04d}{dot}{suffix}")


def _name_again(checkpoint: Path, name: Path) -> None:
    """Give a checkpoint a second name, the whole folder at once."""
    if not name.is_dir():
        staging = name.parent / f".tmp-rewind-{name.name}"
        shutil.rmtree(staging, ignore_errors=True)
        shutil.copytree(checkpoint, staging, copy_function=os.link)
        duplicate(checkpoint, name)
        staging.rename(name)
        sync_folder(name.parent)


def _publish_event(root: Path, folder: str, attempt: int, step: int, detail: Mapping[str, int]) -> None:
    line = {"attempt": attempt, "step": step, "kind": "rewound", "detail": json.dumps(detail, sort_keys=True)}
    rows = pa.Table.from_pylist([line], schema=EVENTS)
    name = f"{folder}/events/a{attempt:04d}-s{step:08d}-{step:08d}.parquet"
    publish(root, name, lambda path: pq.write_table(rows, path, compression="zstd"), 1)


def _publish_stage(
    root: Path, table: LotTable, settings: StageSettings, before: Sequence[Segment], added: Sequence[Segment], states: States
) -> None:
    """Publish the stage with its branch: its rows of the table ``plans``, then its resolved file."""
    every = [*before, *added]
    name = f"{settings.folder}/plan.parquet"
    old = pq.read_table(root / name, partitioning=None)
    new = plan_rows(settings.run, settings.position, len(before), added, states)
    rows = pa.concat_tables([old.filter(pc.less(old.column("segment"), len(before))), new])
    publish(root, name, lambda path: pq.write_table(rows, path, compression="zstd"), rows.num_rows)
    named = {a.lot for segment in every[settings.first_segment :] for a in allotments(segment)}
    lots = tuple(table.lots[line["lot"]] for line in table.lines if line["lot"] in named)
    changed = replace(settings, segments_hash=segments_hash(every), last_segment=len(every) - 1, lots=lots)
    publish_json(root, f"{settings.folder}/stage.json", asdict(changed))


def parse_exclusions(values: Iterable[str]) -> tuple[list[tuple[int, int]], list[str]]:
    """Ranges of steps (``120..140``) and names of documents among what is to be excluded."""
    steps, documents = [], []
    for value in values:
        if found := step_range(value, "--exclude"):
            steps.append(found)
        elif re.fullmatch(r"\d{1,7}(\s*[-:.,]+\s*\d{1,7})?", value):  # steps written otherwise are not taken for a document's own id
            hint = "write 120..140, and 120..120 for one step; a document is also named by its doc_id"
            raise GristmillError(f"{value!r} is no range of steps", where="--exclude", fix=hint)
        else:
            documents.append(value)
    return steps, documents


def print_rewound(done: Mapping[str, Any], console: Console) -> None:
    """Tell what a rewind did: a ``Rewound`` as a mapping."""
    excluded = f"; {done['excluded_rows']:,} rows are never used again" if done["excluded_rows"] else ""
    console.print(
        f"{done['run']} goes on from step {done['step']}, with {done['rows']:,} rows to the end of stage {done['stage']}{excluded}. "
        f"{done['void_steps']:,} steps are void. Go on with the command that trains it.",
        highlight=False,
        soft_wrap=True,
    )
