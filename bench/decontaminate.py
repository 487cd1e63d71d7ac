"""Decontamination: MB/s of the n-gram scan beside the same search in plain Python (sets of word tuples), and that both agree.

python bench/decontaminate.py --data ../shared/data/bench [--mb 20]
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from pathlib import Path

import pyarrow as pa

from curate.contamination import ItemIndex

NGRAM = 13
SHORTEST = 3


def texts_of(folder: Path, most: int) -> list[str]:
    texts: list[str] = []
    size = 0
    files = sorted(folder.glob("*.jsonl.gz"))
    for file in files:
        mine = 0
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            for line in lines:
                text = json.loads(line)["text"]
                texts.append(text)
                mine += len(text.encode())
                if mine >= most / len(files):
                    break
        size += mine
    return texts


def words_of(text: str) -> list[str]:
    return "".join(c.lower() if c.isalnum() or c == "_" else " " for c in text).split()


def grams(words: list[str], size: int) -> list[tuple[str, ...]]:
    return [tuple(words[i : i + size]) for i in range(len(words) - size + 1)]


def plain(items: list[str], texts: list[str]) -> list[bool]:
    wanted: dict[int, set[tuple[str, ...]]] = {}
    for words in map(words_of, items):
        size = min(NGRAM, len(words))
        if len(words) >= SHORTEST:
            wanted.setdefault(size, set()).update(grams(words, size))
    return [any(not found.isdisjoint(grams(words, size)) for size, found in wanted.items()) for words in map(words_of, texts)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--mb", type=float, default=20)
    options = parser.parse_args()
    if not options.data.is_dir():
        raise SystemExit(f"no such folder: {options.data}")
    texts = [text for text in texts_of(options.data, int(options.mb * 1e6)) if text.isascii()]
    items = [text[200:900] for text in texts[::50]]
    array = pa.array(texts, pa.large_string())
    size = array.nbytes
    index = ItemIndex(items, NGRAM, SHORTEST)
    index.overlaps(array.slice(0, 10))
    ours = []
    for _ in range(3):
        start = time.perf_counter()
        found, _ = index.overlaps(array)
        ours.append(time.perf_counter() - start)
    start = time.perf_counter()
    wanted = plain(items, texts)
    peer = time.perf_counter() - start
    differ = sum((a >= 0) != b for a, b in zip(found.tolist(), wanted, strict=True))
    print(f"{len(texts)} texts, {size / 1e6:.1f} MB, {len(items)} items; contaminated {int((found >= 0).sum())}, {differ} differ")
    print(f"ours {size / min(ours) / 1e6:.0f} MB/s, plain Python {size / peer / 1e6:.1f} MB/s: {peer / min(ours):.0f}x")


if __name__ == "__main__":
    main()
