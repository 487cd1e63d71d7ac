"""The state of one curation: its lake, its recipe, who runs shards, and the entries of finished steps."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from curate.step import run_step
from schemas.manifest import Entry, Snapshot

if TYPE_CHECKING:  # whoever only asks a lake needs no recipe, whose models take long to build
    from curate.engine import Executor
    from curate.step import Progress, Shard, Step
    from schemas.recipe import Recipe


@dataclass
class Curation:
    """A curation of one recipe in one lake.

    Attributes:
        root: the lake.
        recipe: the recipe.
        executor: runs shards.
        progress: is told how far steps are.
        sample: share of documents, drawn by hash of doc_id, that goes on after reading; 1 is all.
        batch_rows: documents handed to a kernel at once; changes no result.
        memory_bytes: memory that global steps may use before they spill.
        steps: entries of finished steps, in the order of the path.
        earlier: the lake's snapshot, when new data are added to it as a generation; its entries are taken as they are.
        rehearsal: rules may differ from those of earlier generations, whose stored signals are judged by them.
    """

    root: Path
    recipe: Recipe
    executor: Executor
    progress: Progress
    sample: float = 1.0
    batch_rows: int = 4096
    memory_bytes: int = 4 << 30
    steps: dict[str, list[Entry]] = field(default_factory=dict)
    earlier: Snapshot | None = None
    rehearsal: bool = False

    def run(self, step: Step, shards: Sequence[Shard]) -> list[Entry]:
        """Run what the manifest lacks of a step."""
        return run_step(self.root, step, shards, self.executor, self.progress)

    def keep(self, step: Step, shards: Sequence[Shard]) -> list[Entry]:
        """Run a step whose tables belong to the snapshot."""
        self.steps[step.name] = self.run(step, shards)
        return self.steps[step.name]

    def extend(self, step: Step, shards: Sequence[Shard]) -> list[Entry]:
        """Run a step that belongs to the snapshot for what is new: entries of earlier generations come before, as they are."""
        before = self.before(step.name)
        self.steps[step.name] = before + self.run(step, shards[len(before) :])
        return self.steps[step.name]

    def before(self, step: str) -> list[Entry]:
        """Entries of a step in earlier generations."""
        return [] if self.earlier is None else list(self.earlier.steps.get(step, ()))

    @property
    def generations(self) -> list[int]:
        """Documents shards at the end of each generation."""
        return Snapshot("", self.steps).generations

    @property
    def new(self) -> range:
        """Documents shards of the newest generation."""
        ends = self.generations
        return range(ends[-2] if len(ends) > 1 else 0, ends[-1])

    @property
    def documents(self) -> list[Entry]:
        """Entries of the documents shards, in locator order."""
        return self.steps["read"]

    def paths(self, step: str, table: str) -> list[str | None]:
        """Path of a table's file of each shard of a finished step."""
        return [self.path(step, table, shard) for shard in range(len(self.steps[step]))]

    def path(self, step: str, table: str, shard: int = 0) -> str | None:
        """Path of a table's file of a shard of a finished step, None when it has no rows."""
        return file_of(self.steps[step][shard], table)

    def common(self, step: str, table: str, shard: int) -> str | None:
        """Path of a table that a step wrote for the whole generation of a documents shard, None when it has no rows."""
        return self.path(step, table, bisect_right(self.generations, shard))


def source_of(entry: Entry) -> str:
    """Source of a shard, from its label."""
    return entry.label.partition("/")[0]


def file_of(entry: Entry, table: str) -> str | None:
    """Path of an entry's file, None when it has none."""
    return entry.files[table].path if table in entry.files else None
