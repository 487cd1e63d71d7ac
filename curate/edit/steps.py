"""The edits of a recipe as steps: what is repeated over the whole corpus is found first, then each shard is rewritten.

Edits that look at one document at a time run together, in one pass over each shard. An edit that looks for repeats in the whole corpus
begins a new pass: a step writes the hashes of each shard's units, a global one says which of them have an equal one before, and
the pass cuts them out. Rules that look at the text before an edit begin a pass, too. Documents that an edit or such a rule dropped, or
that repeat an id, are not touched by later edits, and repeat nothing.

A shard that changes is published whole as ``texts``; one that does not keeps its file. Rows stay where they are, so locators hold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from curate.curation import Curation, source_of
from curate.dedup.lines import repeats
from curate.edit.bad_words import read_words
from curate.edit.early import early_rules_step, early_signals_step, judged_edits
from curate.edit.failures import edit_steps
from curate.edit.repeated import REPEATED_VERSION, compared, overlap
from curate.edit.rewrite import VERSIONS, Active, batches, rewrite_shard
from curate.step import Shard, ShardWriter, Step
from schemas.manifest import Entry
from schemas.store import publish

Json = Any
UNIT_BYTES = 80
"""What a unit takes while it is compared with all others; parts of all hashes are compared after one another to stay within memory."""


def edit_documents(c: Curation) -> None:
    """Run the recipe's edits; afterwards the documents of all shards are the edited ones."""
    judged = judged_edits(c)
    for turn, edits in enumerate(passes(c)):
        if (place := edits[0]["step"]) in judged:
            c.extend(*early_signals_step(c, place, judged[place]))
            shards = range(len(c.documents))
            c.extend(*early_rules_step(c, place, judged[place], [_active(c, i) for i in shards], [_inputs(c, i) for i in shards]))
        drops = _repeated(c, turn, edits[0]) if edits[0]["within"] == "corpus" else {}
        entries = c.extend(*_rewrite_step(c, turn, edits, drops))
        c.steps["read"] = [_edited(read, entry) for read, entry in zip(c.documents, entries, strict=True)]


def passes(c: Curation) -> list[list[Json]]:
    """The recipe's edits, each with its name, place, settings and version; cut before one that compares all, or that rules come before."""
    found: list[list[Json]] = []
    judged = judged_edits(c)
    for position, edit in enumerate(c.recipe.edits):
        settings = edit.model_dump(mode="json") | {"step": position, "version": VERSIONS[edit.edit]}
        settings.setdefault("within", "document")
        if files := settings.pop("bad_words", None):  # the words themselves, so that it does not matter where their files lie
            settings["bad_words"] = read_words(files, f"edits[{position}].bad_words")
        if not found or settings["within"] == "corpus" or position in judged:
            found.append([])
        found[-1].append(settings)
    return found


def _edited(read: Entry, entry: Entry) -> Entry:
    """The entry of a documents shard after an edit; what the reader counted stays."""
    files = {"documents": entry.files["texts"]} if "texts" in entry.files else {}
    return replace(read, files={**read.files, **files})


def _active(c: Curation, shard: int) -> Json:
    """What tells the rows that edits still apply to."""
    failed = [c.path(step, "failed", shard) for step in edit_steps(c)]
    return {"shard": shard, "repeats": c.path("repeats", "repeats"), "failed": [path for path in failed if path is not None]}


def _inputs(c: Curation, shard: int) -> Json:
    """Fingerprints of the documents and of what tells which of them are active."""
    before = [c.steps[step][shard].content for step in edit_steps(c)]
    return [shard, c.documents[shard].content, [entry.content for entry in c.steps["repeats"]], before]


def _applies(c: Curation, edit: Json, shard: int) -> bool:
    return edit["sources"] is None or source_of(c.documents[shard]) in edit["sources"]


def _rewrite_step(c: Curation, turn: int, edits: Sequence[Json], drops: Mapping[int, Json]) -> tuple[Step, list[Shard]]:
    shards = []
    for shard, entry in enumerate(c.documents):
        mine = [edit for edit in edits if _applies(c, edit, shard)]
        task = _active(c, shard) | {"edits": mine, "documents": c.path("read", "documents", shard), "batch_rows": c.batch_rows}
        drop = drops.get(shard)
        shards.append(Shard(entry.label, [_inputs(c, shard), mine, drop and drop["checksum"]], task | {"drops": drop and drop["path"]}))
    return Step(f"edit_{turn}", 1 + sum(edit["version"] for edit in edits), {}, rewrite_shard), shards


