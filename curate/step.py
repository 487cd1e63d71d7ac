"""Steps: a shard function run over shards, each finished shard recorded in the manifest, so that a rerun does only what is missing."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from curate.engine import Died, Executor
from curate.workplace import Workplace, verify_files
from schemas.errors import GristmillError, LakeError
from schemas.manifest import Entry, commit, find, fingerprint
from schemas.store import Published, publish
from schemas.tables import TABLES

Json = Any
ROW_GROUP = 1 << 16
"""Rows of a row group."""


class Progress(Protocol):
    """Where steps report how far they are."""

    def start(self, step: str, total: int) -> None:
        """A step begins with ``total`` shards to do."""
        ...

    def advance(self, step: str, counts: Mapping[str, int]) -> None:
        """One shard of the step is done; ``counts`` are its counts."""
        ...

    def finish(self, step: str, done: int, skipped: int) -> None:
        """The step is complete: shards done now, and found done before."""
        ...


class Silent:
    """A progress that shows nothing."""

    def start(self, step: str, total: int) -> None:
        """Nothing."""

    def advance(self, step: str, counts: Mapping[str, int]) -> None:
        """Nothing."""

    def finish(self, step: str, done: int, skipped: int) -> None:
        """Nothing."""


@dataclass(frozen=True)
class Shard:
    """One shard of work.

    Attributes:
        label: readable place, for example ``docs/00003``; part of file names.
        inputs: JSON that says what it reads (file sizes and times, keys of upstream entries); part of its key.
        task: JSON that the function gets; must be implied by ``inputs`` and the step's settings.
        size: bytes of the files that it reads; the largest begin first, so that none of them is left over at the end.
    """

    label: str
    inputs: Json
    task: Json
    size: int = 0


@dataclass
class ShardWriter:
    """What a shard function writes with: names files by the shard's key and remembers them."""

    root: Path
    step: str
    key: str
    label: str
    files: dict[str, Published] = field(default_factory=dict)

    def table(self, name: str, rows: pa.Table) -> None:
        """Publish rows as a Parquet file of a declared table; no rows, no file.

        Raises:
            pa.ArrowInvalid: the rows do not fit the declared schema.
        """
        if rows.num_rows:
            table = rows.select(TABLES[name].names).cast(TABLES[name])
            self.publish(
                name, "parquet", lambda path: pq.write_table(table, path, compression="zstd", row_group_size=ROW_GROUP), table.num_rows
            )

    def batches(self, name: str, rows: pa.RecordBatchReader) -> None:
        """Publish rows as they come as a Parquet file of a declared table, in row groups as `table` makes them; no rows, no file.

        Raises:
            pa.ArrowInvalid: the rows do not fit the declared schema.
        """
        groups = (pa.Table.from_batches([batch]).select(TABLES[name].names).cast(TABLES[name]) for batch in rows if batch.num_rows)
        first = next(groups, None)
        if first is None:
            return
        count = 0

        def write(path: Path) -> None:
            nonlocal count
            with pq.ParquetWriter(path, TABLES[name], compression="zstd") as file:
                for group in itertools.chain([first], groups):
                    file.write_table(group, row_group_size=ROW_GROUP)
                    count += group.num_rows

        self.publish(name, "parquet", write)
        self.files[name] = replace(self.files[name], rows=count)

    def arrow(self, name: str, rows: pa.Table | pa.RecordBatch) -> None:
        """Publish rows of any schema as an Arrow IPC file, uncompressed, to be memory-mapped."""
        self.publish(name, "arrow", lambda path: _write_arrow(path, rows), rows.num_rows)

    def publish(self, name: str, suffix: str, write: Callable[[Path], None], rows: int = 0) -> None:
        """Publish a file of any other kind under ``name/label-key.suffix``."""
        self.files[name] = publish(self.root, f"{name}/{self.label}-{self.key[:12]}.{suffix}", write, rows)


def _write_arrow(path: Path, rows: pa.Table | pa.RecordBatch) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, rows.schema) as writer:
        writer.write(rows)


@dataclass(frozen=True)
class Step:
    """A step of curation.

    Attributes:
        name: step name, a folder of the manifest.
        version: raise it whenever the output for the same input changes; a golden-digest test fails otherwise.
        settings: JSON of every setting that the step reads.
        function: ``function(writer, task) -> counts``; importable, idempotent, free of any other state.
        processes: whether its work holds the GIL and so belongs in processes.
    """

    name: str
    version: int
    settings: Json
    function: Callable[[ShardWriter, Json], Mapping[str, int]]
    processes: bool = False

    def key(self, shard: Shard) -> str:
        """Fingerprint of everything that the shard's output depends on."""
        return fingerprint(self.name, self.version, self.settings, shard.label, shard.inputs)


def run_step(root: Path, step: Step, shards: Sequence[Shard], executor: Executor, progress: Progress) -> list[Entry]:
    """Run what the manifest lacks and return the entries of all shards in order.

    Raises:
        LakeError: a shard killed its process again and again; all others are finished.
        Exception: whatever a shard function raised; shards finished before stay finished.
    """
    entries = [find(root, step.name, step.key(shard)) for shard in shards]
    missing = [position for position, entry in enumerate(entries) if entry is None]
    missing.sort(key=lambda position: -shards[position].size)
    progress.start(step.name, len(missing))
    lake = Workplace.of(root)
    tasks = [(lake, step, shards[position], lake.files(shards[position].task)) for position in missing]
    deadly: list[str] = []
    for turn, entry in executor.run(_run_shard, tasks, step.processes):
        if isinstance(entry, Died):
            deadly.append(shards[missing[turn]].label)
            continue
        entries[missing[turn]] = entry
        lake.learn(entry)
        progress.advance(step.name, entry.counts)
    if deadly:
        raise LakeError(
            f"{len(deadly)} of {len(missing)} shards killed the process that worked on them each time; the others are finished",
            where=f"step {step.name}, shards {', '.join(sorted(deadly)[:10])}",
            fix="look at these inputs and at the memory there is; running again tries only them",
        )
    progress.finish(step.name, len(missing), len(shards) - len(missing))
    return [entry for entry in entries if entry is not None]


def _run_shard(task: tuple[Workplace, Step, Shard, Sequence[Published]]) -> Entry:
    lake, step, shard, files = task
    with lake.with_files(files) as root:
        writer = ShardWriter(root, step.name, step.key(shard), shard.label)
        try:
            counts = step.function(writer, shard.task)
        except Exception as error:
            if not isinstance(error, GristmillError):
                verify_files(root, shard.task)  # a damaged file of the lake says it better
            raise
        entry = Entry(writer.key, step.name, shard.label, writer.files, dict(counts))
        commit(root, entry)
    return entry
