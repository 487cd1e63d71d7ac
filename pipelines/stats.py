"""What a lake's text is like, by source: how much, how long, in which language, what was dropped and why, how much was duplicate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console

from pipelines.catalog import ask, open_catalog
from pipelines.progress import asking
from pipelines.tables import BLOCKS, table

Json = Any

# Quantiles are of counted lengths: an aggregate over all lengths would hold them all in memory.
SOURCES = """
WITH lengths AS (SELECT source, bytes, count(*) AS documents FROM verdicts GROUP BY ALL),
sums AS (
    SELECT source, bytes, sum(documents) OVER (PARTITION BY source ORDER BY bytes) AS upto,
        sum(documents) OVER (PARTITION BY source) AS total
    FROM lengths
),
quantiles AS (
    SELECT source, min(bytes) FILTER (upto >= .05 * total) AS bytes_p5, min(bytes) FILTER (upto >= .5 * total) AS bytes_median,
        min(bytes) FILTER (upto >= .95 * total) AS bytes_p95, max(bytes) AS bytes_max
    FROM sums GROUP BY source
)
SELECT source, count(*) AS documents, sum(verdicts.bytes)::BIGINT AS bytes, count(*) FILTER (state = 'kept') AS kept,
    coalesce(any_value(packed.tokens), 0) AS tokens,
    count(*) FILTER (reason IN ('url_duplicate', 'exact_duplicate', 'near_duplicate')) / count(*) AS duplicate_share,
    any_value(bytes_p5) AS bytes_p5, any_value(bytes_median) AS bytes_median, any_value(bytes_p95) AS bytes_p95,
    any_value(bytes_max) AS bytes_max
FROM verdicts JOIN quantiles USING (source) LEFT JOIN (SELECT source, tokens FROM summary_sources) AS packed USING (source)
GROUP BY source ORDER BY source
"""

_REASONS = """
SELECT source, reason, count(*) AS documents, sum(bytes)::BIGINT AS bytes FROM verdicts WHERE reason IS NOT NULL
GROUP BY ALL ORDER BY source, documents DESC, reason
"""

# Every failing rule counts here, not only the first: what each rule would drop by itself.
_RULES = """
SELECT source, failure.rule AS rule, count(*) AS documents FROM (SELECT source, unnest(failures) AS failure FROM verdicts)
GROUP BY ALL ORDER BY source, documents DESC, rule
"""

LANGUAGE_OF = """(
    SELECT doc_id, language, language_score FROM languages WHERE doc_id NOT IN (SELECT doc_id FROM repeats)
    UNION ALL
    SELECT doc_id, first(language), first(language_score) FROM languages WHERE doc_id IN (SELECT doc_id FROM repeats) GROUP BY doc_id
)"""
"""The language of each document once: records that repeat an id have a row of their own."""

_LANGUAGES = f"""
SELECT source, language, count(*) AS documents, count(*) FILTER (state = 'kept') AS kept, sum(bytes)::BIGINT AS bytes,
    median(language_score) AS median_score
FROM verdicts JOIN {LANGUAGE_OF} USING (doc_id) GROUP BY ALL ORDER BY source, documents DESC, language
"""

_LENGTHS = """
SELECT source, floor(log2(greatest(bytes, 1)))::INT AS power, count(*) AS documents, count(*) FILTER (state = 'kept') AS kept
FROM verdicts GROUP BY ALL ORDER BY source, power
"""


def lake_stats(root: Path, silent: bool = True) -> dict[str, list[dict[str, Json]]]:
    """Statistics of the current snapshot; quantiles are exact; progress is shown where it is not to be silent.

    Raises:
        LakeError: there is no lake.
    """
    with open_catalog(root) as db, asking(db, silent):
        queries = {"sources": SOURCES, "reasons": _REASONS, "rules": _RULES, "languages": _LANGUAGES, "lengths": _LENGTHS}
        return {name: ask(db, query) for name, query in queries.items()}


def print_stats(stats: dict[str, list[dict[str, Json]]], console: Console) -> None:
    """Print statistics for people."""
    numbers = ("documents", "MB", "kept", "tokens", "duplicates", "bytes p5", "median", "p95", "longest")
    documents = {source["source"]: source["documents"] for source in stats["sources"]}
    shown = table("Sources", ("source",), numbers, ("lengths (each block twice as long)",))
    for source in stats["sources"]:
        lengths = [line for line in stats["lengths"] if line["source"] == source["source"]]
        quantiles = [f"{source[name]:,}" for name in ("bytes_p5", "bytes_median", "bytes_p95", "bytes_max")]
        counts = (f"{source['documents']:,}", f"{source['bytes'] / 1e6:,.2f}", f"{source['kept']:,}", f"{source['tokens']:,}")
        shares = (f"{source['duplicate_share']:.1%}", *quantiles)
        shown.add_row(source["source"], *counts, *shares, histogram({line["power"]: line["documents"] for line in lengths}))
    console.print(shown)
    reasons = table("Dropped, by first reason", ("source", "reason"), ("documents", "MB"), ("share of the source",))
    for line in stats["reasons"]:
        share = bar(line["documents"] / documents[line["source"]])
        reasons.add_row(line["source"], line["reason"], f"{line['documents']:,}", f"{line['bytes'] / 1e6:,.2f}", share)
    console.print(reasons)
    rules = table("Failing each rule, whatever else fails", ("source", "rule"), ("documents",), ("share of the source",))
    for line in stats["rules"]:
        rules.add_row(line["source"], line["rule"], f"{line['documents']:,}", bar(line["documents"] / documents[line["source"]]))
    console.print(rules)
    if stats["languages"]:
        languages = table("Languages", ("source", "language"), ("documents", "kept", "MB", "median score"), ("share of the source",))
        for line in stats["languages"]:
            cells = (f"{line['documents']:,}", f"{line['kept']:,}", f"{line['bytes'] / 1e6:,.2f}", f"{line['median_score']:.3f}")
            share = bar(line["documents"] / documents[line["source"]])
            languages.add_row(line["source"], line["language"] or "none found", *cells, share)
        console.print(languages)


def histogram(counts: dict[int, int]) -> str:
    """A block for each whole number from the least key to the greatest, its height the count over the largest."""
    if not counts:
        return ""
    top = max(counts.values())
    bars = [counts.get(key, 0) for key in range(min(counts), max(counts) + 1)]
    return f"{2 ** min(counts):,} B " + "".join(BLOCKS[-(-count * (len(BLOCKS) - 1) // top)] if count else " " for count in bars)


def bar(share: float, width: int = 20) -> str:
    """A share as a bar in eighths of a character, with its percentage."""
    eighths = round(share * width * 8)
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip() + f" {share:.1%}"
