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

from curate.corpus import Corpus, column_array, id_hashes, rows_of
from curate.curation import file_of
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
    """

    fingerprint: str
    vocabulary: int
    bos: int
    eos: int
    pad: int

    @abstractmethod
    def encode_batch(self, texts: Sequence[str]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Ids of all texts one after another, without BOS and EOS, and the offsets ``(len(texts) + 1,)`` at which each begins."""

    @abstractmethod
    def decode(self, ids: Sequence[int] | NDArray[Any]) -> str:
        """Text of the ids; special tokens have none, and bytes that are not UTF-8 become U+FFFD."""


class ByteTokenizer(Tokenizer):
    """UTF-8 bytes as ids 0 to 255, then BOS, EOS and PAD."""

    vocabulary, bos, eos, pad = 259, 256, 257, 258

    def __init__(self, fingerprint: str = "") -> None:
        self.fingerprint = fingerprint

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
    return ByteTokenizer(fingerprint) if path.read_bytes().strip() == BYTE_FILE else PairTokenizer(path, fingerprint)


BYTE_FILE = b'{"tokenizer": "byte", "version": 1}'


def train_pairs(texts: Iterator[str], vocabulary: int) -> str:
    """Train byte-level pairs (Sennrich et al. 2016; bytes as in GPT-2) and return the tokenizer.json.

    The same bytes for any number of threads.
    """
    from tokenizers import Tokenizer as Inner
    from tokenizers import decoders, models, pre_tokenizers, trainers

    inner = Inner(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=vocabulary, special_tokens=[BOS, EOS, PAD], initial_alphabet=alphabet, show_progress=False)
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
    task: dict[str, Json] = {"kind": settings.kind}
    if settings.kind == "bpe":
        draw = {"vocabulary": settings.vocabulary, "sample_bytes": settings.sample_bytes, "seed": recipe.seed}
        inputs = [[entry.content for entry in read], [entry.content for entry in verdicts], draw]
        task |= draw | {"documents": [file_of(e, "documents") for e in read], "verdicts": [file_of(e, "verdicts") for e in verdicts]}
    elif settings.kind == "file":
        path = Path(str(settings.path))
        inputs = load_tokenizer(path).fingerprint
        task["path"] = str(path)
    return Step("tokenizer", 1, {"kind": settings.kind}, _make_tokenizer), [Shard(settings.kind, inputs, task)]


def _make_tokenizer(writer: ShardWriter, task: Json) -> Mapping[str, int]:
    counts = {"bytes": 0, "documents": 0}
    if task["kind"] == "bpe":
        texts = _sample(writer.root, task)
        counts = {"bytes": sum(len(text.encode()) for text in texts), "documents": len(texts)}
        content = train_pairs(iter(texts), task["vocabulary"]).encode()
    else:
        content = BYTE_FILE if task["kind"] == "byte" else Path(task["path"]).read_bytes()
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
            "no document was kept, so there is no text to train on", where="tokenizer", fix="loosen the rules or check the sources"
        )
    order = np.argsort(id_hashes(column_array(kept, "doc_id"), task["seed"]), kind="stable")
    sizes = kept.column("bytes").to_numpy()[order]
    chosen = order[np.cumsum(sizes) - sizes < task["sample_bytes"]]
    texts: list[str] = Corpus(root, task["documents"]).fetch(kept.column("locator").to_numpy()[chosen]).to_pylist()
    return texts


def tokenize_step(tokenizer: Entry, read: Sequence[Entry], verdicts: Sequence[Entry]) -> tuple[Step, list[Shard]]:
    """The step from documents shards to the token ids of their kept and held-out documents (table ``tokens``, file ``lengths``)."""
    file = tokenizer.files["tokenizer"]
    shards = []
    for shard, (documents, judged) in enumerate(zip(read, verdicts, strict=True)):
        paths = {"documents": file_of(documents, "documents"), "verdicts": file_of(judged, "verdicts")}
        task = {"shard": shard, "tokenizer": file.path, **paths}
        shards.append(Shard(documents.label, [documents.content, judged.content, shard], task))
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
    ids, offsets = _encode(Corpus(writer.root, [task["documents"]]), judged, load_tokenizer(writer.root / task["tokenizer"]))
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


def _encode(corpus: Corpus, judged: pa.Table, tokenizer: Tokenizer) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """Ids and offsets of a shard's documents, a few megabytes of text at a time."""
    documents = corpus.table(0, ["text"])
    assert documents is not None  # judged documents exist
    rows = rows_of(judged.column("locator").to_numpy())
    texts = column_array(documents, "text")
    batch = np.cumsum(judged.column("bytes").to_numpy()) // BATCH_BYTES
    pieces = [tokenizer.encode_batch(texts.take(pa.array(rows[batch == b])).to_pylist()) for b in np.unique(batch)]
    lengths = np.concatenate([np.diff(offsets) for _, offsets in pieces])
    return np.concatenate([ids for ids, _ in pieces]), _offsets(lengths, len(lengths))
