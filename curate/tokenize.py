"""Tokenise: the run's tokenizer (trained pairs, bytes or a file), and the token ids of every kept and held-out document.

Byte-level and without a normaliser, so that every text is recovered exactly from its ids, and text that happens to spell a special token
stays text. Ids are made once for each document; BOS and EOS are added when documents are packed.
"""

from __future__ import annotations

import hashlib
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from curate import middle
from curate.corpus import Corpus, column_array, id_hashes, rows_of
from curate.curation import file_of, source_of
from curate.step import Json, Shard, ShardWriter, Step
from curate.tokenizer import (
    BOS,
    BYTE_FILES,
    EOS,
    PAD,
    ByteTokenizer,
    Tokenizer,
    file_content,
    load_tokenizer,
    offsets_of,
    refuse_lossy,
    train_pairs,
)
from schemas.errors import InputError
from schemas.manifest import Entry
from schemas.recipe import Recipe
from schemas.store import checksum
from schemas.tables import DOC_ID

BATCH_BYTES = 2_000_000
"""Text given to the tokenizer at once: its results take some 100 bytes a token until they are copied."""

LENGTHS = pa.schema(
    [
        ("doc_id", DOC_ID),
        ("locator", pa.uint64()),
        ("held_out", pa.bool_()),
        ("tokens", pa.int64()),
        ("bytes", pa.int64()),
    ]
)
"""What packing needs to know of each document: ids without BOS and EOS, and UTF-8 bytes."""


def tokenizer_step(recipe: Recipe, read: Sequence[Entry], verdicts: Sequence[Entry]) -> tuple[Step, list[Shard]]:
    """The step of one shard that makes the run's tokenizer (file ``tokenizer``).

    Args:
        recipe: the recipe.
        read: entries of the read step.
        verdicts: entries of the verdicts step, in the same order.

    Raises:
        InputError: the tokenizer file cannot be used.
    """
    settings = recipe.tokenizer
    inputs: Json = None
    fills = {"fills_middle": True} if any(source.fill_in_the_middle for source in recipe.sources.values()) else {}
    task: dict[str, Json] = {"kind": settings.kind, **fills}
    if settings.kind == "bpe":
        draw = {"vocabulary": settings.vocabulary, "sample_bytes": settings.sample_bytes, "seed": recipe.seed}
        inputs = [[entry.content for entry in read], [entry.content for entry in verdicts], draw]
        task |= draw | {"documents": [file_of(e, "documents") for e in read], "verdicts": [file_of(e, "verdicts") for e in verdicts]}
    elif settings.kind != "byte":
        inputs, task["file"] = _usable(recipe).fingerprint, _file(recipe, bool(fills))
    return Step("tokenizer", 1, {"kind": settings.kind, **fills}, _make_tokenizer), [Shard(settings.kind, inputs, task)]


def check_tokenizer(recipe: Recipe) -> None:
    """Refuse a tokenizer's file that cannot be used, which is known before anything is read.

    Raises:
        InputError: there is none, it loses something of a text, or it lacks the tokens of fill-in-the-middle.
    """
    if recipe.tokenizer.kind in ("file", "tiktoken"):
        _usable(recipe)


def _usable(recipe: Recipe) -> Tokenizer:
    fills = any(source.fill_in_the_middle for source in recipe.sources.values())
    path = Path(str(recipe.tokenizer.path))
    loaded = _examined(_content(_file(recipe, fills)), path)
    if fills and loaded.middle is None:
        names = ", ".join(middle.TOKENS)
        raise InputError(f"it has no tokens to fill in the middle, such as {names}", where=str(path), fix="add them to the file")
    return loaded


def _file(recipe: Recipe, fills: bool) -> dict[str, Json]:
    """What is made of a tokenizer's file or folder."""
    settings = recipe.tokenizer
    file: dict[str, Json] = {"kind": settings.kind, "path": str(settings.path)}
    if settings.kind == "tiktoken":
        file |= {"pattern": settings.pattern or "cl100k", "special": settings.special, "fills": fills}
    return file


def expected_vocabulary(recipe: Recipe) -> int:
    """Words of the tokenizer that a recipe will have, before anything is curated; of one to be trained as many as are asked for.

    Raises:
        InputError: its file cannot be used.
    """
    fills = any(source.fill_in_the_middle for source in recipe.sources.values())
    if recipe.tokenizer.kind == "byte":
        return ByteTokenizer(fills_middle=fills).vocabulary
    if recipe.tokenizer.kind == "bpe":
        return recipe.tokenizer.vocabulary
    return _usable(recipe).vocabulary


def _make_tokenizer(writer: ShardWriter, task: Json) -> Mapping[str, int]:
    counts = {"bytes": 0, "documents": 0}
    if task["kind"] == "bpe":
        texts = _sample(writer.root, task)
        counts = {"bytes": sum(len(text.encode()) for text in texts), "documents": len(texts)}
        special = (BOS, EOS, PAD, *(middle.TOKENS if task.get("fills_middle") else ()))
        content = train_pairs(iter(texts), task["vocabulary"], special).encode()
    else:
        content = BYTE_FILES["fills_middle" in task] if task["kind"] == "byte" else _content(task["file"])
    writer.publish("tokenizer", "json", lambda path: _write(path, content))
    return {**counts, "vocabulary": load_tokenizer(writer.root / writer.files["tokenizer"].path).vocabulary}


def _content(file: Json) -> bytes:
    return file_content(file["kind"], Path(file["path"]), file.get("pattern", ""), file.get("special"), fills=file.get("fills", False))


