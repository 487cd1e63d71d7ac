"""A step whose output changes must raise its version, or lakes would mix old and new shards.

``golden.json`` holds, for each step, its version and a digest of what its tables say (values, not file bytes, which also depend on the
versions of Arrow). After a wanted change: raise the step's version, then record anew with ``python -m tests.curate.test_golden``.
"""

import hashlib
import json
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from curate.curate import curate
from curate.curation import Curation
from curate.engine import LocalExecutor
from curate.lots import build_lots
from curate.step import Silent
from schemas.recipe import Recipe
from tests.curate.made_text import corpus, write_jsonl

GOLDEN = Path(__file__).with_name("golden.json")


class Recording(LocalExecutor):
    """Remembers the version of every step that it runs."""

    def __init__(self):
        super().__init__(1)
        self.versions = {}

    def run(self, function, tasks, processes):
        self.versions |= {step.name: step.version for _, step, *_ in tasks}
        return super().run(function, tasks, processes)


def table_rows(path):
    if path.suffix == ".parquet":
        return pq.read_table(path, partitioning=None).to_pylist()
    with pa.memory_map(str(path)) as source:
        return pa.ipc.open_file(source).read_all().to_pylist()


def found():
    executor = Recording()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_jsonl(root / "made/a.jsonl", [*corpus(11, 150), "", "短い文です。", "Short.", "cafÃ© a@example.org\r\n"])
        recipe = Recipe.model_validate(
            {
                "name": "golden",
                "sources": {"made": {"reader": "jsonl", "paths": [str(root / "made")], "max_epochs": 2, "difficulty": "n_words"}},
                "edits": [{"edit": name} for name in ("repair", "mask", "lines", "substrings")]
                + [{"edit": "c4", "off": ["no_terminal_punct"]}],
                "rules": [{"set": name} for name in ("gopher_quality", "gopher_repetition", "fineweb", "code")],
                "holdout": {"share": 0.05},
                "tokenizer": {"vocabulary": 400},
                "pack": {"row_length": 64, "bins": 2},
            }
        )
        snapshot = curate(Curation(root / "lake", recipe, executor, Silent()))
        snapshot = build_lots(root / "lake", recipe, snapshot, executor, Silent())
        result = {}
        for step, entries in snapshot.steps.items():
            rows = [
                [table, table_rows(root / "lake" / f.path)]
                for e in entries
                for table, f in sorted(e.files.items())
                if f.path.endswith(("parquet", "arrow"))
            ]
            digest = hashlib.blake2b(repr(rows).encode(), digest_size=8).hexdigest()
            result[step] = {"version": executor.versions.get(step), "digest": digest}
    return result


def test_no_step_changes_its_output_without_a_new_version():
    recorded, now = json.loads(GOLDEN.read_text()), found()
    changed = {step for step in now if now[step] != recorded.get(step)}
    unversioned = {step for step in changed if step in recorded and now[step]["version"] == recorded[step]["version"]}
    assert not unversioned, f"raise the version of {sorted(unversioned)}: what they publish has changed"
    assert not changed, f"{sorted(changed)} have new versions: record them with python -m tests.curate.test_golden"


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(found(), indent=1) + "\n")
