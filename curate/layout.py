"""Layout: the order of each source's documents in lots: repeat classes, difficulty bins, pack shards, and the first row of each.

Pack shards are ranges of a lot's documents in input order, of about equal token counts, so that they are a function of documents and
recipe alone. Packing is pure and quick, so it is done here once to number the rows, and again where they are written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from curate.corpus import column_array, id_hashes, rows_of, shards_of
from curate.curation import file_of, source_of
from curate.pack import Packing, pack
from curate.rules.expression import kept_sandbox, validate_expression
from curate.scores import content_of, read_signals, signal_files, signal_schema
from curate.sql import connect, parquet
from curate.step import Json, Shard, ShardWriter, Step
from curate.tokenize import LENGTHS
from schemas.errors import RecipeError
from schemas.manifest import Entry
from schemas.recipe import Recipe
from schemas.sources import Rehydration, Repeats, Source
from schemas.store import publish_json

REPEAT_DRAW = 0x52455045
"""Added to the seed, so that the draw of fractional repeats is independent of the other draws by doc_id."""
LENGTH_DRAW = 0x4C454E47
"""The same for the draw of documents that are packed into shorter rows."""


def layout_step(
    recipe: Recipe, ends: Sequence[int], tokens: Sequence[Entry], steps: Mapping[str, Sequence[Entry]]
) -> tuple[Step, list[Shard]]:
    """The step that orders each source's documents of each generation into bins and pack shards.

    It publishes files ``layout`` (a row group each) and ``cuts``. Ranks by difficulty and quality are those within the generation.
    """
    settings, own = recipe.pack, list(recipe.signals)
    check_expressions(recipe)
    shards = []
    spans = enumerate(zip([0, *ends], ends, strict=False))
    for (generation, (begin, end)), (name, source) in product(spans, recipe.sources.items()):
        mine = [shard for shard in range(begin, end) if source_of(tokens[shard]) == name]
        quality, curve, clusters = _uses(source, steps, generation)
        by = {column: sql for column, sql in {"difficulty": source.difficulty, "quality": quality}.items() if sql is not None}
        draws = {"bins": settings.bins, "by": by, "curve": curve, "seed": recipe.seed}
        draws |= {"shorter": sorted(settings.lengths.items())} if settings.lengths else {}
        inputs: Json = [[tokens[shard].content for shard in mine], [content_of(steps, own, shard) for shard in mine] if by else [], draws]
        inputs += [] if clusters is None else [clusters.content]
        task = draws | {
            "source": name,
            "pack": pack_settings(recipe),
            "clusters": None if clusters is None else file_of(clusters, "clusters"),
            "lengths": [file_of(tokens[shard], "lengths") for shard in mine],
            "signals": [signal_files(steps, own, shard) for shard in mine],
        }
        shards.append(Shard(f"{name}/{generation:05d}", inputs, task))
    return Step("layout", 2, pack_settings(recipe), _layout), shards


def _uses(source: Source, steps: Mapping[str, Sequence[Entry]], generation: int) -> tuple[str | None, Json, Entry | None]:
    """How often documents are used: quality to rank by, the curve, and for uses by cluster size the entry with the clusters."""
    if isinstance(source.repeats, Repeats):
        return source.repeats.by, source.repeats.model_dump(exclude={"by"}), None
    if isinstance(source.repeats, Rehydration):
        return None, [list(pair) for pair in source.repeats.weights.items()], steps["dedup"][generation]
    return None, {"drop": 0.0, "most": source.epochs, "power": 0.0, "rate": 0.0}, None


def generation_of(layout: Entry) -> int:
    """The generation of an entry of the layout step."""
    return int(layout.label.partition("/")[2])


def check_expressions(recipe: Recipe) -> None:
    """Accept difficulties and qualities that are each one numeric expression over signals.

    Raises:
        RecipeError: one that is anything else; says which, and what is wrong with it.
    """
    columns = signal_schema(recipe.signals)
    for name, source in recipe.sources.items():
        if source.difficulty is not None:
            validate_expression(source.difficulty, columns, where=f"sources.{name}.difficulty")
        if isinstance(source.repeats, Repeats):
            validate_expression(source.repeats.by, columns, where=f"sources.{name}.repeats.by")


def pack_settings(recipe: Recipe) -> dict[str, Json]:
    """The recipe's packing, less what the layout keeps apart."""
    return recipe.pack.model_dump(exclude={"bins", "lengths"})


