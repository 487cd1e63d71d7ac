"""Commands that keep a lake in order."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from pipelines.commands.options import LAKE, Json, Lake, show
from schemas.store import open_lake


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
    from pipelines.progress import counted

    with counted("purge", "shards", json) as tell:
        found = forget(open_lake(lake), documents, file, dry_run, tell)
    show(found, json, print_forgotten)


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

    from pipelines.progress import counted
    from pipelines.snapshots import collect_garbage, garbage_line, keep_snapshot, list_snapshots, print_snapshots, use_snapshot

    root = open_lake(lake)
    if keep is not None:
        keep_snapshot(root, keep)
    if use is not None:
        with counted("checksums", "files", json) as tell:
            use_snapshot(root, use, tell)
    if not collect:
        return show(list_snapshots(root), json, print_snapshots)
    found = collect_garbage(root, days, dry_run)
    return show(asdict(found), json, lambda _, console: console.print(garbage_line(found, days, dry_run), highlight=False))


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
    json: Json = False,
) -> None:
    """Write curated text (jsonl, parquet, hf), token rows (npy, bin) or a trained model (hf-model) for use elsewhere."""
    from pipelines.export import UNITS, export, format_of
    from pipelines.progress import counted

    form = format or format_of(target)
    with counted("export", "lots" if form in ("npy", "bin") else "shards", json) as tell:
        count = export(open_lake(lake), target, form, state, force, run=run, checkpoint=checkpoint, tell=tell)
    found = {"target": str(target), "format": form, UNITS[form]: count}
    show(found, json, lambda _, console: console.print(f"{target}: {count:,} {UNITS[form]}", highlight=False, soft_wrap=True))