def _repeated(c: Curation, turn: int, edit: Json) -> dict[int, Json]:
    """File of the units to cut out of each shard that has any."""
    shards = [shard for shard in range(len(c.documents)) if _applies(c, edit, shard)]
    settings = {key: value for key, value in edit.items() if key not in ("sources", "step")} | {"version": REPEATED_VERSION}
    tasks = [
        Shard(
            c.documents[shard].label,
            _inputs(c, shard),
            _active(c, shard) | {"edit": edit, "documents": c.path("read", "documents", shard), "batch_rows": c.batch_rows},
        )
        for shard in shards
    ]
    units = c.run(Step(f"units_{turn}", 1, settings, _units), tasks)
    paths = [(shard, entry.files["units"].path) for shard, entry in zip(shards, units, strict=True) if "units" in entry.files]
    choose = Step(f"repeated_{turn}", 1, {}, _choose)
    task = {"units": paths, "memory_bytes": c.memory_bytes, "apart": overlap(edit)}
    chosen = c.run(choose, [Shard("all", [[shard, entry.content] for shard, entry in zip(shards, units, strict=True)], task)])[0]
    return {int(name.removeprefix("drops_")): vars(file) for name, file in chosen.files.items()}


def _units(writer: ShardWriter, task: Json) -> Mapping[str, int]:
    """The hashes of a shard's units that are compared, in order, and which of them begin a document."""
    hashes, rows = [np.empty((0, 2), np.uint64)], [np.empty(0, np.bool_)]
    if task["documents"] is not None:
        active = Active(writer.root, task)
        for first, texts in batches(writer.root / task["documents"], task["batch_rows"]):
            units, long = compared(texts.filter(pa.array(active.rows[first : first + len(texts)])), task["edit"])
            hashes.append(units.hashes[long])
            rows.append(np.diff(units.row[long], prepend=-1) > 0)
    joined = np.concatenate(hashes)
    if len(joined):
        halves = [np.ascontiguousarray(joined[:, half]) for half in (0, 1)]
        writer.arrow("units", pa.table([*halves, np.concatenate(rows)], names=["hash_0", "hash_1", "begins"]))
    return {"units": len(joined)}


def _choose(writer: ShardWriter, task: Json) -> Mapping[str, int]:
    """Which units have an equal one before them in lake order: a file of bits for each shard that has any."""
    tables = [pa.ipc.open_file(pa.memory_map(str(writer.root / path))).read_all() for _, path in task["units"]]
    sizes, apart = [table.num_rows for table in tables], task["apart"]
    drop = np.zeros(sum(sizes), np.bool_)
    bits = (UNIT_BYTES * len(drop) // task["memory_bytes"]).bit_length()
    for part in range(1 << bits):
        picked, hashes, places, before, place = [], [], [], 0, 0
        for table, size in zip(tables, sizes, strict=True):
            pair = np.stack([table.column(f"hash_{half}").to_numpy() for half in (0, 1)], axis=1)
            mine = np.flatnonzero(pair[:, 0] & np.uint64((1 << bits) - 1) == part)
            picked.append(mine + before)
            hashes.append(pair[mine])
            places.append(place + (np.arange(size) + apart * np.cumsum(table.column("begins").to_numpy()))[mine])
            before, place = before + size, place + size + apart * size
        if picked:
            again = repeats(np.concatenate(hashes), None, apart, np.concatenate(places))
            drop[np.concatenate(picked)[again]] = True
    stops = np.cumsum(sizes)
    for (shard, _), stop, size in zip(task["units"], stops.tolist(), sizes, strict=True):
        mine = drop[stop - size : stop]
        if mine.any():
            name = f"drops/{writer.step}-{writer.key[:12]}-{shard:05d}.bits"
            writer.files[f"drops_{shard}"] = publish(writer.root, name, _writes(np.packbits(mine).tobytes()))
    return {"units": len(drop), "repeated": int(np.count_nonzero(drop))}


def _writes(content: bytes) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.write_bytes(content)

    return write
