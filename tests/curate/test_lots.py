"""Lots: rows hold exactly the kept and held-out documents, whatever the workers, and every token is accounted for."""

import json
import math
from collections import defaultdict

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curate.engine import LocalExecutor
from curate.lots import build_lots, read_lots
from curate.step import Silent
from curate.tokenizer import load_tokenizer
from schemas.errors import GristmillError
from schemas.manifest import read_snapshot
from tests.curate.judged_lake import doc_id, judged, made_shards, recipe

SHARDS = made_shards()


def build(root, workers=1, executor=None, **changes):
    return build_lots(root, recipe(**changes), judged(root, SHARDS), executor or LocalExecutor(workers), Silent())


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    root = tmp_path_factory.mktemp("lake")
    build(root)
    return root


def texts_of(state, source=None):
    return {doc_id(s, number): text for s, documents in SHARDS for number, text, st, _ in documents if st == state and source in (None, s)}


def table(root, name):
    snapshot = read_snapshot(root)
    return pa.concat_tables([pq.read_table(root / file.path, partitioning=None) for file in snapshot.files(name)])


def documents_in_rows(root, split):
    """Token ids of each document put together from the rows by the table ``rows``."""
    snapshot = read_snapshot(root)
    lots = {line["lot"]: line for line in table(root, "lots").to_pylist() if line["split"] == split}
    arrays = {lot: [] for lot in lots}
    for shard in snapshot.files("shards"):
        with pa.memory_map(str(root / shard.path)) as source:
            batch = pa.ipc.open_file(source).get_batch(0)
            lot = batch.schema.metadata[b"lot"].decode()
            if lot in lots:
                arrays[lot].append(batch.column("tokens").flatten().to_numpy().reshape(batch.num_rows, -1))
    rows = {lot: np.concatenate(parts) for lot, parts in arrays.items()}
    pieces = defaultdict(list)
    for row in table(root, "rows").to_pylist():
        if row["lot"] in lots:
            tokens = rows[row["lot"]][row["row"], row["start"] : row["start"] + row["tokens"]]
            pieces[row["doc_id"]].append((row["offset"], tokens))
    return {key: np.concatenate([tokens for _, tokens in sorted(parts, key=lambda part: part[0])]) for key, parts in pieces.items()}


@pytest.mark.parametrize(("split", "state"), [("train", "kept"), ("holdout", "held_out")])
def test_every_text_is_recovered_from_its_rows(tmp_path, split, state):
    build(tmp_path, pack={"row_length": 64, "rows_per_shard": 50, "bins": 3, "min_tail": 1})
    tokenizer = load_tokenizer(tmp_path / read_snapshot(tmp_path).steps["tokenizer"][0].files["tokenizer"].path)
    found = documents_in_rows(tmp_path, split)
    expected = texts_of(state)
    assert set(found) == set(expected)
    for key, text in expected.items():
        assert (found[key][0], found[key][-1]) == (tokenizer.bos, tokenizer.eos)
        assert tokenizer.decode(found[key]) == text


def test_boundaries_in_the_row_agree_with_the_table_of_rows(lake):
    by_row = defaultdict(list)
    for row in table(lake, "rows").to_pylist():
        by_row[row["lot"], row["row"]].append((row["start"] + row["tokens"], row["doc_id"]))
    seen = 0
    first = defaultdict(int)
    for shard in read_snapshot(lake).files("shards"):
        with pa.memory_map(str(lake / shard.path)) as source:
            reader = pa.ipc.open_file(source)
            assert reader.num_record_batches == 1
            assert set(reader.schema.metadata) >= {b"lot", b"source", b"tokenizer", b"row_length"}
            lot = reader.schema.metadata[b"lot"].decode()
            for line in reader.get_batch(0).to_pylist():
                assert list(zip(line["ends"], line["doc_ids"])) == by_row[lot, first[lot]]
                assert line["ends"] == sorted(line["ends"])
                first[lot] += 1
                seen += 1
    assert seen == len(by_row) == sum(line["rows"] for line in table(lake, "lots").to_pylist())


def test_workers_and_completion_order_change_no_byte(lake, tmp_path):
    class Backwards(LocalExecutor):
        def run(self, function, tasks, processes):
            return iter(list(super().run(function, tasks, False))[::-1])

    build(tmp_path / "many", workers=3)
    build(tmp_path / "back", executor=Backwards(2))
    assert published(tmp_path / "many") == published(lake) == published(tmp_path / "back")


def published(root):
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def test_a_second_build_does_nothing_and_gives_the_same(lake):
    before = read_snapshot(lake)

    class Idle(LocalExecutor):
        def run(self, function, tasks, processes):
            assert not tasks
            return iter(())

    assert build(lake, executor=Idle(1)).id == before.id


def test_tokens_are_conserved_by_sql(lake):
    lots, rows = table(lake, "lots"), table(lake, "rows")
    assert lots.num_rows < rows.num_rows
    made = {"train": 0, "holdout": 0}
    for entry in read_snapshot(lake).steps["tokenize"]:
        made["train"] += entry.counts["tokens"] + 2 * entry.counts["documents"]
        made["holdout"] += entry.counts["held_out_tokens"] + 2 * entry.counts["held_out_documents"]
    summed = duckdb.sql("SELECT split, sum(rows.tokens) FROM rows JOIN lots USING (lot) GROUP BY split").fetchall()
    discarded = dict(duckdb.sql("SELECT split, sum(discarded) FROM lots GROUP BY split").fetchall())
    assert {split: int(tokens) + int(discarded[split]) for split, tokens in summed} == made
    assert discarded["train"] > 0


