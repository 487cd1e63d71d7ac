"""What a finished run prints: what came in and what became of it, the plan, the stages, a sample, and what to try next."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from pipelines.catalog import Connection, ask, open_catalog
from pipelines.plan_view import committed_plan, print_committed
from pipelines.state import print_sources
from pipelines.tables import BLOCKS, table
from schemas.store import address_of

TREND_WIDTH = 16


def print_summary(root: Path, run: str, sources: list[dict[str, Any]], console: Console) -> None:
    """Print the summary of a run.

    Args:
        root: the lake.
        run: run name.
        sources: what came of each source, as ``lake_status`` tells it.
        console: where to.
    """
    print_sources(sources, console)
    with open_catalog(root) as db:
        _print_drops(db, console)
    plan = committed_plan(root, run)
    if plan:
        print_committed(plan, console)
        with open_catalog(root) as db:
            _print_stages(db, run, console)
        _print_sample(root, run, console)
    _print_next(root, plan[0]["run"] if plan else None, console)


def _print_drops(db: Connection, console: Console) -> None:
    rows = db.execute(
        "SELECT outcome, reason, sum(documents)::BIGINT, sum(bytes)::BIGINT FROM summary_funnel WHERE reason IS NOT NULL"
        " GROUP BY ALL ORDER BY outcome DESC, 3 DESC, reason"
    ).fetchall()
    if not rows:
        return
    shown = table("Set aside and dropped, by reason", ("outcome", "reason"), ("documents", "MB"))
    for outcome, reason, documents, size in rows:
        shown.add_row(outcome, reason, f"{documents:,}", f"{size / 1e6:,.2f}")
    console.print(shown)


def _print_stages(db: Connection, run: str, console: Console) -> None:
    numbers = ("steps", "first loss", "last loss", "trend", "held out")
    shown = table("Stages (loss in nats per token)", ("stage",), numbers, ("why it ended",))
    for stage in ask(db, "SELECT * FROM stages WHERE run = ? ORDER BY position", run):
        name, first, last, heldout = stage["stage"], stage["first_loss"], stage["last_loss"], stage["heldout"]
        curve = [line["value"] for line in ask(db, _CURVE, run, stage["position"])]
        steps = ask(db, _STEPS, run, stage["position"])[0]["steps"]
        held = f"{heldout['all']:.3f}" if "all" in heldout else "-"
        why = stage["detail"] or stage["reason"]
        shown.add_row(name, f"{steps:,}", f"{first:.3f}", f"{last:.3f}", trend(curve), held, why)
    console.print(shown)


_CURVE = "SELECT value FROM metrics WHERE run = ? AND position = ? AND name = 'loss' AND status = 'seen' ORDER BY step"
_STEPS = "SELECT count(DISTINCT step) AS steps FROM ledger WHERE run = ? AND position = ? AND status = 'seen'"


def trend(values: list[float]) -> str:
    """A line of blocks, from the highest value to the lowest."""
    if not values:
        return ""
    width = min(TREND_WIDTH, len(values))
    means = [sum(part) / len(part) for i in range(width) if (part := values[i * len(values) // width : (i + 1) * len(values) // width])]
    low, high = min(means), max(means)
    scale = (len(BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(BLOCKS[round((mean - low) * scale)] for mean in means)


def _print_sample(root: Path, run: str, console: Console) -> None:
    from pipelines.generate import generate_text, last_checkpoint

    if last_checkpoint(root, run) is not None:
        text = generate_text(root, run, prompt="", tokens=64)
        console.print(Panel(Text(text.strip()), title="A sample of the model", title_align="left"))


def _print_next(root: Path, run: str | None, console: Console) -> None:
    with open_catalog(root) as db:
        found = [row for query in (_HARDEST, _DUPLICATE, _ANY) for row in db.execute(query).fetchall()]
    document = found[0][0][:12] if found else "DOC"
    lake = [] if root == Path("lake").absolute() else ["--lake", address_of(root)]
    last = ["gristmill", "generate", *lake, "--prompt", "def "] if run else ["gristmill", "export", "curated.jsonl", *lake]
    tries = (
        (["gristmill", "why", document, *lake], "one document's whole life"),
        (
            ["gristmill", "sql", "FROM epochs_by_source()" if run else "FROM funnel()", *lake],
            "the lake in SQL; SHOW TABLES lists its tables",
        ),
        (last, "text from the model" if run else "take the text away"),
    )
    console.print("Try next:", style="bold")
    for command, what in tries:
        console.print(f"  {shlex.join(command)}\n      {what}", markup=False, highlight=False, soft_wrap=True)


_HARDEST = "SELECT doc_id FROM losses WHERE tokens > 0 ORDER BY loss / tokens DESC, doc_id LIMIT 1"
_DUPLICATE = "SELECT doc_id FROM verdicts WHERE reason = 'near_duplicate' ORDER BY doc_id LIMIT 1"
_ANY = "SELECT doc_id FROM verdicts ORDER BY doc_id LIMIT 1"
