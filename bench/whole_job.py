"""The whole job beside datatrove's: JSON lines packed by Zstandard to signals, filters, near-deduplication and Parquet.

    python bench/whole_job.py --data FOLDER [--peer PYTHON] [--c4] [--every N] [--sources A,B] [--threads 1,2]

The product runs as `gristmill curate` runs it, up to the published snapshot. Both sides apply the same rules, those of Gopher quality and
repetition and of FineWeb (with `--c4` also C4's, the rule of terminal punctuation off), and drop near-duplicates; ours are verified by
exact Jaccard under the leader policy, datatrove's are whatever its buckets link. Both are warm. The share that passes moves the ratio:
datatrove stops at the first filter that drops a document, ours measures all of it; books pass (`--sources standardebooks --every 1`).
PYTHON is an interpreter with `datatrove[processing]`, spacy, zstandard, pyarrow and xxhash below 4; it runs in one process over the corpus
thinned by ten, which ours also runs over, to compare how many documents pass and stay. Times are processor times, all threads together,
beside wall times; the machine's load moves both.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

FLOOR_MB_S, FLOOR_RATIO, FLOOR_THREADS = 28.0, 110.0, 1.7
SETS = ("gopher_quality", "gopher_repetition", "fineweb")
FILES = 8
"""Files of the corpus. Shards of two files each would be alike; of three, the last would keep one thread waiting."""
PEER_SHARE = 10


class Clock:
    """A progress that keeps how long each step took."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._began = 0.0

    def start(self, step: str, total: int) -> None:
        """A step begins."""
        self._began = time.perf_counter()

    def advance(self, step: str, counts: Mapping[str, int]) -> None:
        """Nothing: steps are timed as wholes."""

    def finish(self, step: str, done: int, skipped: int) -> None:
        """A step ends."""
        self.seconds[step] = self.seconds.get(step, 0.0) + time.perf_counter() - self._began


def write_corpus(folder: Path, texts: list[str]) -> float:
    """Writes the corpus as FILES files of packed JSON lines; returns its megabytes of text."""
    import zstandard

    folder.mkdir(parents=True)
    for number in range(FILES):
        lines = "".join(json.dumps({"id": f"{number}-{i}", "text": text}) + "\n" for i, text in enumerate(texts[number::FILES]))
        (folder / f"{number:02d}.jsonl.zst").write_bytes(zstandard.ZstdCompressor(3).compress(lines.encode()))
    return sum(len(text.encode()) for text in texts) / 1e6


def own_run(corpus: Path, lake: Path, threads: int, c4: bool) -> tuple[float, float, dict[str, int], dict[str, float]]:
    """Wall and processor seconds of one curation, how many documents there were, passed and stayed, and seconds by step."""
    import pyarrow.parquet as pq

    from curate.curate import curate
    from curate.curation import Curation
    from curate.engine import LocalExecutor
    from schemas.recipe import Recipe

    recipe = Recipe.model_validate(
        {
            "name": "bench",
            "sources": {"bench": {"reader": "jsonl", "paths": [str(corpus / "*.zst")], "id_field": "id", "holdout": False}},
            "shards": {"bytes": 3 << 20},
            "edits": [{"edit": "c4", "off": ["no_terminal_punct"]}] if c4 else [],
            "rules": [{"set": name} for name in SETS],
            "dedup": {"near": {"threshold": 0.8}},
        }
    )
    clock = Clock()
    wall, cpu = time.perf_counter(), time.process_time()
    snapshot = curate(Curation(lake, recipe, LocalExecutor(threads), clock))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    (file,) = snapshot.files("conservation")
    row = pq.read_table(lake / file.path).to_pylist()[0]
    passed = sum(entry.counts["passed"] for entry in snapshot.steps["rules"])
    return wall, cpu, {"documents": row["records_in"], "passed": passed, "kept": row["kept"]}, clock.seconds


