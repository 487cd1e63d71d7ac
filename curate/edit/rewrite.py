"""One pass over a documents shard: several edits one after another, with what they did, batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from curate.corpus import column_array, locators
from curate.edit.bad_words import BAD_WORDS_VERSION, without_bad_words
from curate.edit.c4 import C4_VERSION, c4
from curate.edit.mask import MASK_VERSION, mask
from curate.edit.record import Edited, Failed, edit_rows
from curate.edit.repair import REPAIR_VERSION, repair
from curate.edit.repeated import REPEATED_VERSION, CutRepeated
from curate.step import ShardWriter
from curate.survivors import rows_in
from schemas.tables import DOCUMENTS, EDITS

Json = Any
Editor = Callable[[pa.LargeStringArray], Edited]

BATCH_BYTES = 32_000_000
"""Text that is edited at once, about; a longer document is edited alone."""

VERSIONS: dict[str, int] = {
    "c4": C4_VERSION + BAD_WORDS_VERSION - 1,
    "mask": MASK_VERSION,
    "repair": REPAIR_VERSION,
    "lines": REPEATED_VERSION,
    "paragraphs": REPEATED_VERSION,
    "substrings": REPEATED_VERSION,
}
"""Version of each edit's outcome."""

FAILED = pa.schema([("row", pa.int64()), ("rule", pa.string()), ("value", pa.float64()), ("threshold", pa.float64())])
"""Documents of a shard that edits dropped."""


class Active:
    """The rows of a shard that edits apply to: not empty, no repeated id, not dropped by an edit before; ``rows`` is a mask."""

    def __init__(self, root: Path, task: Json) -> None:
        self.rows = pq.read_table(root / task["documents"], columns=["bytes"], partitioning=None).column("bytes").to_numpy() > 0
        self.rows[rows_in(root, task["repeats"], task["shard"])] = False
        for path in task["failed"]:
            self.rows[pq.read_table(root / path, partitioning=None).column("row").to_numpy()] = False


def batches(documents: Path, rows: int) -> Iterator[tuple[int, pa.LargeStringArray]]:
    """First row and texts of batches of up to ``rows`` documents and about BATCH_BYTES."""
    texts = column_array(pq.read_table(documents, columns=["text"], memory_map=True, partitioning=None), "text")
    ends = np.cumsum(pc.binary_length(texts).to_numpy(zero_copy_only=False))
    first = 0
    while first < len(texts):
        begin = ends[first - 1] if first else 0
        stop = int(np.searchsorted(ends, begin + BATCH_BYTES, side="right"))
        stop = min(max(stop, first + 1), first + rows, len(texts))
        yield first, texts.slice(first, stop - first)
        first = stop


def editor(settings: Json, root: Path, drops: str | None) -> Editor:
    """What runs an edit of the recipe over the batches of a shard."""
    if settings["edit"] == "c4":
        return lambda texts: without_bad_words(texts, c4(texts, settings["off"], settings["thresholds"]), settings.get("bad_words", ()))
    if settings["edit"] == "repair":
        return repair
    if settings["edit"] == "mask":
        return lambda texts: mask(texts, settings["kinds"])
    bits = None
    if settings["within"] == "corpus" and drops is not None:
        bits = np.unpackbits(np.frombuffer((root / drops).read_bytes(), np.uint8)).astype(np.bool_)
    return CutRepeated(settings, bits)


def rewrite_shard(writer: ShardWriter, task: Json) -> Mapping[str, int]:
    """Run the task's edits over a documents shard: tables ``edits``, ``failed``, and ``texts`` if any text changed."""
    if task["documents"] is None or not task["edits"]:
        return dict.fromkeys(("documents", "edited", "failed", "bytes"), 0)
    path = writer.root / task["documents"]
    work = _Pass(task["shard"], Active(writer.root, task).rows, pq.read_table(path, columns=["text_version"], partitioning=None))
    editors = [editor(settings, writer.root, task["drops"]) for settings in task["edits"]]
    texts, size = [], 0
    for first, batch in batches(path, task["batch_rows"]):
        size += batch.nbytes
        for settings, edit in zip(task["edits"], editors, strict=True):
            batch = work.run(first, batch, settings, edit)
        texts.append(batch)
    work.publish(writer, path, texts)
    return {"documents": len(work.active), "edited": int(np.sum(work.changed)), "failed": len(work.failed()), "bytes": size}


