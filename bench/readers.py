"""JSON lines to documents beside bare parsers, on one core and in one run: MB/s of raw JSON by CPU time, best of several rounds.

    python bench/readers.py [FILE.jsonl[.gz|.zst] ...]

Without files, the benchmark makes 64 MB of records from the Python library's own source. ``documents`` is the reader's work in memory
(faults, identity, meta, Arrow columns); ``lake`` adds the Parquet file (zstd, fsync, checksum). Accuracy: records and text bytes of each
engine must agree.
"""

from __future__ import annotations

import gzip
import io
import json
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
import zstandard

from curate.read import list_shards, read_shard
from curate.read.blocks import blocks
from curate.read.intake import Intake
from curate.read.jsonl import read_jsonl
from curate.read.piece import Piece
from curate.step import ShardWriter
from schemas.sources import Source

ROUNDS = 3
SETTINGS = {
    "text_field": "text",
    "id_field": None,
    "url_field": "url",
    "date_field": "date",
    "license_field": "license",
    "max_document_bytes": 20_000_000,
}


def main() -> None:
    raw = b"".join(map(content, sys.argv[1:])) or made_up()
    engines: dict[str, Callable[[bytes], tuple[int, int]]] = {
        "json.loads": lambda data: loop(json.loads, data),
        "orjson.loads": lambda data: loop(orjson.loads, data),
        "orjson, texts to Arrow": texts_to_arrow,
        "pyarrow.json, one thread": arrow_json,
        "documents": documents,
        "lake": lake,
    }
    print(f"{len(raw) / 1e6:.1f} MB of JSON lines")
    times = {name: [] for name in engines}
    answers = {}
    for _ in range(ROUNDS):
        for name, engine in engines.items():
            begin = time.process_time()
            answers[name] = engine(raw)
            times[name].append(time.process_time() - begin)
    base = min(times["orjson.loads"])
    for name, taken in times.items():
        records, size = answers[name]
        speed = len(raw) / 1e6 / min(taken)
        print(f"{name:28s} {speed:7.0f} MB/s  {base / min(taken):5.2f} of orjson.loads  {records:,} records, {size:,} text bytes")
    print("packed, to documents in memory:")
    for name, packed in (("gzip", gzip.compress(raw, 6)), ("zstd", zstandard.compress(raw, 3))):
        begin = time.process_time()
        unpacked = sum(map(len, blocks(io.BytesIO(packed))))
        middle = time.process_time()
        documents(packed)
        whole = len(raw) / 1e6 / (time.process_time() - middle)
        print(f"{name:28s} {whole:7.0f} MB/s  (decompression alone {unpacked / 1e6 / (middle - begin):.0f})")
    if len(set(answers.values())) > 1:
        raise SystemExit(f"engines disagree: {answers}")


def content(path: str) -> bytes:
    with open(path, "rb") as file:
        return b"".join(blocks(file))


def made_up() -> bytes:
    """Records of about 3 kB from the library's source."""
    rows: list[bytes] = []
    size = 0
    while size < 64_000_000:
        for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
            text = path.read_text(encoding="utf-8", errors="replace")
            for start in range(0, len(text), 3000):
                row = {"id": f"{path.name}/{start}", "text": text[start : start + 3000], "url": f"file:{path.name}", "meta": {"at": start}}
                rows.append(orjson.dumps(row) + b"\n")
                size += len(rows[-1])
    return b"".join(rows)


def loop(loads: Callable[[bytes], dict[str, str]], data: bytes) -> tuple[int, int]:
    records = characters = 0
    for line in data.split(b"\n"):
        if line:
            records += 1
            characters += len(loads(line)["text"].encode())
    return records, characters


def texts_to_arrow(data: bytes) -> tuple[int, int]:
    array = pa.array([orjson.loads(line)["text"] for line in data.split(b"\n") if line], pa.large_string())
    return len(array), pc.sum(pc.binary_length(array)).as_py()


def arrow_json(data: bytes) -> tuple[int, int]:
    options = pyarrow.json.ReadOptions(use_threads=False, block_size=1 << 24)
    table = pyarrow.json.read_json(pa.BufferReader(data), read_options=options)
    return table.num_rows, pc.sum(pc.binary_length(table.column("text"))).as_py()


def documents(data: bytes) -> tuple[int, int]:
    intake = Intake("bench", SETTINGS)
    intake.begin("f")
    for _ in read_jsonl(intake, Piece("f", len(data), 0), io.BytesIO(data)):
        intake.ready.clear()
    intake.close_group()
    return intake.records, intake.bytes_in


def lake(data: bytes) -> tuple[int, int]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "f.jsonl"
        path.write_bytes(data)
        records = size = 0
        for shard in list_shards("bench", Source(reader="jsonl", paths=[str(path)]), 32_000_000):
            counts = read_shard(ShardWriter(Path(folder), "read", "0" * 32, shard.label), shard.task)
            records += counts["records"]
            size += counts["bytes_in"]
    return records, size


if __name__ == "__main__":
    main()
