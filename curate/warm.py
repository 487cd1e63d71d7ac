"""Compiles every kernel of curation once, by curating a few made documents, so that the first real run starts at once.

``python -m curate.warm`` at installation; numba keeps what it compiled beside the source files.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import orjson

from curate.byte_level import PieceTable
from curate.curate import curate
from curate.curation import Curation
from curate.engine import LocalExecutor
from curate.lots import build_lots
from curate.step import Silent
from curate.tokenizer import train_pairs
from schemas.families import FAMILIES
from schemas.recipe import Recipe


def main() -> None:
    """Curate, tokenise and pack a small corpus with duplicates in a temporary lake."""
    texts = [" ".join(f"word{(n * 7 + i * i) % 97} of the" for i in range(60)) + "." for n in range(40)]
    texts += [text.replace("word1 ", "other ") for text in texts[:10]] + texts[:3] + ["", "日本語のテキスト。"]
    with tempfile.TemporaryDirectory(prefix="gristmill-") as folder:
        root = Path(folder)
        (root / "made.jsonl").write_bytes(b"".join(orjson.dumps({"text": text}) + b"\n" for text in texts))
        source = {"reader": "jsonl", "paths": [str(root / "made.jsonl")], "difficulty": "n_words", "families": sorted(FAMILIES)}
        recipe = Recipe.model_validate(
            {
                "name": "warm",
                "sources": {"made": source, "edited": source},  # edits may leave nothing, and what follows needs documents
                "edits": [{"edit": name, "sources": ["edited"]} for name in ("mask", "lines", "substrings", "c4")],
                "rules": [{"sql": "n_words < 1", "name": "none"}],
                "holdout": {"share": 0.2},
                "tokenizer": {"kind": "byte"},
                "pack": {"row_length": 32},
            }
        )
        lake = root / "lake"
        snapshot = curate(Curation(lake, recipe, LocalExecutor(1), Silent()))
        if not build_lots(lake, recipe, snapshot, LocalExecutor(1), Silent()).files("rows"):
            raise AssertionError("every document was dropped: the kernels of the later steps are cold")
    PieceTable(train_pairs(iter(texts), 300)).encode_batch(texts)


if __name__ == "__main__":
    main()
