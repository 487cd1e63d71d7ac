"""Checks each run's sketches: pairs sampled from its near-duplicates, their exact similarity, our estimate and datasketch's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from curate.corpus import Corpus, column_array, id_hashes
from curate.curation import Curation
from curate.dedup.check import check_estimates
from curate.deduplicate import sketch_settings
from curate.sql import connect, parquet, present, scan
from curate.step import Shard, ShardWriter, Step
from schemas.curation import NearDedup
from schemas.errors import GristmillError

Json = Any
PAIR_DRAW = 0x50414952
"""Added to the seed, so that the draw of pairs is independent of the other draws by doc_id."""


def estimates_steps(c: Curation) -> list[tuple[Step, list[Shard]]]:
    """A step, one shard a generation, that measures ``dedup.check`` pairs: table ``estimates``; none without pairs to measure."""
    near, number = c.recipe.dedup.near, len(c.generations) - 1
    if near is None or not c.recipe.dedup.check:
        return []
    settings = {"near": near.model_dump(mode="json"), "pairs": c.recipe.dedup.check, "seed": c.recipe.seed}
    task = settings | {"clusters": c.path("dedup", "clusters", number), "documents": c.paths("read", "documents")}
    inputs = [c.steps["dedup"][number].content, [entry.content for entry in c.documents]]
    return [(Step("estimates", 1, settings, _estimates), [Shard(f"{place:05d}", inputs, task) for place in range(number + 1)])]


def _estimates(writer: ShardWriter, task: Json) -> Mapping[str, int]:
    if task["clusters"] is None:
        return {"pairs": 0}
    with connect() as db:
        scan(db, "documents", writer.root, present(task["documents"]), ["doc_id"])
        clusters = parquet([str(writer.root / task["clusters"])])
        pairs = db.sql(f"SELECT doc_id, locator, kept_doc_id FROM {clusters} WHERE kind = 'near' ORDER BY locator").to_arrow_table()
        draw = id_hashes(column_array(pairs, "doc_id").cast(pa.binary(16)), task["seed"] + PAIR_DRAW)
        pairs = pairs.take(pa.array(np.sort(np.argsort(draw, kind="stable")[: task["pairs"]])))
        db.register("pairs", pairs)
        pairs = db.sql(
            """
            SELECT p.doc_id, p.locator, p.kept_doc_id, min(d.locator) AS kept
            FROM pairs p JOIN documents d ON d.doc_id = p.kept_doc_id GROUP BY ALL ORDER BY p.locator
            """
        ).to_arrow_table()
    if not pairs.num_rows:
        return {"pairs": 0}
    corpus, settings = Corpus(writer.root, task["documents"]), sketch_settings(NearDedup(**task["near"]))
    left, right = (corpus.fetch(pairs.column(name).to_numpy()) for name in ("locator", "kept"))
    found = check_estimates(left, right, settings)
    columns = {"exact": found.exact, "estimate": found.ours, "datasketch": found.theirs}
    table = pairs.select(["doc_id", "kept_doc_id"])
    for name, values in columns.items():
        table = table.append_column(name, pa.array(values))
    writer.table("estimates", table)
    if not found.passed:
        worst = int(np.argmax(found.deviations(found.ours)))
        raise GristmillError(
            f"the estimate {found.ours[worst]:.3f} of a similarity of {found.exact[worst]:.3f} is {found.worst:.1f} deviations off",
            where=f"dedup.check: document {pairs.column('doc_id')[worst].as_py().hex()}",
            fix="the run's signatures cannot be trusted: please report it",
        )
    return {"pairs": pairs.num_rows}
