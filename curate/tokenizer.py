"""Tokenizers: bytes, byte-level pairs trained or in a tokenizer.json, a Hugging Face folder, tiktoken ranks; each in one file of the lake.

All give every text back from its ids, and text that happens to spell a special token stays text. A file that loses something of a text
(a normaliser that folds case, unknown characters) is refused.
"""

from __future__ import annotations

import base64
import binascii
import json
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from curate import middle
from schemas.errors import InputError
from schemas.store import checksum

if TYPE_CHECKING:
    from curate.byte_level import PieceTable

Json = Any

FEW = 1 << 14
"""Characters up to which texts go to the library as they are."""

BOS, EOS, PAD = "<|bos|>", "<|eos|>", "<|pad|>"
BOS_NAMES = (BOS, "<s>", "<|begin_of_text|>", "<|startoftext|>", "[CLS]", "<|endoftext|>")
EOS_NAMES = (EOS, "</s>", "<|end_of_text|>", "<|endoftext|>", "[SEP]")
PAD_NAMES = (PAD, "<pad>", "[PAD]", "<|padding|>", *EOS_NAMES)


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
        return np.frombuffer(b"".join(encoded), dtype=np.uint8).astype(np.uint32), offsets_of(map(len, encoded), len(encoded))

    def decode(self, ids: Sequence[int] | NDArray[Any]) -> str:
        """See ``Tokenizer``."""
        values = np.asarray(ids)
        return values[values < self.bos].astype(np.uint8).tobytes().decode(errors="replace")


