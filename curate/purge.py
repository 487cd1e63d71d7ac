"""Purging: takes forgotten documents' text out of everything that a lake has published.

Failure model. Tombstones are published first, so that no later run brings the text back. Each file is then rewritten by a rename over the
old one; a process that has it mapped keeps the old bytes until it lets go. Entries, snapshots, generations and stages that name a file's
length and checksum are restated after all files, the manifest's entries last. Killed in between, the same command finishes the purge: it
compares every file that holds a forgotten id with what its entry says, and entries say the old until everything else says the new.

Not covered: exports, copies of the lake, the inputs themselves, and models, which cannot be made to forget: the report names them.
Other machines' working copies of a lake in an object store drop the old bytes when they are next used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from curate.corpus import column_array
from curate.tokenizer import load_tokenizer
from curate.tombstones import blanked
from schemas import objects
from schemas.manifest import Entry, Snapshot, entry_from_json, read_snapshot, write_snapshot
from schemas.store import Published, checksum, here, publish, publish_json, read_json, remove
from schemas.working_copy import copy_of

PURGED = {"text", "tokens", "detail"}
"""Columns of tables that may hold what a document says."""

Json = Any


def purge(root: Path, ids: pa.Array, tell: Callable[[int, int], None] = lambda done, total: None) -> list[str]:
    """Take documents out of all published files; under the lake's lock.

    Args:
        root: the lake.
        ids: their doc_ids.
        tell: takes how many entries of manifests are done, and how many there are.

    Returns:
        Paths of the files that were rewritten or removed.
    """
    stated: dict[str, Published] = {}
    contents: dict[str, str] = {}
    done: list[str] = []
    changed: list[tuple[Path, Entry]] = []
    places = sorted(root.glob("manifests/*/*/*.json"))
    for number, place in enumerate(places):
        tell(number, len(places))
        entry = entry_from_json(read_json(place))
        files = {table: _file(root, table, file, ids, done) for table, file in entry.files.items()}
        if files != dict(entry.files):
            new = replace(entry, files=files, counts=_counts(root, entry, files))
            stated |= {file.path: file for file in files.values()}
            contents[entry.content] = new.content
            changed.append((place, new))
    changed += _restate_generations(root, contents, stated)
    _purge_laid_out(root, ids, done)
    if (report := root / "report.html").is_file():  # a deployment's, with samples of the text
        remove(report)
        done.append(report.name)
    for place in sorted(root.glob("runs/*/*/stage.json")):
        _rewrite_json(root, place, stated, contents)
    for place in sorted(root.glob("snapshots/*.json")):
        snapshot = read_snapshot(root, place.stem)
        steps = {step: [_restated_entry(entry, stated) for entry in entries] for step, entries in snapshot.steps.items()}
        if steps != {step: list(entries) for step, entries in snapshot.steps.items()}:
            write_snapshot(root, Snapshot(snapshot.recipe, steps), place.stem)
    for place, new in changed:
        publish_json(root, str(place.relative_to(root)), asdict(new))
    return sorted(set(done))


def _counts(root: Path, entry: Entry, files: Mapping[str, Published]) -> Mapping[str, int]:
    """An entry's counts; what a reader says of its texts' bytes is counted again."""
    if "bytes_in" not in entry.counts or "documents" not in files:
        return entry.counts
    sizes = pq.read_table(root / files["documents"].path, columns=["bytes"], partitioning=None).column("bytes")
    return {**entry.counts, "bytes_in": pc.sum(sizes).as_py() or 0}


def _restated_entry(entry: Entry, stated: Mapping[str, Published]) -> Entry:
    return replace(entry, files={table: stated.get(file.path, file) for table, file in entry.files.items()})


def _restate_generations(root: Path, contents: Mapping[str, str], stated: dict[str, Published]) -> list[tuple[Path, Entry]]:
    """Rewrite the records of generations, which name contents, and return the entries that name those records, to be published."""
    changed = []
    for place in sorted(root.glob("manifests/generation/*/*.json")):
        entry = entry_from_json(read_json(place))
        for file in entry.files.values():
            _rewrite_json(root, root / file.path, {}, contents)
        files = {table: Published(file.path, *_measured(root / file.path), file.rows) for table, file in entry.files.items()}
        stated |= {file.path: file for file in files.values()}
        if files != dict(entry.files):
            changed.append((place, replace(entry, files=files)))
    return changed


def _rewrite_json(root: Path, place: Path, stated: Mapping[str, Published], contents: Mapping[str, str]) -> None:
    old = read_json(place)
    new = _restated(old, stated, contents)
    if new != old:
        publish_json(root, str(place.relative_to(root)), new)


def _restated(value: Json, stated: Mapping[str, Published], contents: Mapping[str, str]) -> Json:
    """JSON in which lengths and checksums of rewritten files, and contents of their entries, are the new ones."""
    if isinstance(value, dict):
        inner = {key: _restated(part, stated, contents) for key, part in value.items()}
        file = stated.get(str(inner.get("path")))
        return inner | {"bytes": file.bytes, "checksum": file.checksum} if file is not None and "checksum" in inner else inner
    if isinstance(value, list):
        return [_restated(part, stated, contents) for part in value]
    return contents.get(value, value) if isinstance(value, str) else value


def _measured(path: Path) -> tuple[int, str]:
    return path.stat().st_size, checksum(path)


def _file(root: Path, table: str, file: Published, ids: pa.Array, done: list[str]) -> Published:
    """Purge one file; what is stated of it afterwards."""
    path = root / file.path
    if not path.is_file() or path.suffix not in (".parquet", ".arrow"):
        return file
    if table == "references":  # texts of held-out documents by place, which the step that wrote them makes again when it is asked for
        remove(path)
        done.append(file.path)
        return file
    if not _may_hold(root, file, ids):
        return file
    here(root, file.path, file.checksum)
    purged = _purge_rows(path, ids, root) if path.suffix == ".arrow" else _purge_parquet(path, ids)
    return file if purged is None else _written(root, file.path, purged, file.rows, done)


def _may_hold(root: Path, file: Published, ids: pa.Array) -> bool:
    """Whether a file may hold a document; of one whose bytes are in the object store alone, its ids are read there, and nothing else."""
    copy = copy_of(root)
    if copy is None or copy.is_here(file.path):
        return True
    key = f"{copy.key}/{file.path}"
    try:
        return objects.again(key, lambda: _ids_meet(objects.client().open_input_file(key), file.path, ids))
    except FileNotFoundError:
        return True  # left to whoever needs its bytes


def _ids_meet(source: Any, path: str, ids: pa.Array) -> bool:
    if path.endswith(".arrow"):
        names = pa.ipc.open_file(source).schema.names
        if "doc_ids" not in names:
            return False
        wanted = pa.ipc.IpcReadOptions(included_fields=[names.index("doc_ids")])
        held = column_array(pa.ipc.open_file(source, options=wanted).read_all(), "doc_ids").flatten()
    else:
        parquet = pq.ParquetFile(source)
        names = parquet.schema_arrow.names
        if "doc_id" not in names or not PURGED & set(names):
            return False
        held = parquet.read(columns=["doc_id"]).column("doc_id")
    return bool(pc.any(pc.is_in(held, ids)).as_py())


def _purge_laid_out(root: Path, ids: pa.Array, done: list[str]) -> None:
    """Purge the rows that stages have laid out, which are copies of the lots' rows; a stage that a rewind set aside loses them."""
    for folder in sorted(root.glob("runs/*/*/written")):
        stage, names = folder.parent / "stage.json", folder.parent / "written.json"
        if not stage.is_file():
            remove(names)
            remove(folder)
            done.append(folder.relative_to(root).as_posix())
            continue
        tokenizer = _tokenizer_of(root, read_json(stage)["lots"])
        stated: dict[str, Published] = {}
        for path in sorted(folder.glob("[!.]*.arrow")):
            relative = path.relative_to(root).as_posix()
            if not _may_hold(root, Published(relative, 0, ""), ids):
                continue
            purged = _purge_rows(here(root, relative), ids, root, tokenizer)
            if purged is not None:
                stated[relative] = _written(root, relative, purged, 0, done)
        if stated and names.is_file():
            _rewrite_json(root, names, stated, {})