def test_a_lost_row_fails_the_run(tmp_path, monkeypatch):
    import curate.lots as lots

    write = lots._pack

    def lossy(writer, task):
        original = writer.table
        writer.table = lambda name, rows: original(name, rows.slice(1) if task["group"] == 0 else rows)
        return write(writer, task)

    monkeypatch.setattr(lots, "_pack", lossy)
    with pytest.raises(GristmillError, match="tokens were made, but"):
        build(tmp_path)


def test_lots_follow_source_split_repeats_and_exact_bins(lake):
    lines = table(lake, "lots").to_pylist()
    assert {(line["source"], line["split"], line["repeats"], line["bin"]) for line in lines} == {
        *(("books", "train", 4, level) for level in range(3)),
        ("books", "holdout", 0, 0),
        ("web", "train", 1, 0),
        ("web", "holdout", 0, 0),
    }
    difficulty = {doc_id(s, number): lines for s, documents in SHARDS for number, _, _, lines in documents}
    kept = sorted(texts_of("kept", "books"), key=lambda key: (difficulty[key], key))
    level = {key: place * 3 // len(kept) for place, key in enumerate(kept)}
    bin_of = {line["lot"]: line["bin"] for line in lines if (line["source"], line["split"]) == ("books", "train")}
    packed = {row["doc_id"]: bin_of[row["lot"]] for row in table(lake, "rows").to_pylist() if row["lot"] in bin_of}
    assert packed == level


def test_padding_and_shard_sizes(lake):
    snapshot = read_snapshot(lake)
    for entry in snapshot.steps["pack"]:
        assert entry.counts["padding"] < max(2 * 64, 0.005 * 64 * entry.counts["rows"])
        assert entry.files["shards"].rows == entry.counts["rows"] <= 75
    assert len({entry.label.partition("/")[0] for entry in snapshot.steps["pack"]}) < len(snapshot.steps["pack"])


def test_the_trainer_gets_lots_with_files_and_bytes_per_token(lake):
    found = read_lots(lake, read_snapshot(lake))
    for line in found.lines:
        lot = found.lots[line["lot"]]
        assert lot.rows == line["rows"]
        assert all((lake / shard.path).is_file() for shard in lot.shards)
        assert 1 < lot.bytes_per_token < 10


def test_datasets_opens_the_shards(lake, tmp_path):
    import datasets

    lot = next(iter(read_lots(lake, read_snapshot(lake)).lots.values()))
    files = [str(lake / shard.path) for shard in lot.shards]
    opened = datasets.load_dataset("arrow", data_files=files, split="train", streaming=True, cache_dir=str(tmp_path))
    first = next(iter(opened))
    assert len(first["tokens"]) == 64
    assert sum(1 for _ in opened) == lot.rows


@pytest.mark.parametrize(("epochs", "counts"), [(2.5, {2, 3}), (0.25, {0, 1}), (3, {3})])
def test_fractional_epochs_are_drawn_by_document(tmp_path, epochs, counts):
    sources = recipe().model_dump(mode="json")["sources"]
    sources["books"] = sources["books"] | {"max_epochs": epochs, "difficulty": None}
    build(tmp_path, sources=sources)
    uses = uses_by_document(tmp_path, "books")
    found = np.array([uses.get(key, 0) for key in texts_of("kept", "books")])
    assert set(found) == counts
    assert abs(found.mean() - epochs) < 0.15


def uses_by_document(root, source):
    """Uses of each document of the training lots of a source, by SQL; a document lies in one lot."""
    lots, rows = table(root, "lots"), table(root, "rows")
    assert lots.num_rows and rows.num_rows
    found = duckdb.sql(
        f"SELECT doc_id, min(repeats), count(DISTINCT lot) FROM rows JOIN lots USING (lot) "
        f"WHERE source = '{source}' AND split = 'train' GROUP BY doc_id"
    ).fetchall()
    assert all(number == 1 for _, _, number in found)
    return {key: repeats for key, repeats, _ in found}


def test_uses_follow_quality_by_the_curve(tmp_path):
    sources = recipe().model_dump(mode="json")["sources"]
    curve = {"by": "n_bytes", "drop": 0.4, "most": 7, "power": 1, "rate": 1}
    sources["books"] = sources["books"] | {"repeats": curve, "difficulty": None}
    build(tmp_path, sources=sources)
    texts = texts_of("kept", "books")
    order = sorted(texts, key=lambda key: (len(texts[key].encode()), key))
    uses = uses_by_document(tmp_path, "books")
    for place, key in enumerate(order):
        rank = ((place + 0.5) / len(order) - 0.4) / 0.6
        wanted = 7 * rank * math.exp(rank - 1) if rank > 0 else 0
        assert uses.get(key, 0) in (math.floor(wanted), math.ceil(wanted))
    assert max(uses.values()) == 7


def test_a_difficulty_that_cannot_be_evaluated_names_its_source(tmp_path):
    sources = json.loads(recipe().model_dump_json())["sources"]
    for expression in ("n_no_such_signal", "max(n_bytes)", "(SELECT count(*) FROM read_text('/etc/hostname'))"):
        sources["books"]["difficulty"] = expression
        with pytest.raises(GristmillError, match="sources.books.difficulty"):
            build(tmp_path, sources=sources)


def test_nothing_kept_is_an_error_that_says_so(tmp_path):
    snapshot = judged(tmp_path, [("web", [(0, "text", "dropped", 0)])])
    for made in (recipe(), recipe(tokenizer={"kind": "byte"})):
        with pytest.raises(GristmillError, match="no document was kept"):
            build_lots(tmp_path, made, snapshot, LocalExecutor(1), Silent())