class PairTokenizer(Tokenizer):
    """A tokenizer.json of the ``tokenizers`` library, by itself or with the special tokens that its folder names.

    Attributes:
        json: the tokenizer.json.

    Raises:
        InputError: the file is no tokenizer.json, or has no known BOS or EOS token.
    """

    def __init__(self, path: Path, fingerprint: str = "") -> None:
        import tokenizers

        self.json, named = path.read_text(encoding="utf-8", errors="replace"), {}
        if self.json.startswith(_head("folder")):
            value = json.loads(self.json)
            self.json, named = value["file"], value["special"]
        try:
            self._inner = tokenizers.Tokenizer.from_str(self.json)
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
        self.bos, self.eos, self.pad = _specials(ids, named, path)
        self.middle = _middle(ids)

    def encode_batch(self, texts: Sequence[str]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """See ``Tokenizer``."""
        if sum(map(len, texts)) > FEW and self._pieces is not None:
            return self._pieces.encode_batch(texts)
        encodings = self._inner.encode_batch_fast(list(texts), add_special_tokens=False)
        offsets = offsets_of(map(len, encodings), len(encodings))
        ids = array("I")
        for encoding in encodings:
            ids.fromlist(encoding.ids)  # 4.5 ns a token; np.fromiter takes 26, np.array 34
        return np.frombuffer(ids, dtype=np.uint32), offsets

    @cached_property
    def _pieces(self) -> PieceTable | None:
        """A table of the pieces met so far, where the pattern is a known one; made once there is some text."""
        from curate.byte_level import PieceTable, pattern_of

        return PieceTable(self.json) if pattern_of(json.loads(self.json)) is not None else None

    def decode(self, ids: Sequence[int] | NDArray[Any]) -> str:
        """See ``Tokenizer``."""
        text: str = self._inner.decode(np.asarray(ids).tolist(), skip_special_tokens=True)
        return text


def offsets_of(lengths: Any, count: int) -> NDArray[np.int64]:
    """Where each of so many lists begins when they are laid end to end, and the end."""
    offsets = np.zeros(count + 1, dtype=np.int64)
    np.cumsum(np.fromiter(lengths, dtype=np.int64, count=count), out=offsets[1:])
    return offsets


def _specials(ids: Mapping[str, int], named: Mapping[str, str], path: Path) -> tuple[int, int, int]:
    """Ids of BOS, EOS and PAD: those that a folder names, else known ones; a folder that names one of BOS and EOS means both by it."""
    bos, eos = (named.get(kind) or named.get(other) for kind, other in (("bos", "eos"), ("eos", "bos")))
    known = (BOS_NAMES, EOS_NAMES, PAD_NAMES)
    asked = [[name] if name else list(names) for name, names in zip((bos, eos, named.get("pad") or eos), known, strict=True)]
    found = [next((ids[name] for name in names if name in ids), None) for names in asked]
    if None in found:
        names = ", ".join(asked[found.index(None)])
        raise InputError(f"none of the tokens {names} is in its vocabulary", where=str(path), fix="add one of them to the file")
    return found[0] or 0, found[1] or 0, found[2] or 0


def _middle(ids: Mapping[str, int]) -> tuple[int, int, int] | None:
    found = [next((ids[name] for name in names if name in ids), None) for names in middle.NAMES]
    known = [token for token in found if token is not None]
    return (known[0], known[1], known[2]) if len(known) == 3 else None


class RankTokenizer(Tokenizer):
    """Byte pairs by rank, as the ``tiktoken`` library has them (extra 'text'): a pattern that splits text, and ranks that are ids.

    Raises:
        InputError: the library is not installed, or ranks or pattern cannot be used.
    """

    def __init__(self, path: Path, fingerprint: str = "") -> None:
        try:
            import tiktoken
        except ImportError as error:
            raise InputError("tiktoken is not installed", where=str(path), fix="pip install 'gristmill[text]'") from error

        value = json.loads(path.read_text(encoding="utf-8"))
        ranks = {base64.b64decode(token): rank for token, rank in value["ranks"]}
        special = value["special"]
        try:
            self._inner = tiktoken.Encoding(fingerprint, pat_str=value["pattern"], mergeable_ranks=ranks, special_tokens=special)
        except ValueError as error:
            raise InputError(f"not a pattern: {error}", where="tokenizer.pattern", fix="correct it") from error
        try:
            self._inner.encode_ordinary(PROBE)
        except BaseException as error:  # a panic of the library, which is no Exception
            if type(error).__name__ != "PanicException":
                raise
            raise InputError(
                "the pattern finds pieces without text", where="tokenizer.pattern", fix="let it match 1 character or more"
            ) from error
        self.fingerprint, self._special = fingerprint, np.array(sorted(special.values()))
        self.vocabulary = max(*ranks.values(), *special.values()) + 1
        self.bos, self.eos, self.pad = _specials(special, {}, path)
        self.middle = _middle(special)

    def encode_batch(self, texts: Sequence[str]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """See ``Tokenizer``."""
        ids = [self._inner.encode_to_numpy(text, disallowed_special=()) for text in texts]
        return np.concatenate([np.zeros(0, np.uint32), *ids]).astype(np.uint32, copy=False), offsets_of(map(len, ids), len(ids))

    def decode(self, ids: Sequence[int] | NDArray[Any]) -> str:
        """See ``Tokenizer``."""
        values = np.asarray(ids, dtype=np.int64)
        return self._inner.decode_bytes(values[~np.isin(values, self._special)].tolist()).decode(errors="replace")


PATTERNS = {
    "gpt2": r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s",
    "cl100k": r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s",
    "o200k": "|".join(
        (
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
            r"\p{N}{1,3}",
            r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
            r"\s*[\r\n]+",
            r"\s+(?!\S)",
            r"\s+",
        )
    ),
}
"""Patterns by the names of OpenAI's encodings, which ranks alone do not tell."""

PROBE = "A probe: naïve e\u0301 日本語 🙂  two spaces,\ttab\r\n\n \x00\ufeffİıſ ﬁ ½ don't 12345 <|eos|> end "
"""Text with what tokenizers lose: accents, widths, ligatures, controls, spaces at the ends."""


MOST_ID = (1 << 24) - 1
"""The greatest id: a model has a row of its embedding for each up to the last."""


def file_content(kind: str, path: Path, pattern: str = "", special: Mapping[str, int] | None = None, *, fills: bool = False) -> bytes:
    """What the lake keeps of a tokenizer file: a tokenizer.json as it is; a folder's with its special tokens; ranks with their pattern.

    Args:
        kind: file or tiktoken.
        path: the file, or the folder.
        pattern: of tiktoken: a name in ``PATTERNS``, or a regular expression.
        special: of tiktoken: ids of special tokens by name; none: BOS, EOS and PAD after the ranks.
        fills: of tiktoken without special tokens: with those of fill-in-the-middle.

    Raises:
        InputError: there is no such file, or it cannot be used.
    """
    if kind == "tiktoken":
        return _rank_file(path, PATTERNS.get(pattern, pattern), special or {}, fills)
    if not path.is_dir():
        if not path.is_file():
            raise InputError("no such tokenizer", where=str(path), fix="check the path in the recipe's tokenizer section")
        return path.read_bytes()
    if not (path / "tokenizer.json").is_file():
        raise InputError("the folder has no tokenizer.json", where=str(path), fix="make it with transformers: tokenizer.save_pretrained()")
    config = path / "tokenizer_config.json"
    try:
        told = json.loads(config.read_text(encoding="utf-8")) if config.is_file() else {}
        file = (path / "tokenizer.json").read_text(encoding="utf-8")
    except ValueError as error:
        raise InputError(f"not JSON: {error}", where=str(path), fix="correct its files") from error
    if not isinstance(told, dict):
        raise InputError("it is no JSON object", where=str(config), fix="correct the file")
    names = {kind: told.get(f"{kind}_token") for kind in ("bos", "eos", "pad")}
    named = {kind: name["content"] if isinstance(name, dict) else name for kind, name in names.items() if name}
    return _publishable("folder", special=named, file=file)


def _rank_file(path: Path, pattern: str, special: Mapping[str, int], fills: bool) -> bytes:
    ranks: dict[bytes, int] = {}
    try:
        for line in path.read_bytes().splitlines():
            if line.strip():
                token, rank = line.split()
                ranks[base64.b64decode(token, validate=True)] = int(rank)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path), fix="check the path in the tokenizer section") from error
    except (ValueError, binascii.Error) as error:
        what = f"line {len(ranks) + 1} is no token in base64 with its rank: {error}"
        raise InputError(what, where=str(path), fix="give tiktoken's own file") from error
    if any(bytes([byte]) not in ranks for byte in range(256)) or len(set(ranks.values())) < len(ranks):
        raise InputError("a single byte has no rank, or two tokens have the same", where=str(path), fix="give tiktoken's own file")
    if not 0 <= min(ranks.values()) <= max(ranks.values()) <= MOST_ID:
        raise InputError(f"ranks are from 0 to {MOST_ID}", where=str(path), fix="give tiktoken's own file")
    names = (BOS, EOS, PAD, *(middle.TOKENS if fills else ()))
    after = max(ranks.values()) + 1
    ids = dict(special) or {name: after + place for place, name in enumerate(names)}
    if taken := sorted(name for name, token in ids.items() if token in set(ranks.values())):
        raise InputError(f"the id of {taken[0]!r} is a rank too", where="tokenizer.special", fix=f"ids from {after} on are free")
    if max(ids.values()) > MOST_ID or len(set(ids.values())) < len(ids):
        raise InputError(
            f"an id is above {MOST_ID}, or two tokens have the same", where="tokenizer.special", fix=f"ids from {after} on are free"
        )
    pairs = [[base64.b64encode(token).decode(), rank] for token, rank in sorted(ranks.items(), key=lambda pair: pair[1])]
    return _publishable("tiktoken", pattern=pattern, special=ids, ranks=pairs)