def _tokenizer_of(root: Path, lots: Json) -> str:
    """Fingerprint of the tokenizer that made the rows of a stage's lots."""
    shard = next(shard for lot in lots for shard in lot["shards"])
    with pa.OSFile(str(here(root, shard["path"]))) as source:
        return str(pa.ipc.open_file(source).schema.metadata[b"tokenizer"].decode())


Change = tuple[bool, Callable[[Path], None]]
Purged = Change | None
"""Whether a file is to be written, and how; None when it holds none of the documents."""


def _written(root: Path, relative: str, change: Change, rows: int, done: list[str]) -> Published:
    """Write a purged file unless it is there already; what is stated of it afterwards."""
    changed, write = change
    if changed:
        done.append(relative)
        publish(root, relative, write, rows)
    return Published(relative, *_measured(root / relative), rows)


def _purge_parquet(path: Path, ids: pa.Array) -> Purged:
    """Texts and token ids of documents, and what tables say was found of them, such as an id that repeats."""
    schema = pq.read_schema(path)
    has_tokens = "tokens" in schema.names and pa.types.is_large_list(schema.field("tokens").type)
    if "doc_id" not in schema.names or not (has_tokens or PURGED - {"tokens"} & set(schema.names)):
        return None
    held = pc.is_in(pq.read_table(path, columns=["doc_id"], partitioning=None).column("doc_id"), ids)
    if not pc.any(held).as_py():
        return None
    table = pq.read_table(path, partitioning=None)
    if has_tokens:
        values = pc.if_else(held, pa.scalar([], schema.field("tokens").type), table.column("tokens"))
        new = table.set_column(schema.names.index("tokens"), table.schema.field("tokens"), values)
    elif "detail" in schema.names:
        told = pc.if_else(pc.fill_null(held, False), pa.scalar(""), table.column("detail"))
        new = table.set_column(schema.names.index("detail"), table.schema.field("detail"), told)
    else:
        new = blanked(table, ids)
    return not new.equals(table), lambda to: _write_parquet(to, new)


