"""What the report shows of training runs: plans, curves averaged over steps to a bounded number of points, the ledger's facts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipelines.catalog import Connection, ask
from pipelines.plan_view import committed_lines

Json = Any

MOST_RUNS = 4
POINTS = 400
"""Points of a curve: neighbouring steps are averaged to get there."""

_EXTENT = "SELECT min(step) AS first, max(step) AS last FROM metrics WHERE run = ? AND status = 'seen'"

_CURVES = """
SELECT name, stage, position, (step - $first) // $width * $width + $first AS step, avg(value) AS value
FROM metrics WHERE run = $run AND status = 'seen' AND isfinite(value)
    AND (name IN ('loss', 'lr', 'grad_norm', 'tokens_per_second', 'heldout') OR name LIKE 'loss/%' OR name LIKE 'heldout/%')
GROUP BY ALL ORDER BY name, step, position
"""

_BOUNDARIES = """
SELECT stage, position, min(step) AS first_step, max(step) AS last_step FROM metrics
WHERE run = ? AND status = 'seen' GROUP BY ALL ORDER BY position
"""

_EVENTS = """
SELECT stage, attempt, step, kind, detail FROM events WHERE run = ? AND kind NOT IN ('checkpoint', 'finished')
ORDER BY step, attempt, position LIMIT 100
"""

_SHARES = """
SELECT segment, segments.stage, first_step, first_step + (end_row - first_row) // batch AS end_step, source,
     replayed, share, shares.rows, why
FROM shares JOIN segments USING (run, segment) WHERE run = ? AND end_row > first_row ORDER BY segment, source LIMIT 2000
"""

_LEDGER = """
SELECT status, count(*) AS rows, count(DISTINCT step) AS steps FROM ledger WHERE run = ? GROUP BY ALL ORDER BY status
"""


def runs_data(db: Connection, root: Path) -> list[dict[str, Json]]:
    """The lake's runs, the one that wrote last first, at most ``MOST_RUNS``."""
    folders = [path.parent for path in root.glob("runs/*/segments.json")]
    newest = sorted(folders, key=lambda folder: (-(folder / "segments.json").stat().st_mtime_ns, folder.name))
    return [_run(db, folder.name) for folder in newest[:MOST_RUNS]]


def _run(db: Connection, run: str) -> dict[str, Json]:
    extent = ask(db, _EXTENT, run)[0]
    curves: list[dict[str, Json]] = []
    width = 1
    if extent["first"] is not None:
        width = max(1, -(-(extent["last"] + 1 - extent["first"]) // POINTS))
        cursor = db.execute(_CURVES, {"run": run, "first": extent["first"], "width": width})
        names = [column[0] for column in cursor.description or ()]
        curves = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    return {
        "run": run,
        "averaged": width,
        "curves": curves,
        "stages": ask(db, "SELECT * FROM stages WHERE run = ? ORDER BY position", run),
        "boundaries": ask(db, _BOUNDARIES, run),
        "plan": committed_lines(db, run),
        "shares": ask(db, _SHARES, run),
        "events": ask(db, _EVENTS, run),
        "epochs": ask(db, "FROM epochs_by_source() WHERE run = ?", run),
        "ledger": ask(db, _LEDGER, run),
    }
