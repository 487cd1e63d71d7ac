"""Speed of the signals on one thread beside datatrove's chain of filters on the same documents.

    python bench/signals.py --data FOLDER [--peer PYTHON] [--every N] [--languages en]

What is timed is the pass of every curation: the signals of Gopher quality and repetition, FineWeb and C4, and reading ease, which shares
their words. The families that are computed only where a recipe names them are in `bench/signal_families.py`. PYTHON is an interpreter
with `datatrove[processing]` and `spacy`. Accuracy is what `bench/rule_parity.py` reports. Times are processor times of one thread, the
best of five passes; the peer runs once over a tenth of the documents.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

FLOOR_MB_S = 40.0
FLOOR_RATIO = 150.0
PASSES = 5


def peer_seconds(texts: list[str]) -> float:
    """Processor seconds of the four filters on texts; runs in the peer's environment."""
    from datatrove.data import Document  # type: ignore[import-not-found]
    from datatrove.pipeline.filters import (  # type: ignore[import-not-found]
        C4QualityFilter,
        FineWebQualityFilter,
        GopherQualityFilter,
        GopherRepetitionFilter,
    )

    filters = (GopherRepetitionFilter(), GopherQualityFilter(), C4QualityFilter(filter_no_terminal_punct=False), FineWebQualityFilter())
    warm = Document(text="A few words to load the tokenizer with. " * 5, id="warm")
    for chosen in filters:
        chosen.filter(warm)
    start = time.process_time()
    for number, text in enumerate(texts):
        document = Document(text=text, id=str(number))
        for chosen in filters:  # every filter sees every document, as the signals do
            try:
                chosen.filter(document)
            except ZeroDivisionError:
                continue
    return time.process_time() - start


def own_seconds(texts: list[str]) -> float:
    """Processor seconds of the pass."""
    import pyarrow as pa

    from curate.signals import compute_signals

    column = pa.array(texts, pa.large_string())
    best = 1e9
    for _ in range(PASSES):
        start = time.process_time()
        compute_signals(column)
        best = min(best, time.process_time() - start)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--peer", type=Path)
    parser.add_argument("--every", type=int, default=8)
    parser.add_argument("--languages", default="en")
    parser.add_argument("--as-peer", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.data.is_dir():
        sys.exit(f"no data in {options.data}: nothing is measured")
    from rule_parity import documents

    languages = {part for part in options.languages.split(",") if part}
    texts = [text for _, text in documents(options.data, options.every, languages)]
    if options.as_peer:
        sample = texts[::10]
        print(sum(len(text.encode()) for text in sample) / 1e6 / peer_seconds(sample))
        return
    size = sum(len(text.encode()) for text in texts) / 1e6
    print(f"{len(texts)} documents, {size:.1f} MB, {sum(text.isascii() for text in texts)} of them ASCII")
    speed = size / own_seconds(texts)
    print(f"Gopher quality and repetition, C4 counts, FineWeb, reading ease: {speed:.1f} MB/s (floor {FLOOR_MB_S})")
    if options.peer:
        command = [options.peer, __file__, "--as-peer", "--data", options.data, "--every", str(options.every)]
        answer = subprocess.run([*command, "--languages", options.languages], check=True, stdout=subprocess.PIPE, text=True)
        peer = float(answer.stdout.splitlines()[-1])
        print(f"datatrove, the four filters: {peer:.3f} MB/s; ratio {speed / peer:.0f} (floor {FLOOR_RATIO:.0f})")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    main()
