"""Thresholds by language as data: the table that goes with the rule set ``fineweb2``."""

from __future__ import annotations

import csv
from pathlib import Path

TABLE = Path(__file__).with_name("fineweb2.csv")


def thresholds() -> dict[str, tuple[tuple[str, float], ...]]:
    """By reason, the threshold of each language (Penedo et al. 2025, FineWeb2; the published configurations of 23 large languages)."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    reasons = [name for name in rows[0] if name != "language"]
    return {reason: tuple((row["language"], float(row[reason])) for row in rows) for reason in reasons}