def _publishable(kind: str, **parts: Json) -> bytes:
    return (_head(kind) + json.dumps(parts, ensure_ascii=False, sort_keys=True)[1:]).encode()


def _head(kind: str) -> str:
    """How a file of the lake that holds more than a tokenizer.json begins."""
    return f'{{"tokenizer": "{kind}", "version": 1, '


def refuse_lossy(tokenizer: Tokenizer, path: Path) -> None:
    """Refuse a tokenizer that does not give a text back as it was.

    Raises:
        InputError: it does not; says from where on.
    """
    back = tokenizer.decode(tokenizer.encode_batch([PROBE])[0])
    if back != PROBE:
        at = next((place for place, (a, b) in enumerate(zip(PROBE, back, strict=False)) if a != b), min(len(PROBE), len(back)))
        raise InputError(
            f"it does not give texts back: {PROBE[at : at + 8]!r} comes back as {back[at : at + 8]!r}",
            where=str(path),
            fix="take one of byte-level pairs without a normaliser, such as GPT-2's or Llama 3's",
        )


def load_tokenizer(path: Path) -> Tokenizer:
    """Load a published tokenizer: a tokenizer.json, what ``file_content`` made, or the byte tokenizer's one-line file.

    Raises:
        InputError: there is no such file, or it is no tokenizer.
    """
    if not path.is_file():
        raise InputError("no such tokenizer", where=str(path), fix="check the path in the recipe's tokenizer section")
    fingerprint = checksum(path)
    content = path.read_bytes() if path.stat().st_size < 100 else b""
    if content in BYTE_FILES.values():
        return ByteTokenizer(fingerprint, fills_middle=content == BYTE_FILES[True])
    with path.open("rb") as file:
        ranks = file.read(100).startswith(_head("tiktoken").encode())
    return RankTokenizer(path, fingerprint) if ranks else PairTokenizer(path, fingerprint)


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
