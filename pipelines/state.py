"""What a lake holds and how far its runs are, for people and as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console

from pipelines.catalog import Connection, ask, open_catalog
from pipelines.tables import table
from pipelines.trainer import live_trainer
from schemas.segments import read_segments, stage_segments
from schemas.settings import StageSettings, read_stage
from schemas.store import address_of

Json = Any


def lake_status(root: Path) -> dict[str, Json]:
    """Sources, tables and stages of a lake.

    Raises:
        LakeError: there is no lake.
    """
    with open_catalog(root) as db:
        snapshot = db.execute("SELECT snapshot FROM catalog_info").fetchone()
        return {
            "lake": address_of(root),
            "snapshot": (snapshot or [""])[0] or None,
            "sources": ask(db, "SELECT * FROM summary_sources"),
            "stages": [_stage_status(db, root, path) for path in sorted(root.glob("runs/*/*-*/stage.json"), key=_place)],
        }


def _place(path: Path) -> tuple[str, int]:
    return path.parent.parent.name, int(path.parent.name.partition("-")[0])


def _stage_status(db: Connection, root: Path, path: Path) -> dict[str, Json]:
    settings: StageSettings = read_stage(path)
    run, position, stage = settings.run, settings.position, settings.stage
    here = (run, position)
    ended = ask(db, "SELECT * FROM stages WHERE run = ? AND position = ?", *here)
    first_step, steps = _steps(root, settings)
    last = ask(db, _LAST_LOSS, *here)
    process = live_trainer(root / settings.folder)
    state = ended[0]["reason"] if ended else "training" if process is not None else "interrupted" if last else "prepared"
    return {
        "run": run,
        "position": position,
        "stage": stage,
        "state": state,
        "detail": ended[0]["detail"] if ended else f"process {process}" if process is not None else "",
        "steps_done": last[0]["step"] + 1 - first_step if last else 0,
        "steps_planned": steps,
        "loss": last[0]["value"] if last else None,
    }


_LAST_LOSS = """
SELECT step, value FROM metrics WHERE run = ? AND position = ? AND name = 'loss' AND status = 'seen' ORDER BY step DESC LIMIT 1
"""


def _steps(root: Path, settings: StageSettings) -> tuple[int, int]:
    segments = stage_segments(read_segments(root / settings.segments), settings)
    return segments[0].first_step, segments[-1].first_step + segments[-1].steps - segments[0].first_step


def print_status(status: dict[str, Json], console: Console) -> None:
    """Print a lake's status for people."""
    console.print(f"Lake [bold]{status['lake']}[/bold], snapshot {status['snapshot'] or 'none yet'}", highlight=False)
    print_sources(status["sources"], console)
    if not status["stages"]:
        console.print("No stage has been prepared.")
        return
    stages = table("Stages", ("run", "stage", "state"), ("steps", "loss"), ("detail",))
    for stage in status["stages"]:
        loss = "-" if stage["loss"] is None else f"{stage['loss']:.3f}"
        steps = f"{stage['steps_done']:,} of {stage['steps_planned']:,}"
        stages.add_row(stage["run"], stage["stage"], stage["state"], steps, loss, stage["detail"])
    console.print(stages)


def print_sources(sources: list[dict[str, Json]], console: Console) -> None:
    """Print records, bytes and what became of them, by source."""
    if not sources:
        return
    names = ("in", "MB in", "set aside", "dropped", "duplicates", "held out", "kept", "MB kept", "tokens")
    shown = table("Documents by source (duplicates are among the dropped)", ("source",), names)
    counted = ("records_in", "bytes_in", "quarantined", "dropped", "duplicates", "held_out", "kept", "bytes_kept", "tokens")
    totals = {"source": "all"} | {name: sum(source[name] for source in sources) for name in counted}
    for source in [*sources, totals] if len(sources) > 1 else sources:
        if source is totals:
            shown.add_section()
        cells = [f"{source[name] / 1e6:,.2f}" if name.startswith("bytes") else f"{source[name]:,}" for name in counted]
        shown.add_row(source["source"], *cells)
    console.print(shown)
