"""Layout: the order of each source's documents in lots: difficulty bins, pack shards, and the first row of each.

Pack shards are ranges of a lot's documents in input order, of about equal token counts, so that they are a function of documents and
recipe alone. Packing is pure and quick, so it is done here once to number the rows, and again where they are written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from curate.corpus import ROW_BITS, column_array
from curate.curation import source_of
from curate.pack import Packing, pack
from curate.rules.expression import sandbox, validate_expression
from curate.step import Json, Shard, ShardWriter, Step
from curate.tokenize import LENGTHS, file_of
from schemas.errors import RecipeError
from schemas.manifest import Entry
from schemas.recipe import Recipe
from schemas.signals import SIGNALS
from schemas.store import publish_json

ROW_MASK = np.uint64((1 << ROW_BITS) - 1)


def layout_step(recipe: Recipe, tokens: Sequence[Entry], signals: Sequence[Entry]) -> tuple[Step, list[Shard]]:
    """The step that orders each source's documents into bins and pack shards: files ``layout`` (a row group each) and ``cuts``."""
    settings = recipe.pack
    check_difficulties(recipe)
    shards = []
    for name, source in recipe.sources.items():
        mine = [shard for shard, entry in enumerate(tokens) if source_of(entry) == name]
        inputs: Json = [tokens[shard].key for shard in mine]
        task: dict[str, Json] = {
            "source": name,
            "lengths": [file_of(tokens[shard], "lengths") for shard in mine],
            "pack": pack_settings(recipe),
        }
        if source.difficulty is not None:
            inputs = [inputs, [signals[shard].key for shard in mine], source.difficulty, settings.bins]
            files = [file_of(signals[shard], "signals") for shard in mine]
            task |= {"difficulty": source.difficulty, "bins": settings.bins, "signals": files}
        shards.append(Shard(name, inputs, task))
    return Step("layout", 1, pack_settings(recipe), _layout), shards


def check_difficulties(recipe: Recipe) -> None:
    """Accept difficulties that are each one numeric expression over signals.

    Raises:
        RecipeError: one that is anything else; says which, and what is wrong with it.
    """
    for name, source in recipe.sources.items():
        if source.difficulty is not None:
            validate_expression(source.difficulty, SIGNALS, where=f"sources.{name}.difficulty")


def pack_settings(recipe: Recipe) -> dict[str, Json]:
    """The recipe's packing, less what the layout keeps apart."""
    return recipe.pack.model_dump(exclude={"bins"})


def _layout(writer: ShardWriter, task: Json) -> Mapping[str, int]:
    table = _documents(writer.root, task)
    cuts: list[dict[str, Json]] = []
    groups: list[pa.Table] = []
    for (held_out, level), rows in _groups(table):
        lot = table.take(pa.array(rows))
        lengths, places = lot.column("tokens").to_numpy(), lot.column("locator").to_numpy()
        for number, (first, stop) in enumerate(_pack_shards(lengths, task["pack"])):
            packing = packed(lengths[first:stop], task["pack"])
            before = cuts[-1]["first_row"] + cuts[-1]["rows"] if number else 0
            shards = np.unique(places[first:stop] >> np.uint64(ROW_BITS)).tolist()
            where = {"split": "holdout" if held_out else "train", "bin": level, "number": number, "shards": shards}
            cuts.append(where | {"first_row": before, "rows": packing.rows})
            groups.append(lot.slice(first, stop - first))
    if groups:
        writer.publish("layout", "parquet", lambda path: _write_groups(path, groups), table.num_rows)
        writer.files["cuts"] = publish_json(writer.root, f"layout/{writer.label}-{writer.key[:12]}.json", cuts)
    return {"documents": table.num_rows, "shards": len(cuts)}


