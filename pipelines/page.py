"""What a flow run leaves on Prefect's page and in its events: the funnel, the plan, losses, the report, and what others may wait for.

Events: ``dataset.published`` (a new snapshot), ``stage.finished``, ``stage.stopped-early``, ``alarm.<kind>`` (a line of table ``alarms``).
Prefect's database is a view: whatever is shown here is read from the lake, and a lost artifact loses nothing.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from prefect.artifacts import create_image_artifact, create_link_artifact, create_markdown_artifact, create_table_artifact
from prefect.events import emit_event

from curate.alarms import describe
from curate.curation import Curation
from pipelines.catalog import ask, open_catalog
from pipelines.parameters import RunParameters
from pipelines.plan_view import plan_markdown
from pipelines.state import lake_status
from schemas.errors import GristmillError
from schemas.manifest import Snapshot
from schemas.settings import Outcome, StageSettings
from schemas.store import address_of, here

Json = Any

PICTURE = "ablation/results.svg"
_LOSSES = "SELECT step, value FROM metrics WHERE run = ? AND position = ? AND name = 'loss' AND status = 'seen' ORDER BY step"
_WIDTH, _HEIGHT, _MARGIN = 640, 240, 40


def show_curated(settings: RunParameters, snapshot: Snapshot) -> None:
    """The funnel as a table."""
    create_table_artifact(lake_status(settings.root)["sources"], key="funnel", description=f"Documents by source, snapshot {snapshot.id}")


def tell_published(settings: RunParameters, snapshot: Snapshot, inside: str) -> None:
    """Event ``dataset.published``, with the parameters under which ``curriculum`` trains on it as a run of its own.

    Args:
        settings: what was curated.
        snapshot: what came of it.
        inside: the flow that published; nobody need train what ``curriculum`` published.
    """
    train = settings.model_copy(update={"run": settings.run or f"d{snapshot.id[:12]}"})
    payload = {"lake": address_of(settings.root), "train": train.model_dump_json()}
    resource = {"prefect.resource.id": f"gristmill.{'own-' if inside == 'curriculum' else ''}snapshot.{snapshot.id}"}
    emit_event("dataset.published", resource=resource, payload=payload)


def tell_alarms(state: Curation) -> None:
    """An event for each alarm that the newest generation raised, fatal or not."""
    if "alarms" not in state.steps or (path := state.path("alarms", "alarms", len(state.generations) - 1)) is None:
        return
    for row in pq.read_table(here(state.root, path), partitioning=None).to_pylist():
        resource = {"prefect.resource.id": f"gristmill.source.{row['source']}"}
        emit_event(f"alarm.{row['kind']}", resource=resource, payload={"lake": address_of(state.root), "alarm": describe(row)})


def show_plan(root: Path, run: str) -> None:
    """The plan so far as a table."""
    create_markdown_artifact(plan_markdown(root, run), key=key("plan", run), description=f"What run {run} has committed")


def show_stage(root: Path, planned: StageSettings, outcome: Outcome) -> None:
    """A picture of the stage's losses, its held-out losses, and event ``stage.finished`` or ``stage.stopped-early``."""
    with open_catalog(root) as db:
        curve = [(line["step"], line["value"]) for line in ask(db, _LOSSES, planned.run, planned.position)]
    picture = _svg(loss_picture(curve).encode())
    name = f"stage {planned.stage} of run {planned.run}"
    create_image_artifact(picture, key=key("loss-picture", planned.run, planned.stage), description=f"Loss of {name}, nats per token")
    lines = [f"{outcome.reason}: {outcome.detail}", "", "| | loss |", "|-|-:|"]
    lines += [f"| first | {outcome.first_loss:.4f} |", f"| last | {outcome.last_loss:.4f} |"]
    lines += [f"| held out, {source} | {loss:.4f} |" for source, loss in sorted(outcome.heldout.items())]
    create_markdown_artifact("\n".join(lines), key=key("loss", planned.run, planned.stage), description=f"How {name} ended")
    resource = {"prefect.resource.id": f"gristmill.stage.{planned.run}.{planned.stage}"}
    kind = "stage.stopped-early" if outcome.reason == "early_stop" else "stage.finished"
    emit_event(kind, resource=resource, payload={"lake": address_of(root), "reason": outcome.detail, "loss": outcome.last_loss})


def show_report(target: Path) -> None:
    """A link to the report's file."""
    create_link_artifact(target.as_uri(), link_text=str(target), key="report", description="The report, on the worker's machine")


def link_report(root: Path, say: Callable[[str], None]) -> None:
    """Write the report into the lake and link it; where it cannot be written, say why: what was trained is there all the same."""
    from pipelines.report import write_report

    try:
        show_report(write_report(root, root / "report.html"))
    except GristmillError as error:
        say(f"no report: {error}")


def show_ablation(root: Path, found: Json) -> None:
    """What an ablation found: a table of differences, and its picture."""
    create_table_artifact(found["differences"], key="ablation", description=f"Bits per byte of {' and '.join(found['recipes'])}")
    picture = _svg((root / PICTURE).read_bytes())
    create_image_artifact(picture, key="ablation-picture", description="Every seed, and the differences with their intervals")


def key(*parts: str) -> str:
    """An artifact's key: small letters, digits and dashes."""
    return "-".join(parts).replace("_", "-")


def _svg(picture: bytes) -> str:
    return "data:image/svg+xml;base64," + b64encode(picture).decode()


def loss_picture(curve: Sequence[tuple[int, float]]) -> str:
    """Losses by step as an SVG of one line, with the ends of both axes written out."""
    steps, losses = [step for step, _ in curve] or [0], [loss for _, loss in curve] or [0.0]
    wide, high = max(1, steps[-1] - steps[0]), max(losses) - min(losses) or 1.0
    right, bottom = _WIDTH - _MARGIN, _HEIGHT - _MARGIN

    def place(step: int, loss: float) -> str:
        x = _MARGIN + (step - steps[0]) / wide * (right - _MARGIN)
        return f"{x:.1f},{bottom - (loss - min(losses)) / high * (bottom - _MARGIN):.1f}"

    texts = (
        (4, _MARGIN, f"{max(losses):.2f}"),
        (4, bottom, f"{min(losses):.2f}"),
        (_MARGIN, _HEIGHT - 12, f"step {steps[0]}"),
        (right - 40, _HEIGHT - 12, f"step {steps[-1]}"),
    )
    written = "".join(f'<text x="{x}" y="{y}" font-family="sans-serif" font-size="12">{text}</text>' for x, y, text in texts)
    points = " ".join(place(step, loss) for step, loss in curve)
    line = f'<polyline points="{points}" fill="none" stroke="#1f6fb4" stroke-width="2"/>'
    box = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}">'
    return f'{box}<rect width="100%" height="100%" fill="white"/>{line}{written}</svg>'
