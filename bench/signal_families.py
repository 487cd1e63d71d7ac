"""What each family of signals costs on one thread, over the same documents: those of every curation, and those computed where asked.

    python bench/signal_families.py --data FOLDER [--every N] [--languages en]

Times are processor times, the best of five passes. The floor is for all of them together.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

FLOOR_MB_S = 20.0
PASSES = 5


def families(texts: list[str]) -> dict[str, Callable[[], object]]:
    """A pass of each family over the texts."""
    import pyarrow as pa

    from curate.families.step import counter
    from curate.signals import compute_signals
    from schemas.families import FAMILIES

    column = pa.array(texts, pa.large_string())
    passes: dict[str, Callable[[], object]] = {"every curation's": lambda: compute_signals(column)}
    return passes | {family: partial(counter(family), column) for family in FAMILIES}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--every", type=int, default=8)
    parser.add_argument("--languages", default="en")
    options = parser.parse_args()
    if not options.data.is_dir():
        sys.exit(f"no data in {options.data}: nothing is measured")
    from rule_parity import documents

    languages = {part for part in options.languages.split(",") if part}
    texts = [text for _, text in documents(options.data, options.every, languages)]
    size = sum(len(text.encode()) for text in texts) / 1e6
    best: dict[str, float] = {}
    passes = families(texts)
    for _ in range(PASSES):
        for name, run in passes.items():
            start = time.process_time()
            run()
            best[name] = min(best.get(name, 1e9), time.process_time() - start)
    print(f"{len(texts)} documents, {size:.1f} MB, {sum(text.isascii() for text in texts)} of them ASCII")
    for name, spent in best.items():
        print(f"{name:30s} {spent * 1000 / size:6.2f} ms/MB {size / spent:8.1f} MB/s")
    print(f"all of them                    {size / sum(best.values()):.1f} MB/s (floor {FLOOR_MB_S})")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    main()