def _documents(root: Path, task: Json) -> pa.Table:
    """A source's documents in input order: id, locator, held_out, tokens with BOS and EOS, bytes, bin."""
    parts = []
    for position, path in enumerate(task["lengths"]):
        if path is not None:
            part = pq.read_table(root / path, partitioning=None)
            levels = _difficulty(root / task["signals"][position], part, task) if "difficulty" in task else np.zeros(part.num_rows)
            parts.append(part.append_column("difficulty", pa.array(levels)))
    if not parts:
        return LENGTHS.empty_table().append_column("bin", pa.array([], pa.int32()))
    table = pa.concat_tables(parts)
    table = table.set_column(table.column_names.index("tokens"), "tokens", pc.add(table.column("tokens"), specials(task["pack"])))
    bins = _bins(table, task.get("bins", 1))
    return table.drop_columns(["difficulty"]).append_column("bin", pa.array(bins))


def specials(settings: Mapping[str, Json]) -> int:
    """Tokens that packing adds to each document."""
    return int(settings["bos"]) + int(settings["eos"])


def _difficulty(signals: Path, part: pa.Table, task: Json) -> NDArray[np.float64]:
    """The difficulty of a shard's documents; NULL is hardest."""
    table = pq.read_table(signals, partitioning=None)
    db = sandbox()
    db.register("signals", table)
    try:
        result = db.sql(f"SELECT CAST(({task['difficulty']}\n) AS DOUBLE) AS difficulty FROM signals").to_arrow_table()
    except duckdb.Error as error:
        raise RecipeError(
            f"{task['difficulty']!r} cannot be computed: {str(error).splitlines()[0]}",
            where=f"sources.{task['source']}.difficulty",
            fix="correct the expression",
        ) from error
    finally:
        db.close()
    values = pc.fill_null(result.column("difficulty"), float("inf")).to_numpy()
    rows = part.column("locator").to_numpy() & ROW_MASK
    difficulty: NDArray[np.float64] = np.nan_to_num(values, nan=np.inf, posinf=np.inf, neginf=-np.inf)[rows.astype(np.int64)]
    return difficulty


def _bins(table: pa.Table, bins: int) -> NDArray[np.int32]:
    """Exact quantile bins of the documents to train on, ties by doc_id; held-out documents are all in bin 0."""
    result = np.zeros(table.num_rows, dtype=np.int32)
    if bins > 1:
        rows = np.flatnonzero(~table.column("held_out").to_numpy())
        ids = column_array(table, "doc_id")
        words = np.frombuffer(ids.buffers()[1], dtype=">u8")[2 * ids.offset : 2 * (ids.offset + len(ids))].reshape(-1, 2)
        difficulty = table.column("difficulty").to_numpy()
        order = rows[np.lexsort((words[rows, 1], words[rows, 0], difficulty[rows]))]
        result[order] = np.arange(len(order)) * bins // max(1, len(order))
    return result


def _groups(table: pa.Table) -> Iterator[tuple[tuple[bool, int], NDArray[np.int64]]]:
    """Rows of each lot, in input order: training lots by bin, then held-out ones."""
    held_out, bins = table.column("held_out").to_numpy(), table.column("bin").to_numpy()
    for split in (False, True):
        for level in np.unique(bins[held_out == split]):
            yield (split, int(level)), np.flatnonzero((held_out == split) & (bins == level))


def _pack_shards(lengths: NDArray[np.int64], settings: Mapping[str, Json]) -> list[tuple[int, int]]:
    """Ranges of documents of about equal token counts, each of about ``rows_per_shard`` rows."""
    total = int(lengths.sum())
    count = max(1, round(total / (settings["row_length"] * settings["rows_per_shard"])))
    number = (np.cumsum(lengths) - lengths) * count // max(1, total)
    stops = np.searchsorted(number, np.arange(count), side="right")
    starts = np.concatenate([[0], stops[:-1]])
    return [(int(first), int(stop)) for first, stop in zip(starts, stops, strict=True) if stop > first]


def packed(lengths: NDArray[np.int64], settings: Mapping[str, Json]) -> Packing:
    """The packing of a pack shard."""
    return pack(lengths, settings["row_length"], settings["min_tail"], settings["max_padding"])


def _write_groups(path: Path, groups: Sequence[pa.Table]) -> None:
    with pq.ParquetWriter(path, groups[0].schema, compression="zstd") as writer:
        for group in groups:
            writer.write_table(group, row_group_size=max(1, group.num_rows))
