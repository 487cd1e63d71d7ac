"""What the report shows, as plain data: all queries of the curated part, bounded in rows whatever the lake's size.

Counts are exact. Histograms of signals are of at most ``SAMPLED_DOCUMENTS`` documents: those whose doc_id, a hash, begins lowest.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipelines.ablation import read_ablation
from pipelines.catalog import Connection, ask, open_catalog
from pipelines.progress import Tell, untold
from pipelines.report.clusters import biggest_clusters, sampled_drops
from pipelines.report.signals import signal_histograms
from pipelines.report.training import MOST_RUNS, runs_data
from pipelines.stats import LANGUAGE_OF
from schemas.store import address_of

Json = Any
Rows = list[dict[str, Json]]

SAMPLED_DOCUMENTS = 200_000
MOST_REASONS = 24
MOST_LANGUAGES = 16

_OUTCOMES = """
SELECT source, CASE WHEN outcome = 'kept' THEN 'kept' WHEN outcome = 'held_out' THEN 'held out'
        WHEN outcome = 'quarantined' THEN 'set aside'
        WHEN reason IN ('url_duplicate', 'exact_duplicate', 'near_duplicate') THEN 'duplicate' ELSE 'dropped' END AS outcome,
    sum(documents)::BIGINT AS documents, sum(bytes)::BIGINT AS bytes
FROM summary_funnel GROUP BY ALL ORDER BY source, outcome
"""

_REASONS = f"""
WITH ranked AS (
    SELECT reason, sum(documents)::BIGINT AS total FROM summary_funnel WHERE reason IS NOT NULL GROUP BY ALL
    ORDER BY total DESC, reason LIMIT {MOST_REASONS}
)
SELECT source, outcome, reason, documents, bytes FROM summary_funnel JOIN ranked USING (reason) ORDER BY total DESC, reason, source, outcome
"""

_LENGTHS = """
SELECT source, floor(log2(greatest(bytes, 1)))::INT AS power, state, count(*) AS documents
FROM verdicts GROUP BY ALL ORDER BY source, power, state
"""

_LANGUAGES = f"""
WITH counted AS (
    SELECT coalesce(language, 'none found') AS language, count(*) AS documents, count(*) FILTER (state = 'kept') AS kept,
        sum(verdicts.bytes)::BIGINT AS bytes
    FROM verdicts JOIN {LANGUAGE_OF} USING (doc_id) GROUP BY ALL
)
SELECT language, documents, kept, bytes, documents / sum(documents) OVER () AS share, kept / nullif(sum(kept) OVER (), 0) AS kept_share
FROM counted ORDER BY documents DESC, language LIMIT {MOST_LANGUAGES}
"""

_CLUSTER_SIZES = """
SELECT floor(log2(members + 1))::INT AS power, count(*) AS clusters, sum(members)::BIGINT AS duplicates
FROM (SELECT kept_doc_id, count(*) AS members FROM clusters GROUP BY ALL) GROUP BY ALL ORDER BY power
"""

_SIMILARITIES = """
SELECT floor(similarity * 50)::INT / 50 AS similarity, count(*) AS pairs
FROM clusters WHERE kind = 'near' GROUP BY ALL ORDER BY similarity
"""

_ALARMS = "SELECT * FROM alarms ORDER BY generation, source, kind, duplicates DESC LIMIT 50"

_KINDS = "SELECT kind, count(*) AS duplicates FROM clusters GROUP BY ALL ORDER BY kind"


def report_data(root: Path, tell: Tell = untold) -> dict[str, Json]:
    """Everything the report shows of a lake; sections that the lake has nothing for are empty.

    Args:
        root: the lake.
        tell: takes how many sections are gathered, and how many there are.

    Raises:
        LakeError: there is no lake.
    """
    with open_catalog(root) as db:
        sources = ask(db, "SELECT * FROM summary_sources")
        judged, share = _sample(db)
        sections: dict[str, Callable[[], Json]] = {
            "outcomes": lambda: ask(db, _OUTCOMES),
            "reasons": lambda: ask(db, _REASONS),
            "lengths": lambda: ask(db, _LENGTHS),
            "languages": lambda: ask(db, _LANGUAGES),
            "signals": lambda: signal_histograms(db, root, share),
            "alarms": lambda: ask(db, _ALARMS),
            "cluster_kinds": lambda: ask(db, _KINDS),
            "cluster_sizes": lambda: ask(db, _CLUSTER_SIZES),
            "similarities": lambda: ask(db, _SIMILARITIES),
            "clusters": lambda: biggest_clusters(db, root),
            "drops": lambda: sampled_drops(db, root),
            "runs": lambda: runs_data(db, root),
            "ablation": lambda: read_ablation(root),
        }
        found: dict[str, Json] = {
            "info": ask(db, "SELECT snapshot, recipe FROM catalog_info")[0] | {"lake": address_of(root)},
            "sources": sources,
            "totals": _totals(sources),
            "sampled": {"documents": judged, "share": share},
            "most_runs": MOST_RUNS,
        }
        for number, (name, gather) in enumerate(sections.items()):
            tell(number, len(sections))
            found[name] = gather()
        return found


def _totals(sources: Rows) -> dict[str, int]:
    names = ("records_in", "quarantined", "dropped", "duplicates", "held_out", "kept", "bytes_in", "bytes_kept", "tokens")
    return {name: sum(source[name] for source in sources) for name in names}


def _sample(db: Connection) -> tuple[int, float]:
    """Documents judged, and the share of them that signal histograms are of."""
    row = db.execute("SELECT count(*) FROM verdicts").fetchone()
    judged = row[0] if row else 0
    return judged, min(1.0, SAMPLED_DOCUMENTS / max(1, judged))
