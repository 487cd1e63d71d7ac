"""Where records become documents or quarantine rows: fields, identity, counts, and the tables of a shard."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from schemas.tables import DOCUMENTS, QUARANTINE

if TYPE_CHECKING:  # it loads numba, which other readers need not
    from curate.read.lift import Line

GROUP_ROWS = 1 << 16
GROUP_CHARACTERS = 8_000_000
"""A row group is closed at this many rows or characters of text, whichever comes first."""
DETAIL_CHARACTERS = 300

Record = dict[str, Any]


class Intake:
    """Takes the records of one shard.

    Args:
        source: source name.
        settings: the source's settings that a reader reads (``curate.read.reader_settings``).

    Attributes:
        ready: finished row groups of documents; the driver takes them away.
        records: physical records seen, good or bad, counted by the readers themselves.
        input_bytes: bytes of files read, as they lie on the disk.
    """

    def __init__(self, source: str, settings: Mapping[str, Any]) -> None:
        self.source = source
        self.text_field: str = settings["text_field"]
        self.id_field: str | None = settings["id_field"]
        self.others: list[str | None] = [settings["url_field"], settings["date_field"], settings["license_field"]]
        self.max_bytes: int = settings["max_document_bytes"]
        self.ready: list[pa.Table] = []
        self.records = self.documents = self.quarantined = self.broken_files = self.bytes_in = self.input_bytes = 0
        self._by_id = hashlib.blake2b(b"id\0" + source.encode() + b"\0", digest_size=16)
        self._faults: list[tuple[str, int | None, str, str, int]] = []
        self._clear()

    def begin(self, path: str) -> None:
        """Records that follow come from the file of this path under the source's root."""
        self.path = path
        self._by_place = hashlib.blake2b(b"place\0" + self.source.encode() + b"\0" + path.encode() + b"\0", digest_size=16)

    def take(self, record: Record, number: int, size: int) -> None:
        """Accept a record as a document, or set it aside.

        Args:
            record: its fields; emptied.
            number: physical record number in the file.
            size: its raw bytes.
        """
        text = _pop(record, self.text_field, self)
        if type(text) is not str:
            self._refuse_text(text, number, size)
            return
        length = len(text) if 4 * len(text) <= self.max_bytes else len(text.encode())
        if self._fits(length, number, size) and self._accept(record, number, size):
            self._texts.add(text)
            self._characters += len(text)
            self._close_full_group()

    def take_lifted(self, record: Record, line: Line, number: int) -> None:
        """Accept a record whose text was lifted from its line; see `take`."""
        size = line.stop - line.start
        if self._fits(line.size, number, size) and self._accept(record, number, size):
            self._texts.add_row(line.texts, line.row)
            self._characters += line.characters
            self._close_full_group()

    def _fits(self, length: int, number: int, size: int) -> bool:
        if length > self.max_bytes:
            self.refuse(number, "too_large", f"{length:,} bytes, more than max_document_bytes = {self.max_bytes:,}", size)
        return length <= self.max_bytes

    def _accept(self, record: Record, number: int, size: int) -> bool:
        """Take everything but the text of a record; set it aside where it has no id."""
        if self.id_field is None:
            name, digest = None, self._by_place.copy()
            digest.update(b"%d" % number)
        else:
            name = _scalar(_pop(record, self.id_field, None))
            if not name:
                self.refuse(number, "no_id", f"the record has no {self.id_field!r}", size)
                return False
            digest = self._by_id.copy()
            digest.update(name.encode())
        self._ids.append(digest.digest())
        self._names.append(name)
        self._paths.append(self.path)
        self._numbers.append(number)
        for column, field in zip(self._others, self.others, strict=True):
            column.append(None if field is None else _scalar(_pop(record, field, None)))
        self._metas.append(_json(record) if record else None)
        self.documents += 1
        return True

    def _close_full_group(self) -> None:
        if self._characters >= GROUP_CHARACTERS or len(self._ids) >= GROUP_ROWS:
            self.close_group()

    def _refuse_text(self, text: object, number: int, size: int) -> None:
        if text is self:
            self.refuse(number, "no_text", f"the record has no {self.text_field!r}", size)
        elif text is None:
            self.refuse(number, "null_text", f"{self.text_field!r} is null", size)
        else:
            self.refuse(number, "text_not_string", f"{self.text_field!r} is of type {type(text).__name__}", size)

    def refuse(self, number: int, reason: str, detail: str, size: int) -> None:
        """Set a record aside."""
        self._faults.append((self.path, number, reason, detail[:DETAIL_CHARACTERS], size))
        self.quarantined += 1

    def refuse_file(self, reason: str, detail: str, size: int) -> None:
        """Note a fault of the file as a whole; it is no record."""
        self._faults.append((self.path, None, reason, detail[:DETAIL_CHARACTERS], size))
        self.broken_files += 1

    def close_group(self) -> None:
        """Turn the documents taken since the last time into a table, one row group."""
        rows = len(self._ids)
        if not rows:
            return
        text = self._texts.column()
        length = pc.binary_length(text).cast(pa.int64())
        self.bytes_in += pc.sum(length).as_py()
        url, date, license = (pa.array(column, pa.string()) for column in self._others)
        columns = {
            "doc_id": pa.array(self._ids, pa.binary(16)),
            "source": pa.repeat(self.source, rows),
            "id": pa.array(self._names, pa.string()),
            "path": pa.array(self._paths, pa.string()),
            "record": pa.array(self._numbers, pa.int64()),
            "text": text,
            "bytes": length,
            "text_version": pa.repeat(pa.scalar(0, pa.int32()), rows),
            "url": url,
            "date": date,
            "license": license,
            "meta": pa.array(self._metas, pa.string()),
        }
        self.ready.append(pa.table(columns, schema=DOCUMENTS))
        self._clear()

    def _clear(self) -> None:
        self._ids: list[bytes] = []
        self._names: list[str | None] = []
        self._paths: list[str] = []
        self._numbers: list[int] = []
        self._texts = _Texts()
        self._others: list[list[str | None]] = [[], [], []]
        self._metas: list[str | None] = []
        self._characters = 0

    def quarantine(self) -> pa.Table:
        """What was set aside, in the order in which it was met."""
        paths, numbers, reasons, details, sizes = zip(*self._faults, strict=True) if self._faults else ((), (), (), (), ())
        rows = len(paths)
        columns = [pa.repeat(self.source, rows), paths, numbers, reasons, details, sizes, pa.nulls(rows, pa.binary(16))]
        arrays = [
            column if isinstance(column, pa.Array) else pa.array(column, field.type)
            for column, field in zip(columns, QUARANTINE, strict=True)
        ]
        return pa.Table.from_arrays(arrays, schema=QUARANTINE)

    def counts(self) -> dict[str, int]:
        """The shard's counts; ``records = documents + quarantined`` holds when nothing was lost, since ``records`` is counted apart."""
        names = ("records", "documents", "quarantined", "broken_files", "bytes_in", "input_bytes")
        return {name: getattr(self, name) for name in names}


