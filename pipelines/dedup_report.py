"""What deduplication says of itself after a run: its parameters, how likely a pair is compared, and its alarms."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.text import Text

from curate.alarms import describe
from curate.dedup.join import probability_curve
from curate.dedup.partitions import SPARE_BITS
from curate.deduplicate import sketch_settings
from pipelines.catalog import ask, open_catalog
from schemas.curation import NearDedup
from schemas.recipe import Recipe


def print_dedup(root: Path, recipe: Recipe, console: Console) -> None:
    """Print the near-duplicate search's parameters, what ``dedup.check`` found, and alarms."""
    if (near := recipe.dedup.near) is not None:
        console.print(parameters_line(near), highlight=False)
    with open_catalog(root) as db:
        estimates = ask(db, "SELECT count(*) AS pairs, avg(estimate - exact) AS ours, avg(datasketch - exact) AS theirs FROM estimates")[0]
        alarms = ask(db, "SELECT * FROM alarms ORDER BY generation, source, kind, duplicates DESC")
    if estimates["pairs"]:
        means = f"mean error {estimates['ours']:+.4f}, datasketch's {estimates['theirs']:+.4f}"
        console.print(f"{estimates['pairs']:,} pairs checked against exact similarities: {means}", highlight=False)
    for alarm in alarms:
        console.print(Text(f"alarm: {describe(alarm)}", style="bold red"), soft_wrap=True)


def parameters_line(near: NearDedup) -> str:
    """Sketch, bands, and the probability that a pair at and around the threshold shares a band and so is compared."""
    settings = sketch_settings(near)
    around = sorted({max(0.05, near.threshold - 0.1), near.threshold, min(1.0, near.threshold + 0.1)})
    curve = ", ".join(f"{s:.2f}: {p:.4f}" for s, p in zip(around, probability_curve(settings, around), strict=True))
    keys = f"keys of {settings.key_bits} bits (one more for each doubling beyond {1 << settings.key_bits - SPARE_BITS:,} documents)"
    sketch = f"{near.kind}, {settings.k} entries, {settings.bands} bands of {settings.rows}, {keys}, shingles of {settings.shingle} words"
    return f"Near-duplicates from {near.threshold:.2f}: {sketch}, {near.policy}; a pair is compared with probability ({curve})"
