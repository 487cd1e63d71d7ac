"""Takes things out of a lake: text as JSONL, Parquet or a ``datasets`` folder; token rows as npy or bin; a model for ``transformers``.

Failure model. Everything is written under a temporary name beside the target and renamed when it is whole, so that the target is the old
export or the new one. An existing target is refused unless it may be replaced.
"""

from __future__ import annotations

import gzip
import json
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Literal, cast

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc
import pyarrow.parquet as pq
import zstandard

from curate.corpus import column_array, rows_of
from curate.lots import LotTable, read_lots
from curate.tombstones import read_tombstones
from pipelines.card import dataset_card
from pipelines.export_model import write_model
from pipelines.progress import Tell, untold
from schemas.errors import GristmillError, LakeError
from schemas.manifest import Snapshot, read_snapshot
from schemas.settings import Lot
from schemas.store import TEMPORARY, here, sync_folder, using
from schemas.tables import column

Format = Literal["jsonl", "parquet", "hf", "npy", "bin", "hf-model"]
State = Literal["kept", "held_out"]
SPLITS: dict[State, str] = {"kept": "train", "held_out": "heldout"}

TEXT = pa.schema(
    [
        column("doc_id", pa.string(), "the document's identity in the lake, hex"),
        column("source", pa.string(), "source name of the recipe"),
        column("id", pa.string(), "the user's own id", True),
        column("text", pa.large_string(), "the text"),
        column("url", pa.string(), "where it came from, if known", True),
        column("date", pa.string(), "its date, if known", True),
        column("license", pa.string(), "its licence, if known", True),
        column("meta", pa.string(), "all other fields of the record, as JSON", True),
    ]
)


class ExportError(GristmillError):
    """An export that would overwrite something, or has nothing to write."""


UNITS: dict[Format, str] = {
    "jsonl": "documents",
    "parquet": "documents",
    "hf": "documents",
    "npy": "rows",
    "bin": "tokens",
    "hf-model": "parameters",
}


def format_of(target: Path) -> Format:
    """The format that a target's name tells."""
    suffixes = [suffix for suffix in target.suffixes if suffix not in (".gz", ".zst")]
    return {".jsonl": "jsonl", ".parquet": "parquet"}.get(suffixes[-1] if suffixes else "", "hf")  # type: ignore[return-value]


def export(
    root: Path,
    target: Path,
    form: Format,
    state: State = "kept",
    force: bool = False,
    *,
    run: str | None = None,
    checkpoint: str | None = None,
    tell: Tell = untold,
) -> int:
    """Write an export.

    Args:
        root: the lake.
        target: file (jsonl, parquet) or folder (hf, npy, bin, hf-model) to write; ``.zst`` and ``.gz`` JSONL is compressed.
        form: jsonl, parquet, hf (kept and held-out documents as two splits), npy (a matrix of rows a lot), bin (tokens without padding, a
            file a split).
        state: which documents to write as jsonl or parquet.
        force: whether to replace what is there.
        run: of hf-model: the run; None is the lake's only one.
        checkpoint: of hf-model: the checkpoint; None is the run's newest.
        tell: called with the shards or lots that are done, and how many there are.

    Returns:
        Documents written, or rows for npy, tokens for bin, parameters for hf-model.

    Raises:
        ExportError: the target exists (or is a folder that no export wrote), cannot be written, or nothing is left to write.
        LakeError: nothing is curated yet.
    """
    snapshot = read_snapshot(root)
    if target.exists() and not force:
        raise ExportError("exists already", where=str(target), fix="name another, or replace it with --force")
    if others := _no_export(target):
        raise ExportError(f"holds what no export wrote: {', '.join(others[:3])}", where=str(target), fix="name another folder")
    try:
        with using(root), _Replacement(target) as path:
            if form == "hf-model":
                count = write_model(root, snapshot, path, run, checkpoint)
            else:
                count = _WRITERS[form](root, snapshot, path, state, target.name, tell)
            if not count:
                raise ExportError("nothing to write: no document is " + state.replace("_", " "), where=str(root))
    except OSError as error:
        raise ExportError(f"cannot write: {error.strerror or error}", where=str(target), fix="free space or check permissions") from error
    return count


