"""Lots: kept and held-out documents packed into Arrow rows by source, split, repeat class, difficulty bin, row length and generation.

Five steps follow the verdicts: one tokenizer; token ids by documents shard; a layout by source; rows by pack shard; and the sum of each
lot, with a check that every token is in a row or was discarded, from numbers counted apart.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from curate.choices import choices_step
from curate.corpus import column_array, shards_of
from curate.curation import file_of, source_of
from curate.engine import Executor
from curate.layout import generation_of, layout_step, pack_settings, packed, specials
from curate.pack import Packing, kernel
from curate.step import Json, Progress, Shard, ShardWriter, Step, run_step
from curate.tokenize import nothing_kept, tokenize_step, tokenizer_step
from curate.tokenizer import load_tokenizer
from schemas.errors import GristmillError
from schemas.manifest import UNPACKED, Entry, Snapshot, fingerprint, write_snapshot
from schemas.recipe import Recipe
from schemas.settings import Lot, LotShard
from schemas.store import here, remove
from schemas.tables import LOTS, ROWS, row_schema


def build_lots(root: Path, recipe: Recipe, snapshot: Snapshot, executor: Executor, progress: Progress) -> Snapshot:
    """Tokenise and pack a curated snapshot.

    Args:
        root: the lake.
        recipe: the recipe.
        snapshot: holds the steps read, signals and verdicts, and of earlier generations those made here, which are kept as they are.
        executor: what runs shards.
        progress: where steps report.

    Returns:
        The snapshot with the steps tokenizer, tokenize, layout, pack and lots; also published as the current one.

    Raises:
        GristmillError: nothing was kept, a difficulty cannot be evaluated, or tokens do not add up.
    """
    read, verdicts, ends = snapshot.steps["read"], snapshot.steps["verdicts"], snapshot.generations

    def run(step: Step, shards: Sequence[Shard]) -> list[Entry]:
        before = list(snapshot.steps.get(step.name, ()))
        return before + run_step(root, step, shards[len(before) :], executor, progress)

    tokenizer = run(*tokenizer_step(recipe, read[: ends[0]], verdicts[: ends[0]]))
    tokens = run(*tokenize_step(recipe, tokenizer[0], read, verdicts))
    if not any(entry.counts["documents"] for entry in tokens):
        raise nothing_kept()
    layouts = run(*layout_step(recipe, ends, tokens, snapshot.steps))
    packed = run(*pack_step(root, recipe, tokenizer[0], tokens, layouts))
    lots = run(*lots_step(recipe, ends, tokens, layouts, packed))
    made = {"tokenizer": tokenizer, "tokenize": tokens, "layout": layouts, "pack": packed, "lots": lots}
    steps = {name: entries for name, entries in snapshot.steps.items() if name != "choices"} | made
    if recipe.choices:
        steps["choices"] = run_step(root, *choices_step(recipe, tokenizer[0]), executor, progress)
    done = Snapshot(snapshot.recipe, steps)
    write_snapshot(root, done)
    remove(root / f"snapshots/{UNPACKED}.json")
    return done


def pack_step(root: Path, recipe: Recipe, tokenizer: Entry, tokens: Sequence[Entry], layouts: Sequence[Entry]) -> tuple[Step, list[Shard]]:
    """The step that writes the rows of each pack shard: an Arrow file ``shards`` of one record batch, and its table ``rows``."""
    file = tokenizer.files["tokenizer"]
    shards = []
    paths = [file_of(entry, "tokens") for entry in tokens]
    for layout in layouts:
        cuts = json.loads((root / layout.files["cuts"].path).read_text(encoding="utf-8")) if "cuts" in layout.files else []
        for group, cut in enumerate(cuts):
            source, settings = source_of(layout), cut.get("pack") or pack_settings(recipe)  # an earlier generation's may lack them
            length = settings["row_length"]
            name = {"source": source, "bin": cut["bin"], "repeats": cut["repeats"]}
            tag = fingerprint(layout.content, file.checksum, length)[:8]
            lot = f"{source}-{cut['split']}-x{cut['repeats']}-b{cut['bin']}-l{length}-{tag}"
            task = {**name, "lot": lot, "group": group, "first_row": cut["first_row"], "pack": settings}
            task |= {
                "generation": generation_of(layout),
                "layout": layout.files["layout"].path,
                "tokens": {shard: paths[shard] for shard in cut["shards"]},
                "tokenizer": file.path,
            }
            shards.append(Shard(f"{lot}/{cut['number']:05d}", [layout.content, group], task))
    return Step("pack", 2, {"tokenizer": file.checksum}, _pack), shards


def _pack(writer: ShardWriter, task: Json) -> Mapping[str, int]:
    layout = pq.ParquetFile(writer.root / task["layout"]).read_row_group(task["group"])
    packing = packed(layout.column("tokens").to_numpy(), task["pack"])
    ids = column_array(layout, "doc_id")
    if packing.rows:
        writer.arrow("shards", _row_batch(writer.root, layout, packing, task))
        row = pa.array(packing.row + task["first_row"])
        columns = [
            pa.repeat(task["lot"], len(row)),
            row,
            ids.take(pa.array(packing.document)),
            packing.start,
            packing.length,
            packing.offset,
        ]
        writer.table("rows", pa.table(columns, names=ROWS.names))
    tokens = int(packing.length.sum())
    return {
        "rows": packing.rows,
        "tokens": tokens,
        "padding": packing.rows * task["pack"]["row_length"] - tokens,
        "discarded": packing.discarded,
        "documents": layout.num_rows,
        "pieces": len(packing.row),
        "cut": packing.cut,
        "bytes": pc.sum(layout.column("bytes")).as_py(),
        "bin": task["bin"],
        "repeats": task["repeats"],
        "generation": task["generation"],
    }


def _row_batch(root: Path, layout: pa.Table, packing: Packing, task: Json) -> pa.RecordBatch:
    """The rows of a pack shard as one record batch."""
    tokenizer = load_tokenizer(root / task["tokenizer"])
    row_length, settings = task["pack"]["row_length"], task["pack"]
    metadata = {"lot": task["lot"], "source": task["source"], "tokenizer": tokenizer.fingerprint, "row_length": str(row_length)}
    schema = row_schema(row_length, tokenizer.vocabulary, metadata)
    values, begin, count = _token_ids(root, task["tokens"], layout.column("locator").to_numpy())
    out = np.full(packing.rows * row_length, tokenizer.pad, dtype=np.uint16 if tokenizer.vocabulary <= 1 << 16 else np.uint32)
    bos, eos = tokenizer.bos if settings["bos"] else -1, tokenizer.eos if settings["eos"] else -1
    _lay(out, values, begin, count, packing.document, packing.offset, packing.length, packing.row * row_length + packing.start, bos, eos)
    pieces = np.searchsorted(packing.row, np.arange(packing.rows + 1)).astype(np.int32)
    ids = column_array(layout, "doc_id").take(pa.array(packing.document))
    ends = pa.array((packing.start + packing.length).astype(np.int32))
    arrays = [
        pa.FixedSizeListArray.from_arrays(pa.array(out), type=schema.field("tokens").type),
        pa.ListArray.from_arrays(pa.array(pieces), ends, type=schema.field("ends").type),
        pa.ListArray.from_arrays(pa.array(pieces), ids, type=schema.field("doc_ids").type),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _token_ids(
    root: Path, paths: Mapping[int, str], places: NDArray[np.uint64]
) -> tuple[NDArray[np.uint32], NDArray[np.int64], NDArray[np.int64]]:
    """Ids of the documents at ascending locators: all ids of the shards they lie in, where each begins, and how many it has."""
    values, begins, counts, before = [], [], [], 0
    shard_of = shards_of(places)
    for shard in np.unique(shard_of):
        table = pq.read_table(root / paths[int(shard)], columns=["locator", "tokens"], partitioning=None)
        lists = column_array(table, "tokens")
        offsets = lists.offsets.to_numpy()
        rows = np.searchsorted(table.column("locator").to_numpy(), places[shard_of == shard])
        values.append(lists.values.to_numpy())
        begins.append(before + offsets[rows])
        counts.append(offsets[rows + 1] - offsets[rows])
        before += len(lists.values)
    return np.concatenate(values), np.concatenate(begins), np.concatenate(counts)


@kernel()
def _lay(
    out: NDArray[Any],
    values: NDArray[np.uint32],
    begin: NDArray[np.int64],
    count: NDArray[np.int64],
    document: NDArray[np.int64],
    offset: NDArray[np.int64],
    length: NDArray[np.int64],
    place: NDArray[np.int64],
    bos: int,
    eos: int,
) -> None:
    """Copy each piece to its place; token 0 of a document is BOS where there is one, and EOS follows its last."""
    shift = 1 if bos >= 0 else 0
    for piece in range(len(document)):
        d = document[piece]
        for k in range(length[piece]):
            token = offset[piece] + k - shift
            if token < 0:
                out[place[piece] + k] = bos
            elif token < count[d]:
                out[place[piece] + k] = values[begin[d] + token]
            else:
                out[place[piece] + k] = eos


def lots_step(
    recipe: Recipe, ends: Sequence[int], tokens: Sequence[Entry], layouts: Sequence[Entry], packed: Sequence[Entry]
) -> tuple[Step, list[Shard]]:
    """The step, one shard a generation, that sums lots (table ``lots``) and checks conservation of tokens."""
    made = []
    for generation, (first, end) in enumerate(zip([0, *ends], ends, strict=False)):
        mine = [layout for layout in layouts if generation_of(layout) == generation]
        rows = [entry for entry in packed if entry.counts.get("generation", 0) == generation]
        task = _lots_task(recipe, generation, tokens[first:end], mine, rows)
        inputs = [[entry.content for entry in entries] for entries in (tokens[first:end], mine, rows)]
        made.append(Shard(f"{generation:05d}", [generation, *inputs], task))
    return Step("lots", 3, {}, _lots), made


def _lots_task(recipe: Recipe, generation: int, tokens: Sequence[Entry], layouts: Sequence[Entry], packed: Sequence[Entry]) -> Json:
    counted: dict[str, dict[str, int]] = {name: {"train": 0, "holdout": 0} for name in recipe.sources}
    added = specials(pack_settings(recipe))
    for entry in tokens:
        counts = counted[source_of(entry)]
        counts["train"] += entry.counts["tokens"] + added * entry.counts["documents"]
        counts["holdout"] += entry.counts["held_out_tokens"] + added * entry.counts["held_out_documents"]
    shards = [{"lot": entry.label.partition("/")[0], "rows": file_of(entry, "rows"), "counts": dict(entry.counts)} for entry in packed]
    unused = dict.fromkeys(recipe.sources, 0) | {source_of(layout): layout.counts["unused_tokens"] for layout in layouts}
    return {"tokens": counted, "unused": unused, "shards": shards, "generation": generation}


def _lots(writer: ShardWriter, task: Json) -> Mapping[str, int]:
    lots: dict[str, dict[str, Any]] = {}
    for shard in task["shards"]:
        source, split, _, _, length, _ = shard["lot"].rsplit("-", 5)
        first = {"lot": shard["lot"], "source": source, "split": split, "row_length": int(length[1:])}
        first["generation"] = task["generation"]
        lot = lots.setdefault(shard["lot"], first | {key: shard["counts"][key] for key in ("bin", "repeats")})
        for key in ("rows", "tokens", "padding", "discarded", "documents", "pieces", "bytes"):
            lot[key] = lot.get(key, 0) + shard["counts"][key]
    _conserve(writer.root, task, lots)
    full = [lot for lot in lots.values() if lot["rows"]]
    writer.table("lots", pa.Table.from_pylist(full, schema=LOTS))
    return {"lots": len(full), "rows": sum(lot["rows"] for lot in full), "tokens": sum(lot["tokens"] for lot in full)}


def _conserve(root: Path, task: Json, lots: Mapping[str, Mapping[str, Any]]) -> None:
    """Tokens counted when they were made equal those summed over the table ``rows``, those discarded, and those of unused documents."""
    for source, counted in task["tokens"].items():
        for split, made in counted.items():
            mine = {lot["lot"]: lot["discarded"] for lot in lots.values() if (lot["source"], lot["split"]) == (source, split)}
            paths = [shard["rows"] for shard in task["shards"] if shard["lot"] in mine and shard["rows"]]
            in_rows = sum(
                pc.sum(pq.read_table(root / path, columns=["tokens"], partitioning=None).column("tokens")).as_py() for path in paths
            )
            discarded, unused = sum(mine.values()), task["unused"][source] if split == "train" else 0
            if made != in_rows + discarded + unused:
                raise GristmillError(
                    f"{made:,} tokens were made, but {in_rows:,} are in rows, {discarded:,} discarded, {unused:,} of unused documents",
                    where=f"{split} lots of source {source}",
                    fix="files of the lake were changed: delete its folders tokens, layout, rows and shards, then run again",
                )


@dataclass(frozen=True)
class LotTable:
    """The lots of a snapshot: lines of the table ``lots`` and, for the trainer, their files."""

    lines: tuple[Mapping[str, Any], ...]
    lots: Mapping[str, Lot]

    @property
    def generations(self) -> int:
        """Generations that the lots came with."""
        return 1 + max((int(line.get("generation", 0)) for line in self.lines), default=0)

    def until(self, generations: int) -> LotTable:
        """The lots of the first generations."""
        lines = tuple(line for line in self.lines if line.get("generation", 0) < generations)
        return LotTable(lines, {line["lot"]: self.lots[line["lot"]] for line in lines})


def read_lots(root: Path, snapshot: Snapshot) -> LotTable:
    """Read the lots of a snapshot, by recipe order of sources.

    Raises:
        GristmillError: the snapshot has no lots yet.
    """
    if "lots" not in snapshot.steps:
        raise GristmillError("the lake has no packed lots yet", where=str(root), fix="run `gristmill curate RECIPE` first")
    lines = [line for file in snapshot.files("lots") for line in pq.read_table(here(root, file.path), partitioning=None).to_pylist()]
    shards: dict[str, list[LotShard]] = {}
    for entry in snapshot.steps["pack"]:
        if "shards" in entry.files:
            file = entry.files["shards"]
            shards.setdefault(entry.label.partition("/")[0], []).append(LotShard(file.path, file.rows, file.bytes, file.checksum))
    lots = {
        line["lot"]: Lot(line["lot"], line["source"], line["row_length"], tuple(shards[line["lot"]]), _bytes_per_token(line))
        for line in lines
    }
    return LotTable(tuple(lines), lots)


def _bytes_per_token(line: Mapping[str, Any]) -> float:
    """Text bytes for each predicted token; bytes of discarded tails are taken as proportional to their tokens."""
    predicted = line["tokens"] - line["pieces"]
    in_rows = line["tokens"] / (line["tokens"] + line["discarded"])
    return float(line["bytes"] * in_rows / predicted) if predicted else 0.0
