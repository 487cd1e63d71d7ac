"""Tokenise: the run's tokenizer (trained pairs, bytes or a file), and the token ids of every kept and held-out document.

Byte-level and without a normaliser, so that every text is recovered exactly from its ids, and text that happens to spell a special token
stays text. Ids are made once for each document; BOS and EOS are added when documents are packed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from curate import middle
from curate.corpus import Corpus, column_array, id_hashes, rows_of
from curate.curation import file_of, source_of
from curate.step import Json, Shard, ShardWriter, Step
from schemas.errors import InputError
from schemas.manifest import Entry
from schemas.recipe import Recipe
from schemas.store import checksum
from schemas.tables import DOC_ID

BOS, EOS, PAD = "<|bos|>", "<|eos|>", "<|pad|>"
BOS_NAMES = (BOS, "<s>", "<|begin_of_text|>", "<|startoftext|>", "[CLS]", "<|endoftext|>")
EOS_NAMES = (EOS, "</s>", "<|end_of_text|>", "<|endoftext|>", "[SEP]")
PAD_NAMES = (PAD, "<pad>", "[PAD]", "<|padding|>", *EOS_NAMES)

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


class Tokenizer(ABC):
    """Text to token ids and back.

    Attributes:
        fingerprint: BLAKE2b-128 of its file.
        vocabulary: every id is below it.
        bos: id that begins a document.
        eos: id that ends a document.
        pad: id of empty positions.
        middle: ids that begin prefix, suffix and middle of a document rearranged to fill in the middle; None where it has none.
    """

    fingerprint: str
    vocabulary: int
    bos: int
    eos: int
    pad: int
    middle: tuple[int, int, int] | None = None

    @abstractmethod
    def encode_batch(self, texts: Sequence[str]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Ids of all texts one after another, without BOS and EOS, and the offsets ``(len(texts) + 1,)`` at which each begins."""

    @abstractmethod
    def decode(self, ids: Sequence[int] | NDArray[Any]) -> str:
        """Text of the ids; special tokens have none, and bytes that are not UTF-8 become U+FFFD."""


