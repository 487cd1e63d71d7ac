"""Bytes of any shape through a reader: what must hold of them, and small valid files to start from."""

from __future__ import annotations

import gzip
import io
import json
import os
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from curate.read import _READERS, _groups
from curate.read.intake import Intake
from curate.read.piece import Piece
from schemas.tables import DOCUMENTS, QUARANTINE

READERS = ("jsonl", "csv", "arrow", "parquet", "warc", "text")
SETTINGS = {
    "text_field": "text",
    "id_field": None,
    "url_field": "url",
    "date_field": "date",
    "license_field": "license",
    "max_document_bytes": 4000,
}


def check(reader: str, data: bytes, by_id: bool = False) -> int:
    """Read a file of these bytes: nothing is raised, what is given is sound and adds up; returns the number of documents."""
    intake = Intake("src", SETTINGS | {"id_field": "id" if by_id else None})
    place = Path(tempfile.gettempdir()) / f"gristmill-fuzz-{os.getpid()}"
    place.write_bytes(data)
    try:
        groups = list(_groups(intake, _READERS[reader], [Piece("f", len(data), 0)], [str(place)]))
    finally:
        place.unlink()
    documents = pa.concat_tables([DOCUMENTS.empty_table(), *groups])
    quarantine, counts = intake.quarantine(), intake.counts()
    for table, schema in ((documents, DOCUMENTS), (quarantine, QUARANTINE)):
        assert table.schema == schema
        table.validate(full=True)
    numbers = documents.column("record").to_pylist()
    faults = [row["record"] for row in quarantine.to_pylist() if row["record"] is not None]
    assert counts["records"] == counts["documents"] + counts["quarantined"]
    assert counts["documents"] == documents.num_rows and counts["quarantined"] == len(faults)
    assert counts["broken_files"] == quarantine.num_rows - len(faults)
    assert len({*numbers, *faults}) == len(numbers) + len(faults), "no record is given twice"
    texts = documents.column("text").to_pylist()
    sizes = [len(text.encode()) for text in texts]
    assert documents.column("bytes").to_pylist() == sizes and counts["bytes_in"] == sum(sizes) and max(sizes, default=0) <= 4000
    for meta in documents.column("meta").to_pylist():
        assert meta is None or isinstance(json.loads(meta), dict)
    return len(texts)


def seeds(reader: str) -> list[bytes]:
    """Small valid files of a kind, plain and packed."""
    rows = [{"text": "a b", "id": 1, "url": "http://x.org"}, {"text": '日本\n"x"', "n": [1, {"a": None}]}, {"text": "", "date": "2024"}]
    if reader == "jsonl":
        plain = [
            b"".join(json.dumps(row).encode() + b"\n" for row in rows),
            b'\xef\xbb\xbf{"text": "\\ud800"}\r\n[]\n{"text": 1e400}\nnull',
        ]
    elif reader == "csv":
        plain = [b'text,id,url\r\n"a ""b""\n",1,u\nx,2,\n', b"id\ttext\n1\ta\n\n2\n"]
    elif reader == "text":
        plain = [b"one text", b"\xef\xbb\xbf\xff\xfe"]
    elif reader == "warc":
        body = (
            b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=latin-1\r\nTransfer-Encoding: chunked\r\n\r\n8\r\n<p>a</p>\r\n0\r\n\r\n"
        )
        head = "WARC/1.0\r\nWARC-Type: {}\r\nContent-Type: {}\r\nWARC-Target-URI: <u>\r\nContent-Length: {}\r\n\r\n"
        made = [("response", "application/http", body), ("conversion", "text/plain", b"text"), ("warcinfo", "x", b"y")]
        plain = [b"".join(head.format(kind, media, len(part)).encode() + part + b"\r\n\r\n" for kind, media, part in made)]
    else:
        table = pa.table({"text": ["a", "bc", None], "id": [1, 2, 3], "more": [[1], [], [2, 3]], "url": pa.array([b"x", b"\xff", None])})
        plain = []
        for write in (pa.ipc.new_stream, pa.ipc.new_file) if reader == "arrow" else (None,):
            sink = io.BytesIO()
            if write is None:
                pq.write_table(table, sink, compression="zstd")
            else:
                with write(sink, table.schema) as writer:
                    writer.write_table(table, max_chunksize=2)
            plain.append(sink.getvalue())
    packed = [gzip.compress(plain[0], mtime=0) * 2, zstandard.compress(plain[-1])]
    return plain if reader == "parquet" else plain + packed
