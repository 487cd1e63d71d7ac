"""The state of one curation: its lake, its recipe, who runs shards, and the entries of finished steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from curate.engine import Executor
from curate.step import Progress, Shard, Step, run_step
from schemas.manifest import Entry
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
    """

    root: Path
    recipe: Recipe
    executor: Executor
    progress: Progress
    sample: float = 1.0
    batch_rows: int = 4096
    memory_bytes: int = 4 << 30
    steps: dict[str, list[Entry]] = field(default_factory=dict)

    def run(self, step: Step, shards: Sequence[Shard]) -> list[Entry]:
        """Run what the manifest lacks of a step."""
        return run_step(self.root, step, shards, self.executor, self.progress)

    def keep(self, step: Step, shards: Sequence[Shard]) -> list[Entry]:
        """Run a step whose tables belong to the snapshot."""
        self.steps[step.name] = self.run(step, shards)
        return self.steps[step.name]

    @property
    def documents(self) -> list[Entry]:
        """Entries of the documents shards, in locator order."""
        return self.steps["read"]

    def paths(self, step: str, table: str) -> list[str | None]:
        """Path of a table's file of each shard of a finished step."""
        return [self.path(step, table, shard) for shard in range(len(self.steps[step]))]

    def path(self, step: str, table: str, shard: int = 0) -> str | None:
        """Path of a table's file of a shard of a finished step, None when it has no rows."""
        files = self.steps[step][shard].files
        return files[table].path if table in files else None


def source_of(entry: Entry) -> str:
    """Source of a shard, from its label."""
    return entry.label.partition("/")[0]
