"""The layouts that are compared with one process: what each of several gloo processes trains, one stage after another."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from pathlib import Path

import torch

from schemas.manifest import fingerprint
from schemas.model import ModelSettings
from schemas.parallel import ParallelSettings
from tests.train.run_tables import After, Never
from tests.train.test_choices import write
from tests.train.tiny_lake import MODEL, TRAINING, build
from train.interrupt import Interrupted
from train.loop import Trainer
from train.parallel import Ranks
from train.stage import Stage

FOLDER = "runs/r/0-first"
BASE = dataclasses.replace(TRAINING, batch_rows=5, micro_batch_rows=2, eval_rows=3, clip=0.5, checkpoint_every=0)
GPT2 = dataclasses.replace(MODEL, kind="gpt2", kv_heads=0, tied=False)
DEEP = dataclasses.replace(MODEL, layers=5, kv_heads=4)
DROPOUT = dataclasses.replace(MODEL, dropout=0.2)


@dataclasses.dataclass(frozen=True)
class Case:
    """A layout, and what is trained in it; ``words`` 67 does not divide by 2. One process recomputes nothing."""

    parallel: ParallelSettings | str
    model: ModelSettings = MODEL
    optimizer: str = "adamw"
    words: int = 64
    recompute: str = "none"

    @property
    def whole(self) -> str:
        """Folder of the lake in which one process trains the same."""
        return f"one {self.optimizer} {hash_of(self.model)} {self.words}"


def hash_of(model: ModelSettings) -> str:
    """A name for a model."""
    return fingerprint(dataclasses.asdict(model))[:8]


CASES = {
    2: {
        "shard": Case("shard"),
        "tensor": Case(ParallelSettings(tensor=2), model=DROPOUT, optimizer="came", words=67, recompute="halves"),
        "tensor, sophia": Case(ParallelSettings(tensor=2), optimizer="sophia"),
        "tensor, lion": Case(ParallelSettings(tensor=2), optimizer="lion"),
        "sequence": Case(ParallelSettings(tensor=2, sequence=True), model=GPT2, optimizer="adafactor", words=67),
        "pipeline": Case(ParallelSettings(pipeline=2)),
        "pipeline, lion": Case(ParallelSettings(pipeline=2), optimizer="lion", recompute="halves"),
        "pipeline, muon": Case(ParallelSettings(pipeline=2), optimizer="muon"),
        "pipeline, gpipe": Case(ParallelSettings(pipeline=2, schedule="gpipe"), model=GPT2, optimizer="adafactor", words=67),
    },
    4: {
        "replicate by tensor": Case(ParallelSettings(tensor=2)),
        "shard by tensor": Case(ParallelSettings(data="shard", tensor=2), optimizer="came", words=67),
        "shard by sequence": Case(ParallelSettings(data="shard", tensor=2, sequence=True), model=GPT2, optimizer="adafactor", words=67),
        "tensor of 4": Case(ParallelSettings(tensor=4, sequence=True), model=DEEP),
        "pipeline of 4": Case(ParallelSettings(pipeline=4), model=DEEP),
        "pipeline by tensor": Case(ParallelSettings(pipeline=2, tensor=2), optimizer="came", words=67),
        "pipeline by shard": Case(ParallelSettings(pipeline=2, data="shard")),
    },
}
RESUMED = {
    2: {"tensor": ParallelSettings(tensor=2), "pipeline": ParallelSettings(pipeline=2)},
    4: {"shard by tensor": ParallelSettings(data="shard", tensor=2), "pipeline by tensor": ParallelSettings(pipeline=2, tensor=2)},
}
"""Layouts that take over a stage from each other after two steps; ``one`` is one process."""


def prepare(root: Path, case: Case, *, whole: bool) -> Path:
    """Write a case's lake; ``whole`` is the one that one process trains."""
    optimizer = dataclasses.replace(BASE.optimizer, name=case.optimizer, lr=1e-3)
    changed = {} if whole else {"parallel": case.parallel, "recompute": case.recompute}
    training = dataclasses.replace(BASE, optimizer=optimizer, **changed)
    folder, _, _ = build(root, rows=26, training=training, model=case.model)
    stage = json.loads((folder / "stage.json").read_text())
    stage |= {"vocabulary": case.words, "choices": [dataclasses.asdict(write(root))]}
    (folder / "stage.json").write_text(json.dumps(stage))
    return folder


def train(root: Path, ranks: Ranks, steps: int | None = None) -> None:
    """Train a stage to its end, or as one that is asked to stop after some steps."""
    with contextlib.suppress(Interrupted):
        Trainer(Stage.open(root, FOLDER), ranks, Never() if steps is None else After(steps)).run()


def work(rank: int, world: int, root: str) -> None:
    """What one rank does: every case from its beginning, then its own halves of the stages that change hands."""
    for name in CASES[world]:
        train(Path(root) / name, Ranks(rank, world, torch.device("cpu")))
    for name in RESUMED[world]:
        train(Path(root) / f"{name} to one", Ranks(rank, world, torch.device("cpu")), steps=2)
        train(Path(root) / f"one to {name}", Ranks(rank, world, torch.device("cpu")))
