"""The card (README.md) of an exported ``datasets`` folder: what is in it and how it was made, in the Hub's front matter."""

from __future__ import annotations

from collections.abc import Mapping

import yaml

from schemas.manifest import Snapshot

SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"), (10_000_000, "1M<n<10M"))


def dataset_card(name: str, snapshot: Snapshot, counts: Mapping[str, Mapping[str, tuple[int, int]]]) -> str:
    """The card's text.

    Args:
        name: the folder's name.
        snapshot: what was exported.
        counts: documents and text bytes by split, then source.
    """
    total = sum(documents for by_source in counts.values() for documents, _ in by_source.values())
    front = {
        "pretty_name": name,
        "task_categories": ["text-generation"],
        "size_categories": [next((label for limit, label in SIZES if total < limit), "10M<n<100M" if total < 1e8 else "n>100M")],
        "configs": [
            {"config_name": "default", "data_files": [{"split": split, "path": f"data/{split}-*.parquet"} for split in counts]},
        ],
    }
    lines = [
        f"---\n{yaml.safe_dump(front, sort_keys=False)}---",
        f"# {name}",
        "",
        "Curated by Gristmill: filtered, deduplicated, held-out set apart.",
    ]
    lines += [f"Snapshot `{snapshot.id}`, recipe `{snapshot.recipe}`.", "", "| split | source | documents | text bytes |", "|-|-|-:|-:|"]
    lines += [
        f"| {split} | {source} | {documents:,} | {size:,} |"
        for split, sources in counts.items()
        for source, (documents, size) in sources.items()
    ]
    lines += [
        "",
        "Columns: `doc_id` (identity in the lake), `source`, `id` (the record's own), `text`, `url`, `date`, `license`, `meta` (JSON).",
    ]
    lines += ["Licences are those of the sources; see the column `license` where it is known."]
    return "\n".join(lines) + "\n"