def _no_export(target: Path) -> list[str]:
    """What a folder holds that is not of an export; such a folder is never replaced, since replacing deletes it whole."""
    if not target.is_dir():
        return []
    patterns = ["README.md", "data/*.parquet", "tokenizer.json", "lots.json", "*.npy", "*.bin"]
    patterns += ["config.json", "model.safetensors", "tokenizer_config.json"]
    ours = {path for pattern in patterns for path in target.glob(pattern)}
    return sorted(str(path.relative_to(target)) for path in target.rglob("*") if not path.is_dir() and path not in ours)


class _Replacement:
    """A temporary name beside a target, renamed over it when the block ends well."""

    def __init__(self, target: Path) -> None:
        self.target = target.absolute()
        self.path = self.target.parent / f"{TEMPORARY}{secrets.token_hex(8)}-{target.name}"

    def __enter__(self) -> Path:
        self.target.parent.mkdir(parents=True, exist_ok=True)
        return self.path

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            old = self.path.with_name(f"{self.path.name}.old")
            if self.target.is_dir() or (self.path.is_dir() and self.target.exists()):
                self.target.rename(old)
            self.path.rename(self.target)
            sync_folder(self.target.parent)
            _remove(old)
        _remove(self.path)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def texts(root: Path, snapshot: Snapshot, state: State, tell: Tell = untold) -> Iterator[tuple[int, pa.Table]]:
    """Documents of a state by documents shard, in lake order, in the schema ``TEXT``; without those to be forgotten."""
    forgotten = read_tombstones(root)
    for shard, (read, judged) in enumerate(zip(snapshot.steps["read"], snapshot.steps["verdicts"], strict=True)):
        tell(shard, len(snapshot.steps["read"]))
        if "documents" not in read.files or "verdicts" not in judged.files:
            continue
        verdicts = pq.read_table(here(root, judged.files["verdicts"].path), columns=["locator", "state"], partitioning=None)
        chosen = verdicts.filter(pc.equal(verdicts.column("state"), state)).column("locator")
        rows = pa.array(rows_of(chosen.to_numpy()))
        documents = pq.read_table(here(root, read.files["documents"].path), partitioning=None).take(rows)
        documents = documents.filter(pc.invert(pc.is_in(documents.column("doc_id"), forgotten)))
        if documents.num_rows:
            ids = pa.array([value.hex() for value in documents.column("doc_id").to_pylist()], pa.string())
            yield shard, documents.set_column(documents.schema.get_field_index("doc_id"), "doc_id", ids).select(TEXT.names).cast(TEXT)


def _jsonl(root: Path, snapshot: Snapshot, path: Path, state: State, name: str, tell: Tell) -> int:
    count = 0
    with _open(path, name) as file:
        for _, table in texts(root, snapshot, state, tell):
            for batch in table.to_batches(max_chunksize=1024):
                lines = [
                    orjson.dumps({k: v for k, v in row.items() if v is not None}, option=orjson.OPT_APPEND_NEWLINE)
                    for row in batch.to_pylist()
                ]
                file.write(b"".join(lines))
            count += table.num_rows
    return count


def _open(path: Path, name: str) -> IO[bytes]:
    if name.endswith(".gz"):
        return cast(IO[bytes], gzip.GzipFile(path, "wb", mtime=0))
    return zstandard.open(path, "wb") if name.endswith(".zst") else path.open("wb")


def _parquet(root: Path, snapshot: Snapshot, path: Path, state: State, name: str, tell: Tell) -> int:
    count = 0
    with pq.ParquetWriter(path, TEXT, compression="zstd") as writer:
        for _, table in texts(root, snapshot, state, tell):
            writer.write_table(table, row_group_size=1 << 16)
            count += table.num_rows
    return count