def _layout(writer: ShardWriter, task: Json) -> Mapping[str, int]:
    table = _documents(writer.root, task)
    cuts: list[dict[str, Json]] = []
    groups: list[pa.Table] = []
    for repeats, level, row_length, rows in _groups(table):
        settings = task["pack"] | {"row_length": row_length}
        lot = table.take(pa.array(rows))
        lengths, places = lot.column("tokens").to_numpy(), lot.column("locator").to_numpy()
        for number, (first, stop) in enumerate(_pack_shards(lengths, settings)):
            packing = packed(lengths[first:stop], settings)
            before = cuts[-1]["first_row"] + cuts[-1]["rows"] if number else 0
            shards = np.unique(shards_of(places[first:stop])).tolist()
            where = {"split": "train" if repeats else "holdout", "repeats": repeats, "bin": level, "number": number, "shards": shards}
            # Rows depend on how they are packed even where the layout does not: which of BOS and EOS there is, say.
            cuts.append(where | {"first_row": before, "rows": packing.rows, "pack": settings})
            groups.append(lot.slice(first, stop - first))
    if groups:
        writer.publish("layout", "parquet", lambda path: _write_groups(path, groups), sum(group.num_rows for group in groups))
        writer.files["cuts"] = publish_json(writer.root, f"layout/{writer.label}-{writer.key[:12]}.json", cuts)
    unused = table.column("tokens").to_numpy()[_unused(table)]
    return {"documents": table.num_rows, "shards": len(cuts), "unused_documents": len(unused), "unused_tokens": int(unused.sum())}


def _documents(root: Path, task: Json) -> pa.Table:
    """A source's documents in input order: id, locator, held_out, tokens with BOS and EOS, bytes, repeats, bin."""
    parts = [LENGTHS.empty_table()]
    values: dict[str, list[NDArray[np.float64]]] = {column: [np.empty(0)] for column in task["by"]}
    for lengths, signals in zip(task["lengths"], task["signals"], strict=True):
        if lengths is not None:
            parts.append(pq.read_table(root / lengths, partitioning=None))
            rows = rows_of(parts[-1].column("locator").to_numpy())
            for column, sql in task["by"].items():
                values[column].append(_evaluate(read_signals(root, signals), sql, column, task["source"])[rows])
    table = pa.concat_tables(parts)
    table = table.set_column(table.column_names.index("tokens"), "tokens", pc.add(table.column("tokens"), specials(task["pack"])))
    ordered = {column: _places(table, np.concatenate(parts)) for column, parts in values.items()}
    wanted = _wanted(table, ordered.get("quality"), task["curve"]) if task["clusters"] is None else _by_cluster(root, table, task)
    table = table.append_column("repeats", pa.array(_repeats(table, wanted, task["seed"])))
    table = table.append_column("bin", pa.array(_bins(table, ordered.get("difficulty"), task["bins"])))
    return table.append_column("row_length", pa.array(_row_lengths(table, task)))


def specials(settings: Mapping[str, Json]) -> int:
    """Tokens that packing adds to each document."""
    return int(settings["bos"]) + int(settings["eos"])


def _evaluate(signals: pa.Table, sql: str, column: str, source: str) -> NDArray[np.float64]:
    """An expression over a shard's signals; NULL and NaN are hardest, or worst."""
    db = kept_sandbox().cursor()
    db.register("signals", signals)
    try:
        result = db.sql(f"SELECT CAST(({sql}\n) AS DOUBLE) AS value FROM signals").to_arrow_table()
    except duckdb.Error as error:
        raise RecipeError(
            f"{sql!r} cannot be computed: {str(error).splitlines()[0]}", where=f"sources.{source}: {column}", fix="correct the expression"
        ) from error
    finally:
        db.close()
    values: NDArray[np.float64] = pc.fill_null(result.column("value"), float("nan")).to_numpy()
    return np.where(np.isnan(values), np.inf if column == "difficulty" else -np.inf, values)