def peer_run(corpus: Path, folder: Path, c4: bool) -> tuple[float, dict[str, int]]:
    """Processor seconds of datatrove's pipeline over a corpus, and its counts; runs in the peer's environment."""
    import pyarrow.parquet as pq
    from datatrove.executor import LocalPipelineExecutor  # type: ignore[import-not-found]
    from datatrove.pipeline import dedup, filters  # type: ignore[import-not-found]
    from datatrove.pipeline.readers import JsonlReader  # type: ignore[import-not-found]
    from datatrove.pipeline.writers import JsonlWriter, ParquetWriter  # type: ignore[import-not-found]

    config = dedup.MinhashConfig(n_grams=5, num_buckets=14, hashes_per_bucket=8)
    kept, signed, buckets, gone, out = (str(folder / name) for name in ("kept", "signatures", "buckets", "gone", "out"))
    chain = [filters.GopherRepetitionFilter(), filters.GopherQualityFilter(), filters.FineWebQualityFilter()]
    if c4:
        chain.insert(2, filters.C4QualityFilter(filter_no_terminal_punct=False))
    stages = [
        ([JsonlReader(str(corpus), compression="zstd"), *chain, JsonlWriter(kept), dedup.MinhashDedupSignature(signed, config=config)], 1),
        ([dedup.MinhashDedupBuckets(signed, buckets, config=config)], config.num_buckets),
        ([dedup.MinhashDedupCluster(buckets, gone, config=config)], 1),
        ([JsonlReader(kept), dedup.MinhashDedupFilter(gone), ParquetWriter(out)], 1),
    ]
    start, counts = os.times(), {}
    for number, (pipeline, tasks) in enumerate(stages):
        stats = LocalPipelineExecutor(pipeline, tasks=tasks, workers=1, logging_dir=str(folder / f"log{number}")).run()
        if number == 0:
            counts = {"documents": stats.stats[0].stats["documents"].total, "passed": stats.stats[-1].stats["total"].total}
    end = os.times()
    counts["kept"] = sum(pq.read_metadata(file).num_rows for file in Path(out).glob("*.parquet"))
    return sum(end[:4]) - sum(start[:4]), counts


def compare(peer: Path, root: Path, texts: list[str], own: float, c4: bool) -> None:
    """Prints datatrove's speed over the thinned corpus, and both sides' counts on it."""
    size = write_corpus(root / "thin", texts[::PEER_SHARE])
    command = [peer, __file__, "--data", root / "thin", "--as-peer", root / "peer", "--warm", root / "warm", *(["--c4"] if c4 else [])]
    answer = subprocess.run([*map(str, command)], check=True, stdout=subprocess.PIPE, text=True)
    seconds, theirs = json.loads(answer.stdout.splitlines()[-1])
    ours = own_run(root / "thin", root / "lake-thin", 1, c4)[2]
    speed = size / seconds
    print(f"datatrove on {size:.1f} MB: {speed:.3f} MB/s; ratio {own / speed:.0f} (floor {FLOOR_RATIO:.0f})")
    for name, counts in (("ours", ours), ("datatrove", theirs)):
        print(f"  {name} of {counts['documents']} documents: {counts['passed']} pass the rules, {counts['kept']} stay")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--peer", type=Path)
    parser.add_argument("--every", type=int, default=4)
    parser.add_argument("--sources", default="", help="sources whose documents are taken, all by default")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--c4", action="store_true", help="C4's rules too, on both sides")
    parser.add_argument("--as-peer", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--warm", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_peer:
        peer_run(options.warm, options.as_peer / "warm", options.c4)
        print(json.dumps(peer_run(options.data, options.as_peer / "run", options.c4)))
        return
    if not options.data.is_dir():
        sys.exit(f"no data in {options.data}: nothing is measured")
    import pyarrow as pa
    from rule_parity import documents

    wanted = set(options.sources.split(",")) if options.sources else set()
    found = documents(options.data, options.every, {"en"})
    texts = [text for identity, text in found if not wanted or identity.partition("/")[0] in wanted]
    speeds: dict[int, float] = {}
    processor = 0.0
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        size, warm = write_corpus(root / "corpus", texts), write_corpus(root / "warm", texts[:: max(len(texts) // 80, 1)])
        print(f"{len(texts)} English documents, {size:.1f} MB of text (warmed on {warm:.1f} MB)")
        own_run(root / "warm", root / "lake-warm", 1, options.c4)
        for threads in map(int, options.threads.split(",")):
            pa.set_cpu_count(threads)
            runs = [own_run(root / "corpus", root / f"lake-{threads}-{turn}", threads, options.c4) for turn in range(options.rounds)]
            wall, cpu = min(run[0] for run in runs), min(run[1] for run in runs)
            speeds[threads], counts = size / wall, runs[0][2]
            passed, kept = (counts[name] / counts["documents"] for name in ("passed", "kept"))
            print(f"{threads} threads: {size / wall:.1f} MB/s by the wall, {size / cpu:.1f} by the processor")
            print(f"  {passed:.1%} of the documents pass, {kept:.1%} stay")
            print("  " + ", ".join(f"{step} {spent:.2f} s" for step, spent in runs[-1][3].items()))
            processor = max(processor, size / cpu)
        if 1 in speeds and 2 in speeds:
            print(f"two threads over one: {speeds[2] / speeds[1]:.2f} (floor {FLOOR_THREADS}); one thread's floor {FLOOR_MB_S} MB/s")
        if options.peer:
            compare(options.peer, root, texts, processor, options.c4)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    main()