def _hf(root: Path, snapshot: Snapshot, path: Path, state: State, name: str, tell: Tell) -> int:
    """A folder that ``datasets.load_dataset(folder)`` opens: Parquet by split and shard, and a card."""
    (path / "data").mkdir(parents=True)
    counts: dict[str, dict[str, tuple[int, int]]] = {}
    for each, split in SPLITS.items():
        for shard, table in texts(root, snapshot, each, tell):
            pq.write_table(table, path / "data" / f"{split}-{shard:05d}.parquet", compression="zstd")
            source = str(table.column("source")[0])
            documents, size = counts.setdefault(split, {}).get(source, (0, 0))
            length = pc.sum(pc.binary_length(table.column("text"))).as_py()
            counts[split][source] = documents + table.num_rows, size + length
    (path / "README.md").write_text(dataset_card(name, snapshot, counts), encoding="utf-8")
    return sum(documents for by_source in counts.values() for documents, _ in by_source.values())


def _npy(root: Path, snapshot: Snapshot, path: Path, state: State, name: str, tell: Tell) -> int:
    """``<lot>.npy``: a matrix (rows, row length) of token ids; positions past a row's last end are padding."""
    table, count = read_lots(root, snapshot), 0
    path.mkdir(parents=True)
    for number, lot in enumerate(table.lots.values()):
        tell(number, len(table.lots))
        with (path / f"{lot.lot}.npy").open("wb") as file:
            for tokens, _ in rows(root, lot):
                if not file.tell():
                    kind = np.lib.format.dtype_to_descr(tokens.dtype)
                    header = {"descr": kind, "fortran_order": False, "shape": (lot.rows, lot.row_length)}
                    np.lib.format.write_array_header_1_0(file, header)
                file.write(np.ascontiguousarray(tokens).data)
        count += lot.rows
    _describe(root, snapshot, path, table)
    return count


def _bin(root: Path, snapshot: Snapshot, path: Path, state: State, name: str, tell: Tell) -> int:
    """``train.bin`` and ``holdout.bin``: token ids of all rows one after another, little-endian, without padding."""
    table, count = read_lots(root, snapshot), 0
    path.mkdir(parents=True)
    for number, line in enumerate(table.lines):
        tell(number, len(table.lines))
        with (path / f"{line['split']}.bin").open("ab") as file:
            for tokens, lengths in rows(root, table.lots[line["lot"]]):
                used = tokens[np.arange(tokens.shape[1]) < lengths[:, None]]
                file.write(used.astype(used.dtype.newbyteorder("<")).tobytes())
                count += len(used)
    _describe(root, snapshot, path, table)
    return count


def rows(root: Path, lot: Lot) -> Iterator[tuple[Any, Any]]:
    """Token ids ``(rows, row length)`` and used lengths ``(rows,)`` of each shard of a lot."""
    for shard in lot.shards:
        path = here(root, shard.path, shard.checksum)
        if not path.is_file() or path.stat().st_size != shard.bytes:
            fix = "run `gristmill curate RECIPE` again: it rebuilds the file"
            raise LakeError("a file of rows is missing or cut short", where=str(path), fix=fix)
        with pa.memory_map(str(path)) as file:
            table = pa.ipc.open_file(file).read_all()
            flat = column_array(table, "tokens").flatten().to_numpy()
            ends = column_array(table, "ends")
            yield flat.reshape(-1, lot.row_length), ends.values.to_numpy()[ends.offsets.to_numpy()[1:] - 1]


def _describe(root: Path, snapshot: Snapshot, path: Path, table: LotTable) -> None:
    """Beside token files: the tokenizer, and what each lot is."""
    tokenizer = snapshot.steps["tokenizer"][0].files["tokenizer"]
    shutil.copyfile(root / tokenizer.path, path / "tokenizer.json")
    about = {"snapshot": snapshot.id, "tokenizer": tokenizer.checksum, "lots": list(table.lines)}
    (path / "lots.json").write_text(json.dumps(about, indent=1, sort_keys=True) + "\n", encoding="utf-8")


_WRITERS: dict[Format, Callable[[Path, Snapshot, Path, State, str, Tell], int]] = {
    "jsonl": _jsonl,
    "parquet": _parquet,
    "hf": _hf,
    "npy": _npy,
    "bin": _bin,
}
