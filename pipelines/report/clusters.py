"""Texts that the report shows: the biggest clusters with a diff of kept and dropped text, and sampled drops by rule."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from curate.corpus import Corpus
from pipelines.catalog import Connection, ask
from schemas.manifest import read_snapshot

Json = Any

CLUSTERS = 8
DIFF_WORDS = 1_500
"""Words of each text that a diff looks at."""
UNCHANGED_WORDS = 12
"""Words shown on each side of a difference; what is between is left out."""
SAMPLES = 3
EXCERPT = 400
MOST_REASONS = 40

# The least similar member of a cluster tells most: its text differs from the kept one.
_BIGGEST = f"""
WITH sizes AS (
    SELECT kept_doc_id, count(*) AS duplicates, min_by(doc_id, (coalesce(similarity, 2), doc_id)) AS doc_id, min(similarity) AS least
    FROM clusters GROUP BY ALL ORDER BY duplicates DESC, kept_doc_id LIMIT {CLUSTERS}
)
SELECT sizes.kept_doc_id, sizes.duplicates, sizes.least, sizes.doc_id, clusters.kind, clusters.similarity, dropped.source,
    dropped.locator, kept.source AS kept_source, kept.locator AS kept_locator
FROM sizes JOIN clusters ON clusters.doc_id = sizes.doc_id AND clusters.kept_doc_id = sizes.kept_doc_id
    JOIN verdicts AS dropped ON dropped.doc_id = sizes.doc_id JOIN verdicts AS kept ON kept.doc_id = sizes.kept_doc_id
ORDER BY duplicates DESC, sizes.kept_doc_id
"""

# doc_ids are hashes: the lowest of them are a sample.
_DROPS = f"""
WITH samples AS (
    SELECT reason, count(*) AS documents,
        min_by({{'doc_id': doc_id, 'source': source, 'locator': locator, 'bytes': bytes, 'failures': failures, 'kept_doc_id': kept_doc_id,
            'similarity': similarity}}, doc_id, {SAMPLES}) AS samples
    FROM verdicts WHERE state = 'dropped' GROUP BY reason ORDER BY documents DESC, reason LIMIT {MOST_REASONS}
)
SELECT reason, documents, samples FROM samples ORDER BY documents DESC, reason
"""


def biggest_clusters(db: Connection, root: Path) -> list[dict[str, Json]]:
    """The clusters with most duplicates, each with a diff from its kept text to its least similar one."""
    clusters = ask(db, _BIGGEST)
    texts = _texts(root, [cluster[name] for cluster in clusters for name in ("kept_locator", "locator")])
    for cluster in clusters:
        pair = texts[cluster["kept_locator"]], texts[cluster["locator"]]
        cluster["diff"] = word_diff(*pair)
        cluster["cut"] = max(len(text.split()) for text in pair) > DIFF_WORDS
        cluster["words"] = DIFF_WORDS
    return clusters


def sampled_drops(db: Connection, root: Path) -> list[dict[str, Json]]:
    """A few dropped documents of each reason, with the beginning of their text."""
    reasons = ask(db, _DROPS)
    samples = [sample for reason in reasons for sample in reason["samples"]]
    texts = _texts(root, [sample["locator"] for sample in samples])
    for reason in reasons:
        for sample in reason["samples"]:
            sample["excerpt"] = texts[sample["locator"]][:EXCERPT]
            sample["cut"] = len(texts[sample["locator"]]) > EXCERPT
            sample["failure"] = next((failure for failure in sample["failures"] if failure["rule"] == reason["reason"]), None)
    return reasons


def _texts(root: Path, locators: Sequence[int]) -> dict[int, str]:
    """Text of the documents at the locators; reads the shards that hold them, once each."""
    if not locators:
        return {}
    places = np.unique(np.array(locators, dtype=np.uint64))
    entries = read_snapshot(root).steps["read"]
    corpus = Corpus(root, [entry.files["documents"].path if "documents" in entry.files else None for entry in entries])
    return dict(zip(places.tolist(), corpus.fetch(places).to_pylist(), strict=True))


def word_diff(before: str, after: str) -> list[tuple[str, str]]:
    """Pieces of both texts in order: (same, text), (kept only, text), (dropped only, text), or (left out, words).

    At most the first ``DIFF_WORDS`` words of each are compared; long unchanged passages are left out but for their ends.
    """
    a, b = (re.findall(r"\S+\s*|\s+", text)[:DIFF_WORDS] for text in (before, after))
    pieces: list[tuple[str, str]] = []
    for kind, a_start, a_stop, b_start, b_stop in difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        if kind == "equal":
            pieces += _unchanged(a[a_start:a_stop], first=not a_start, last=a_stop == len(a) and b_stop == len(b))
            continue
        if a_stop > a_start:
            pieces.append(("kept only", "".join(a[a_start:a_stop])))
        if b_stop > b_start:
            pieces.append(("dropped only", "".join(b[b_start:b_stop])))
    return pieces


def _unchanged(words: list[str], first: bool, last: bool) -> list[tuple[str, str]]:
    head, tail = (2 * UNCHANGED_WORDS if first else UNCHANGED_WORDS), (0 if last else UNCHANGED_WORDS)
    if len(words) <= head + tail:
        return [("same", "".join(words))]
    left = [("left out", f"{len(words) - head - tail:,} words")]
    return [("same", "".join(words[:head])), *left, *([("same", "".join(words[-tail:]))] if tail else [])]