def _write_parquet(path: Path, table: pa.Table) -> None:
    pq.write_table(table, path, compression="zstd", row_group_size=1 << 16)


def _purge_rows(path: Path, ids: pa.Array, root: Path, tokenizer: str | None = None) -> Purged:
    """Packed rows: the documents' pieces become padding where they stand, since plans count on every row's place.

    Rows that are laid out do not tell their tokenizer: it is given by its fingerprint.
    """
    with pa.OSFile(str(path)) as source:
        table = pa.ipc.open_file(source).read_all()
    if "doc_ids" not in table.column_names:
        return None
    owners = column_array(table, "doc_ids")
    held = pc.is_in(owners.flatten(), ids).to_numpy(zero_copy_only=False)
    if not held.any():
        return None
    pad = _pad(root, tokenizer or table.schema.metadata[b"tokenizer"].decode())
    tokens, ends = column_array(table, "tokens"), column_array(table, "ends")
    length = tokens.type.list_size
    values = tokens.flatten().to_numpy().copy()
    row = np.repeat(np.arange(len(ends)), ends.value_lengths().to_numpy())
    stop = ends.flatten().to_numpy()
    start = np.where(np.diff(row, prepend=-1) != 0, 0, np.concatenate([[0], stop[:-1]]))
    for piece in np.flatnonzero(held):
        values[row[piece] * length + start[piece] : row[piece] * length + stop[piece]] = pad
    new = pa.FixedSizeListArray.from_arrays(pa.array(values, tokens.type.value_type), type=tokens.type)
    columns = [new if name == "tokens" else table.column(name) for name in table.column_names]
    made = pa.table(columns, schema=table.schema).combine_chunks()
    return not new.equals(tokens), lambda to: _write_arrow(to, made)


def _write_arrow(path: Path, table: pa.Table) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_batch(table.to_batches()[0])


def _pad(root: Path, fingerprint: str) -> int:
    """Padding of the tokenizer that made some rows; 0 where the lake no longer has it."""
    for place in sorted(root.glob("tokenizer/*.json")):
        if checksum(place) == fingerprint:
            return load_tokenizer(place).pad
    return 0