def _examined(content: bytes, path: Path) -> Tokenizer:
    """The tokenizer that a content makes.

    Raises:
        InputError: none, or one that loses something of a text.
    """
    with tempfile.TemporaryDirectory(prefix="gristmill-") as folder:
        copy = Path(folder) / path.name
        copy.write_bytes(content)
        loaded = load_tokenizer(copy)
    refuse_lossy(loaded, path)
    loaded.fingerprint = hashlib.blake2b(content, digest_size=16).hexdigest()
    return loaded


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def nothing_kept() -> InputError:
    """The error of a curation that leaves nothing."""
    return InputError(
        "no document was kept, so there is no text to train on",
        where="tokenizer",
        fix="loosen the rules or check the sources; `gristmill stats` tells why documents were dropped",
    )


def _sample(root: Path, task: Json) -> list[str]:
    """Kept documents in order of a hash of doc_id and seed, until ``sample_bytes`` are reached."""
    columns = ["doc_id", "locator", "bytes"]
    tables = [
        pq.read_table(root / path, columns=columns, filters=[("state", "=", "kept")], partitioning=None)
        for path in task["verdicts"]
        if path
    ]
    kept = pa.concat_tables(tables) if tables else None
    if kept is None or not kept.num_rows:
        raise nothing_kept()
    order = np.argsort(id_hashes(column_array(kept, "doc_id"), task["seed"]), kind="stable")
    sizes = kept.column("bytes").to_numpy()[order]
    chosen = order[np.cumsum(sizes) - sizes < task["sample_bytes"]]
    texts: list[str] = Corpus(root, task["documents"]).fetch(kept.column("locator").to_numpy()[chosen]).to_pylist()
    return texts


def tokenize_step(recipe: Recipe, tokenizer: Entry, read: Sequence[Entry], verdicts: Sequence[Entry]) -> tuple[Step, list[Shard]]:
    """The step from documents shards to the token ids of their kept and held-out documents (table ``tokens``, file ``lengths``)."""
    file = tokenizer.files["tokenizer"]
    shards = []
    for shard, (documents, judged) in enumerate(zip(read, verdicts, strict=True)):
        paths = {"documents": file_of(documents, "documents"), "verdicts": file_of(judged, "verdicts")}
        share = recipe.sources[source_of(documents)].fill_in_the_middle
        fills = {"share": share, "seed": recipe.seed} if share else None
        task = {"shard": shard, "tokenizer": file.path, **paths, "middle": fills}
        shards.append(Shard(documents.label, [documents.content, judged.content, shard, *([fills] if fills else [])], task))
    return Step("tokenize", 1, {"tokenizer": file.checksum}, _tokenize), shards


def _tokenize(writer: ShardWriter, task: Json) -> Mapping[str, int]:
    counts = dict.fromkeys(("documents", "tokens", "held_out_documents", "held_out_tokens", "bytes"), 0)
    if task["verdicts"] is None:
        return counts
    columns = ["doc_id", "locator", "state", "bytes"]
    judged = pq.read_table(
        writer.root / task["verdicts"], columns=columns, filters=[("state", "in", ["kept", "held_out"])], partitioning=None
    )
    if not judged.num_rows:
        return counts
    tokenizer = _loaded(writer.root / task["tokenizer"])
    ids, offsets = _encode(Corpus(writer.root, [task["documents"]]), judged, tokenizer, task["middle"])
    writer.table("tokens", judged.select(["doc_id", "locator"]).append_column("tokens", pa.LargeListArray.from_arrays(offsets, ids)))
    held_out = np.equal(column_array(judged, "state").to_pylist(), "held_out")
    sizes, lengths = judged.column("bytes").to_numpy(), np.diff(offsets)
    table = pa.table(
        [judged.column("doc_id"), judged.column("locator"), pa.array(held_out), lengths, sizes],
        schema=LENGTHS,
    )
    writer.publish("lengths", "parquet", lambda path: pq.write_table(table, path, compression="zstd"), table.num_rows)
    return {
        "documents": int(np.sum(~held_out)),
        "tokens": int(lengths[~held_out].sum()),
        "held_out_documents": int(np.sum(held_out)),
        "held_out_tokens": int(lengths[held_out].sum()),
        "bytes": int(sizes.sum()),
    }


_LAST = threading.local()
"""The tokenizer that a thread used last: what it has learnt of a shard's text serves the next one's."""


def _loaded(path: Path) -> Tokenizer:
    fingerprint = checksum(path)
    tokenizer: Tokenizer | None = getattr(_LAST, "tokenizer", None)
    if tokenizer is None or tokenizer.fingerprint != fingerprint:
        tokenizer = _LAST.tokenizer = load_tokenizer(path)
    return tokenizer


def _encode(corpus: Corpus, judged: pa.Table, tokenizer: Tokenizer, fills: Json) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """Ids and offsets of a shard's documents, a few megabytes of text at a time; ``fills`` says which are to fill in the middle."""
    documents = corpus.table(0, ["text"])
    assert documents is not None  # judged documents exist
    rows = rows_of(judged.column("locator").to_numpy())
    texts = column_array(documents, "text")
    batch = np.cumsum(judged.column("bytes").to_numpy()) // BATCH_BYTES
    pieces = []
    for b in np.unique(batch):
        some = texts.take(pa.array(rows[batch == b])).to_pylist()
        if fills is None:
            pieces.append(tokenizer.encode_batch(some))
        else:
            mine = judged.filter(pa.array(batch == b))
            trained = np.equal(column_array(mine, "state").to_pylist(), "kept")
            pieces.append(middle.encode(tokenizer, some, column_array(mine, "doc_id"), fills, trained))
    lengths = np.concatenate([np.diff(offsets) for _, offsets in pieces])
    return np.concatenate([ids for ids, _ in pieces]), offsets_of(lengths, len(lengths))
