"""What each family of signals costs on one thread, over the same documents: those of every curation, and those computed where asked.

    python bench/signal_families.py --data FOLDER [--every N] [--languages en]

Times are processor times, the best of five passes. The floor is for all of them together.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

FLOOR_MB_S = 20.0
PASSES = 5


def families(texts: list[str]) -> dict[str, Callable[[], object]]:
    """A pass of each family over the texts."""
    import numpy as np
    import pyarrow as pa

    from curate.families.redpajama import redpajama_signals
    from curate.families.scripts import script_signals
    from curate.families.structure import structure_signals
    from curate.signals.batch import batch_signals, buffers
    from curate.signals.compression import new_table
    from curate.signals.families import CODE, COMPRESSION, FILTERS, READING
    from curate.signals.tokenizer import english_rules
    from schemas.signals import SIGNALS

    column = pa.array(texts, pa.large_string())
    data, offsets = buffers(column)
    out, rules = np.zeros((len(texts), len(SIGNALS)), np.int64), english_rules()

    def counted(bits: int) -> Callable[[], object]:
        return lambda: batch_signals(rules, data, offsets, new_table(), out, bits)

    return {
        "filters (Gopher, FineWeb, C4)": counted(FILTERS),
        "filters and reading ease": counted(FILTERS | READING),
        "compression": counted(COMPRESSION),
        "code": counted(CODE),
        "scripts": lambda: script_signals(column),
        "structure": lambda: structure_signals(column),
        "redpajama": lambda: redpajama_signals(column),
    }


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
    best["reading ease"] = best.pop("filters and reading ease") - best["filters (Gopher, FineWeb, C4)"]
    for name, spent in best.items():
        print(f"{name:30s} {spent * 1000 / size:6.2f} ms/MB {size / spent:8.1f} MB/s")
    print(f"all of them                    {size / sum(best.values()):.1f} MB/s (floor {FLOOR_MB_S})")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    main()