class ByteTokenizer(Tokenizer):
    """UTF-8 bytes as ids 0 to 255, then BOS, EOS and PAD, and where asked for the three of fill-in-the-middle."""

    bos, eos, pad = 256, 257, 258

    def __init__(self, fingerprint: str = "", *, fills_middle: bool = False) -> None:
        self.fingerprint, self.vocabulary = fingerprint, 262 if fills_middle else 259
        self.middle = (259, 260, 261) if fills_middle else None

    def encode_batch(self, texts: Sequence[str]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """See ``Tokenizer``."""
        encoded = [text.encode() for text in texts]
        return np.frombuffer(b"".join(encoded), dtype=np.uint8).astype(np.uint32), _offsets(map(len, encoded), len(encoded))

    def decode(self, ids: Sequence[int] | NDArray[Any]) -> str:
        """See ``Tokenizer``."""
        values = np.asarray(ids)
        return values[values < self.bos].astype(np.uint8).tobytes().decode(errors="replace")


class PairTokenizer(Tokenizer):
    """A tokenizer.json of the ``tokenizers`` library.

    Raises:
        InputError: the file is no tokenizer.json, or has no known BOS or EOS token.
    """

    def __init__(self, path: Path, fingerprint: str = "") -> None:
        import tokenizers

        try:
            self._inner = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception
            raise InputError(
                f"not a tokenizer: {error}", where=str(path), fix="give a tokenizer.json of the `tokenizers` library"
            ) from error
        self._inner.encode_special_tokens = True
        self._inner.no_truncation()
        self._inner.no_padding()
        ids = self._inner.get_vocab(with_added_tokens=True)
        self.fingerprint = fingerprint
        self.vocabulary = max(ids.values()) + 1
        self.bos, self.eos, self.pad = (_special(ids, names, path) for names in (BOS_NAMES, EOS_NAMES, PAD_NAMES))
        found = [next((ids[name] for name in names if name in ids), None) for names in middle.NAMES]
        known = [token for token in found if token is not None]
        self.middle = (known[0], known[1], known[2]) if len(known) == 3 else None

    def encode_batch(self, texts: Sequence[str]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """See ``Tokenizer``."""
        encodings = self._inner.encode_batch_fast(list(texts), add_special_tokens=False)
        offsets = _offsets(map(len, encodings), len(encodings))
        ids = np.fromiter(chain.from_iterable(encoding.ids for encoding in encodings), dtype=np.uint32, count=int(offsets[-1]))
        return ids, offsets

    def decode(self, ids: Sequence[int] | NDArray[Any]) -> str:
        """See ``Tokenizer``."""
        text: str = self._inner.decode(np.asarray(ids).tolist(), skip_special_tokens=True)
        return text


def _offsets(lengths: Any, count: int) -> NDArray[np.int64]:
    offsets = np.zeros(count + 1, dtype=np.int64)
    np.cumsum(np.fromiter(lengths, dtype=np.int64, count=count), out=offsets[1:])
    return offsets


def _special(ids: Mapping[str, int], names: Sequence[str], path: Path) -> int:
    found = next((ids[name] for name in names if name in ids), None)
    if found is None:
        raise InputError(f"none of the tokens {', '.join(names)} is in its vocabulary", where=str(path), fix="add one of them to the file")
    return found


def load_tokenizer(path: Path) -> Tokenizer:
    """Load a published tokenizer: a tokenizer.json, or the byte tokenizer's one-line file.

    Raises:
        InputError: there is no such file, or it is no tokenizer.
    """
    if not path.is_file():
        raise InputError("no such tokenizer", where=str(path), fix="check the path in the recipe's tokenizer section")
    fingerprint = checksum(path)
    content = path.read_bytes() if path.stat().st_size < 100 else b""
    if content in BYTE_FILES.values():
        return ByteTokenizer(fingerprint, fills_middle=content == BYTE_FILES[True])
    return PairTokenizer(path, fingerprint)


BYTE_FILE = b'{"tokenizer": "byte", "version": 1}'
BYTE_FILES = {False: BYTE_FILE, True: b'{"tokenizer": "byte", "version": 1, "fill_in_the_middle": true}'}
"""The byte tokenizer's file, without and with the tokens of fill-in-the-middle."""


def train_pairs(texts: Iterator[str], vocabulary: int, special: Sequence[str] = (BOS, EOS, PAD)) -> str:
    """Train byte-level pairs (Sennrich et al. 2016; bytes as in GPT-2) and return the tokenizer.json.

    The same bytes for any number of threads.
    """
    from tokenizers import Tokenizer as Inner
    from tokenizers import decoders, models, pre_tokenizers, trainers

    inner = Inner(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=vocabulary, special_tokens=list(special), initial_alphabet=alphabet, show_progress=False)
    inner.train_from_iterator(texts, trainer)
    return str(inner.to_str())


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
    elif settings.kind == "file":
        path = Path(str(settings.path))
        loaded = load_tokenizer(path)
        if fills and loaded.middle is None:
            names = ", ".join(middle.TOKENS)
            raise InputError(f"it has no tokens to fill in the middle, such as {names}", where=str(path), fix="add them to the file")
        inputs = loaded.fingerprint
        task["path"] = str(path)
    return Step("tokenizer", 1, {"kind": settings.kind, **fills}, _make_tokenizer), [Shard(settings.kind, inputs, task)]


def _make_tokenizer(writer: ShardWriter, task: Json) -> Mapping[str, int]:
    counts = {"bytes": 0, "documents": 0}
    if task["kind"] == "bpe":
        texts = _sample(writer.root, task)
        counts = {"bytes": sum(len(text.encode()) for text in texts), "documents": len(texts)}
        special = (BOS, EOS, PAD, *(middle.TOKENS if task.get("fills_middle") else ()))
        content = train_pairs(iter(texts), task["vocabulary"], special).encode()
    else:
        content = BYTE_FILES["fills_middle" in task] if task["kind"] == "byte" else Path(task["path"]).read_bytes()
    writer.publish("tokenizer", "json", lambda path: _write(path, content))
    return {**counts, "vocabulary": load_tokenizer(writer.root / writer.files["tokenizer"].path).vocabulary}


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


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
        raise InputError(
            "no document was kept, so there is no text to train on",
            where="tokenizer",
            fix="loosen the rules or check the sources; `gristmill snapshot` lists what was curated",
        )
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
    tokenizer = load_tokenizer(writer.root / task["tokenizer"])
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
    return np.concatenate([ids for ids, _ in pieces]), _offsets(lengths, len(lengths))
