"""A curation as the tests run it, and what it published."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from curate.curate import curate
from curate.curation import Curation
from curate.engine import LocalExecutor
from curate.step import Progress, Silent
from schemas.manifest import Snapshot, read_snapshot
from schemas.recipe_file import load_recipe


def run(
    root: Path, recipe_path: Path, workers: int = 1, changes: tuple[str, ...] = (), progress: Progress | None = None, **options: Any
) -> Snapshot:
    """Curate without Prefect."""
    return curate(Curation(root, load_recipe(recipe_path, list(changes)), LocalExecutor(workers), progress or Silent(), **options))


def rows(root: Path, table: str) -> list[dict[str, Any]]:
    """A table's rows in the current snapshot."""
    snapshot = read_snapshot(root)
    return [row for file in snapshot.files(table) for row in pq.read_table(root / file.path, partitioning=None).to_pylist()]


def published(root: Path) -> dict[str, bytes]:
    """Every file but locks, by its path in the lake."""
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file() and path.name != ".lock"}