class _Pass:
    """What a pass has done so far."""

    def __init__(self, shard: int, active: NDArray[np.bool_], documents: pa.Table) -> None:
        self.places, self.active = locators(shard, len(active)), active
        self.versions = documents.column("text_version").to_numpy().astype(np.int32)
        self.changed = np.zeros(len(active), np.bool_)
        self.told: list[pa.Table] = []
        self.dropped: list[pa.Table] = []

    def run(self, first: int, batch: pa.LargeStringArray, settings: Json, edit: Editor) -> pa.LargeStringArray:
        """Edit the active texts of a batch and return the whole batch."""
        rows = first + np.flatnonzero(self.active[first : first + len(batch)])
        before = batch if len(rows) == len(batch) else batch.take(pa.array(rows - first))
        done = edit(before)
        changed, told = edit_rows(self.places[rows], before, done, self.versions[rows], settings["step"], settings["edit"])
        self.told.append(told)
        self.versions[rows[changed]] += 1
        self.changed[rows[changed]] = True
        after = pc.binary_length(done.texts).to_numpy(zero_copy_only=False)
        self._drop(rows, done.failures)
        emptied = np.flatnonzero(changed & (after == 0))
        self._drop(rows, Failed(emptied, [f"emptied_by_{settings['edit']}"] * len(emptied), np.zeros(len(emptied)), np.ones(len(emptied))))
        if len(rows) == len(batch):
            return done.texts
        order = np.arange(len(batch))
        order[rows - first] = len(batch) + np.arange(len(rows))
        return pa.concat_arrays([batch, done.texts]).take(pa.array(order))

    def _drop(self, rows: NDArray[np.int64], failed: Failed) -> None:
        mine = rows[failed.row]
        self.active[mine] = False
        numbers = [pa.array(values, mask=np.isnan(values)) for values in (failed.value, failed.threshold)]
        self.dropped.append(pa.table([mine, pa.array(failed.rule, pa.string()), *numbers], schema=FAILED))

    def failed(self) -> pa.Table:
        """Documents that were dropped, by row."""
        return pa.concat_tables([FAILED.empty_table(), *self.dropped]).sort_by("row").combine_chunks()

    def publish(self, writer: ShardWriter, path: Path, texts: list[pa.LargeStringArray]) -> None:
        """Write what was done."""
        failed = self.failed()
        if failed.num_rows:
            writer.publish("failed", "parquet", lambda to: pq.write_table(failed, to, compression="zstd"), failed.num_rows)
        if not self.changed.any():
            return
        table = pq.read_table(path, partitioning=None)
        text = pa.concat_arrays(texts)
        new = {"text": text, "bytes": pc.binary_length(text), "text_version": pa.array(self.versions)}
        for name, values in new.items():
            field = DOCUMENTS.field(name)
            table = table.set_column(table.schema.get_field_index(name), field, values.cast(field.type))
        writer.table("documents", table.combine_chunks())
        writer.files["texts"] = writer.files.pop("documents")
        told = pa.concat_tables(self.told).sort_by([("locator", "ascending"), ("step", "ascending")])
        rows = pa.array((told.column("locator").to_numpy() & np.uint64(0xFFFFFFFF)).astype(np.int64))
        for position, name in enumerate(("doc_id", "source")):
            told = told.add_column(position, name, column_array(table, name).take(rows))
        writer.table("edits", told.select(EDITS.names).combine_chunks())
