"""Training from a lake in an object store: shards come whole, ahead of their use, into a bounded cache; losses are those of a folder."""

from __future__ import annotations

import stat
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from schemas.store import open_lake
from schemas.working_copy import copy_of
from tests.object_store import proxy
from tests.train.run_tables import losses, trainer
from tests.train.test_written import batches
from tests.train.tiny_lake import build
from train.callbacks import Callback, StepReport
from train.loop import Trainer
from train.stage import Stage
from train.written import laid_out, write_rows

Machine = Callable[..., Path]


def held(root: Path) -> int:
    """Bytes of row shards that are in a working copy; what is still on its way has a name that may go at any time."""
    files = [path.stat() for path in root.rglob("*.arrow") if not path.name.startswith(".tmp-")]
    return sum(file.st_size for file in files if stat.S_IMODE(file.st_mode) != 0)


class StopAfter(Callback):
    """A callback that fails after some steps."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_step(self, run: Trainer, report: StepReport) -> None:
        """Fail at the last step."""
        self.steps -= 1
        if not self.steps:
            raise RuntimeError("the machine is gone")


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plan in blocks as small as these lakes want."""
    monkeypatch.setattr("train.read_ahead.BLOCK", 8)
    monkeypatch.setattr("train.read_ahead.AHEAD", 16)


@pytest.mark.parametrize("laid", [False, True])
def test_rows_come_by_whole_shards_within_the_bound_and_each_shard_once(
    small_blocks: None, machine: Machine, address: str, store: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, laid: bool
) -> None:
    folder = build(tmp_path / "plain", rows=192)[0].relative_to(tmp_path / "plain").as_posix()
    plain = batches(Stage.open(tmp_path / "plain", folder))
    machine("writer")
    build(open_lake(address), rows=192)
    if laid:
        stage = Stage.open(open_lake(address), folder)
        assert (laid_out(stage), write_rows(stage, rows_per_shard=8)) == (0, 192)
        assert laid_out(Stage.open(open_lake(address), folder)) == 192
    counting = proxy(store)
    machine("trainer", counting.port)
    root = open_lake(address)
    stage = Stage.open(root, folder)
    size = max(shard.bytes for lot in stage.settings.lots for shard in lot.shards)
    bound = 9 * size
    monkeypatch.setenv("GRISTMILL_CACHE_BYTES", str(bound))
    copy = copy_of(root)
    assert copy is not None and held(root) == 0
    most, found = 0, []
    for step in range(stage.first_step, stage.end_step):
        found += [
            (micro.batch.tokens.tobytes(), micro.batch.pieces.tobytes(), micro.batch.ends.tobytes(), micro.batch.doc_ids.tobytes())
            for micro in stage.micro_batches(step, 0, 1)
        ]
        most = max(most, held(root))
    stage.close()
    assert found == plain
    asked = Counter(counting.asked("GET", "/written/" if laid else "/lots/"))
    shards = 192 // 8 if laid else sum(len(lot.shards) for lot in stage.settings.lots)
    epochs = 1 if laid else 192 / sum(lot.rows for lot in stage.settings.lots) + 2
    assert len(asked) == shards
    assert max(asked.values()) <= epochs and sum(asked.values()) <= shards * epochs, "192 rows, and a request for a shard and epoch"
    assert most <= bound + 2 * size, f"{most} of {bound}"
    copy.shrink()
    assert held(root) <= bound


def test_the_next_shards_are_on_their_way_before_they_are_needed(small_blocks: None, machine: Machine, address: str, store: int) -> None:
    machine("writer")
    folder = build(open_lake(address), rows=64)[0].relative_to(open_lake(address)).as_posix()
    counting = proxy(store)
    machine("trainer", counting.port)
    stage = Stage.open(open_lake(address), folder)
    stage.micro_batches(stage.first_step, 0, 1)
    now = {shard.path for shard in stage._shards(0, 8)}
    ahead = {shard.path for shard in stage._shards(8, 16)} - now
    assert ahead and stage._ahead is not None
    stage._ahead._pool.shutdown()
    assert {path.partition("/lots/")[2] for path in counting.asked("GET", "/lots/")} >= {path.partition("lots/")[2] for path in now | ahead}


def test_a_stage_trains_and_resumes_on_another_machine_over_breaking_connections_with_the_losses_of_a_folder(
    machine: Machine, address: str, store: int, tmp_path: Path
) -> None:
    folder = build(tmp_path / "plain", rows=48)[0]
    trainer(tmp_path / "plain", folder).run()
    machine("a", proxy(store, after=100_000, times=3).port)
    root = open_lake(address)
    folder = build(root, rows=48)[0]
    broken = trainer(root, folder)
    broken.callbacks.append(StopAfter(7))
    with pytest.raises(RuntimeError, match="the machine is gone"):
        broken.run()
    breaking = proxy(store, after=30_000, times=3)
    machine("b", breaking.port)
    other = open_lake(address)
    assert other != root
    trainer(other, other / folder.relative_to(root)).run()
    assert losses(other) == losses(tmp_path / "plain") and breaking.broken == 3
    machine("c")
    assert losses(open_lake(address)) == losses(other), "the store has it all"