def _places(table: pa.Table, values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Place of each document to train on in the order of values, from 0, ties by doc_id; 0 when held out."""
    rows = _train(table)
    ids = column_array(table, "doc_id")
    words = np.frombuffer(ids.buffers()[1], dtype=">u8")[2 * ids.offset : 2 * (ids.offset + len(ids))].reshape(-1, 2)
    places = np.zeros(table.num_rows, dtype=np.int64)
    places[rows[np.lexsort((words[rows, 1], words[rows, 0], values[rows]))]] = np.arange(len(rows))
    return places


def _train(table: pa.Table) -> NDArray[np.int64]:
    """Rows of the documents that are not held out."""
    return np.flatnonzero(~table.column("held_out").to_numpy())


def _bins(table: pa.Table, places: NDArray[np.int64] | None, bins: int) -> NDArray[np.int32]:
    """Exact quantile bins; 0 for documents that are held out, and for all where no difficulty is declared."""
    if places is None:
        return np.zeros(table.num_rows, dtype=np.int32)
    return (places * bins // max(1, len(_train(table)))).astype(np.int32)


def _wanted(table: pa.Table, places: NDArray[np.int64] | None, curve: Json) -> NDArray[np.float64]:
    """Uses of each document by its rank in quality, fractions and all; the same of each where none is declared."""
    if isinstance(curve, list):  # by cluster size, and there are no duplicates
        return np.full(table.num_rows, float(curve[0][1]))
    if places is None:
        return np.full(table.num_rows, float(curve["most"]))
    rank = ((places + 0.5) / max(1, len(_train(table))) - curve["drop"]) / (1 - curve["drop"])
    uses: NDArray[np.float64] = curve["most"] * np.maximum(rank, 0) ** curve["power"] * np.exp(curve["rate"] * (rank - 1))
    return np.where(rank > 0, uses, 0.0)


def _by_cluster(root: Path, table: pa.Table, task: Json) -> NDArray[np.float64]:
    """Uses of each document by the size of its cluster, itself counted."""
    with connect() as db:
        db.register("kept", pa.table({"doc_id": table.column("doc_id").cast(pa.binary()), "place": np.arange(table.num_rows)}))
        found = db.sql(
            f"""
            SELECT place, count(*) + 1 AS size FROM {parquet([str(root / task["clusters"])])} c
            JOIN kept ON kept.doc_id = c.kept_doc_id GROUP BY ALL
            """
        ).fetchnumpy()
    sizes = np.ones(table.num_rows, dtype=np.int64)
    sizes[found["place"]] = found["size"]
    least, uses = (np.array(column) for column in zip(*task["curve"], strict=True))
    chosen: NDArray[np.float64] = uses.astype(np.float64)[np.searchsorted(least, sizes, side="right") - 1]
    return chosen


def _repeats(table: pa.Table, wanted: NDArray[np.float64], seed: int) -> NDArray[np.int32]:
    """Uses of each document, 0 when held out: whole ones, and one more for the share that a hash of doc_id and seed draws."""
    train = ~table.column("held_out").to_numpy()
    whole = np.floor(wanted)
    draw = id_hashes(column_array(table, "doc_id"), seed + REPEAT_DRAW) / 2.0**64
    repeats: NDArray[np.int32] = np.where(train, whole + (draw < wanted - whole), 0).astype(np.int32)
    return repeats


def _row_lengths(table: pa.Table, task: Json) -> NDArray[np.int32]:
    """Row length of each document: the full one when held out, else a shorter one for the share that a hash of doc_id and seed draws."""
    full, lengths = task["pack"]["row_length"], task.get("shorter", [])
    ends = np.cumsum([share for _, share in lengths])
    draw = id_hashes(column_array(table, "doc_id"), task["seed"] + LENGTH_DRAW) / 2.0**64
    drawn = np.array([*(length for length, _ in lengths), full], dtype=np.int32)[np.searchsorted(ends, draw, side="right")]
    found: NDArray[np.int32] = np.where(table.column("held_out").to_numpy(), full, drawn).astype(np.int32)
    return found


def _unused(table: pa.Table) -> NDArray[np.bool_]:
    """Documents that are neither held out nor ever used."""
    unused: NDArray[np.bool_] = (table.column("repeats").to_numpy() == 0) & ~table.column("held_out").to_numpy()
    return unused


def _groups(table: pa.Table) -> Iterator[tuple[int, int, int, NDArray[np.int64]]]:
    """Repeats, bin, row length and rows of each lot, in input order; the held-out lot, of repeats 0, is the last."""
    repeats, bins, lengths = (table.column(name).to_numpy() for name in ("repeats", "bin", "row_length"))
    used = ~_unused(table)
    for times in sorted({int(times) for times in np.unique(repeats[used])}, key=lambda times: (times == 0, times)):
        for level in np.unique(bins[used & (repeats == times)]):
            mine = used & (repeats == times) & (bins == level)
            for length in np.unique(lengths[mine]):
                yield times, int(level), int(length), np.flatnonzero(mine & (lengths == length))


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