class _Texts:
    """Texts of a row group in the order in which they come: strings, and rows of arrays."""

    def __init__(self) -> None:
        self._strings: list[str] = []
        self._parts: list[pa.Array] = []
        self._array, self._first, self._stop = pa.array([], pa.large_string()), 0, 0

    def add(self, text: str) -> None:
        """Add a string."""
        if self._first < self._stop:
            self._close()
        self._strings.append(text)

    def add_row(self, array: pa.LargeStringArray, row: int) -> None:
        """Add a row of an array."""
        if array is not self._array or row != self._stop:
            self._close()
            self._array, self._first, self._stop = array, row, row
        self._stop += 1

    def _close(self) -> None:
        if self._strings:
            self._parts.append(pa.array(self._strings, pa.large_string()))
        if self._first < self._stop:
            self._parts.append(self._array.slice(self._first, self._stop - self._first))
        self._strings, self._first = [], self._stop

    def column(self) -> pa.LargeStringArray:
        """All of them, copied to one place, so that files do not depend on how they came."""
        self._close()
        return pa.concat_arrays(self._parts)


def holder(record: Record, field: str) -> tuple[Record, str] | None:
    """The object that has a field, and its name there: ``a.b`` is field b of the object in a when the record has none of that very name."""
    while field not in record:
        outer, dot, field = field.partition(".")
        inner = record.get(outer)
        if not dot or type(inner) is not dict:
            return None
        record = inner
    return record, field


def _pop(record: Record, field: str, missing: object) -> object:
    """Take a field out of a record (see ``holder``), and objects that are then empty with it."""
    value = record.pop(field, missing)
    if value is missing and "." in field:
        outer, _, inner = field.partition(".")
        if type(nested := record.get(outer)) is dict:
            value = _pop(nested, inner, missing)
            if not nested:
                del record[outer]
    return value


def _scalar(value: object) -> str | None:
    """A value as text: strings as they are, everything else as JSON."""
    return value if value is None or type(value) is str else _json(value).strip('"')


def _json(value: object) -> str:
    try:
        return orjson.dumps(value, _other_type, orjson.OPT_SORT_KEYS).decode()
    except orjson.JSONEncodeError:  # integers beyond 64 bits, nesting beyond 254
        return json.dumps(value, default=_other_type, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def _other_type(value: object) -> str:
    """JSON for what it does not know, such as bytes (as hex), decimals and durations of Parquet."""
    return value.hex() if isinstance(value, bytes) else str(value)
