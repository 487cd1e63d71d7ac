"""Tokenising: text to one array of ids, beside the `tokenizers` library's own batches, which stop at its objects; all cores, in turn.

    python bench/tokenise.py --data DATA/bench [--megabytes 8] [--vocabulary 32000]

Ours gives the ids as NumPy and their offsets, in batches of the step's size, as the step does in its threads: each begins with an empty
table of pieces ("first"), or has met these texts before ("again", the bound). The library gives one `Encoding` a text, all texts in one
call.
"""

from __future__ import annotations

import argparse
import gzip
import os
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import tokenizers

from curate.tokenize import BATCH_BYTES
from curate.tokenizer import PairTokenizer, train_pairs


def read_texts(data: Path, size: int) -> list[str]:
    """Texts of every source in equal parts, about ``size`` bytes."""
    files = sorted(data.glob("*.jsonl.gz"))
    texts: list[str] = []
    for path in files:
        taken = 0
        with gzip.open(path) as lines:
            for line in lines:
                if taken * len(files) >= size:
                    break
                texts.append(orjson.loads(line)["text"])
                taken += len(texts[-1].encode())
    return texts


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--megabytes", type=float, default=24)
    parser.add_argument("--vocabulary", type=int, default=32_000)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    texts = read_texts(options.data, round(options.megabytes * 1e6))
    sizes = np.array([len(text.encode()) for text in texts])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokenizer.json"
        path.write_text(train_pairs(iter(texts[::4]), options.vocabulary), encoding="utf-8")
        compare(path, texts, sizes, options.rounds)


def compare(path: Path, texts: list[str], sizes: np.ndarray, rounds: int) -> None:
    theirs = tokenizers.Tokenizer.from_file(str(path))
    theirs.encode_special_tokens = True
    batch = np.cumsum(sizes) // BATCH_BYTES
    batches = [[texts[at] for at in np.flatnonzero(batch == b)] for b in np.unique(batch)]
    cores = os.cpu_count() or 1
    tokenizer, *_ = ours = [PairTokenizer(path) for _ in range(cores)]
    pool = ThreadPoolExecutor(cores)

    def again() -> Any:
        return np.concatenate([tokenizer.encode_batch(some)[0] for some in batches])

    def first() -> Any:
        tokenizer._pieces._clear()
        return again()

    def threads() -> Any:
        for each in ours:
            each._pieces._clear()
        parts = [batches[turn::cores] for turn in range(cores)]
        return list(pool.map(lambda each, part: [each.encode_batch(some) for some in part], ours, parts))

    def library() -> Any:
        return theirs.encode_batch_fast(texts, add_special_tokens=False)

    def library_offsets() -> Any:
        return theirs.encode_batch(texts, add_special_tokens=False)

    assert first().tolist() == again().tolist() == [token for encoding in library() for token in encoding.ids], "other ids"
    engines: dict[str, Callable[[], Any]] = {
        "ours, first, one thread": first,
        f"ours, first, {cores} threads": threads,
        "ours, again, one thread": again,
        "encode_batch_fast": library,
        "encode_batch": library_offsets,
    }
    best = dict.fromkeys(engines, float("inf"))
    for _ in range(rounds):
        for name, engine in engines.items():
            began = time.perf_counter()
            made = engine()
            best[name] = min(best[name], time.perf_counter() - began)
            del made
    print(f"{len(texts)} texts, {sizes.sum() / 1e6:.1f} MB, {tokenizer._pieces._count:,} pieces; best of {rounds} rounds in turn")
    for name, seconds in best.items():
        print(f"{name:24s} {sizes.sum() / 1e6 / seconds:7.2f} MB/s   {best['encode_batch_fast'] / seconds:6.3f} of encode_batch_fast")


if __name__ == "__main__":
    sys.exit(main())
