"""The layouts that are compared with one process: what each of several gloo processes trains, one stage after another."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from pathlib import Path

import torch

from schemas.parallel import ParallelSettings
from tests.train.run_tables import After, Never
from tests.train.tiny_lake import MODEL, TRAINING, build
from train.interrupt import Interrupted
from train.loop import Trainer
from train.parallel import Ranks
from train.stage import Stage

FOLDER = "runs/r/0-first"
BASE = dataclasses.replace(TRAINING, batch_rows=5, micro_batch_rows=2, eval_rows=3, clip=0.5, checkpoint_every=0)
GPT2 = dataclasses.replace(MODEL, kind="gpt2", kv_heads=0, tied=False)
EVEN = dataclasses.replace(MODEL, kv_heads=4)
DROPOUT = dataclasses.replace(MODEL, dropout=0.2)


@dataclasses.dataclass(frozen=True)
class Case:
    """A layout, and what is trained in it; ``words`` 67 does not divide by 2."""

    parallel: ParallelSettings
    model: object = MODEL
    optimizer: str = "adamw"
    words: int = 64
    precision: str = "fp32"


CASES = {
    2: {
        "tensor": Case(ParallelSettings(tensor=2), words=67),
        "tensor, dropout": Case(ParallelSettings(tensor=2), model=DROPOUT),
        "tensor, gpt2": Case(ParallelSettings(tensor=2), model=GPT2, optimizer="adafactor"),
        "tensor, came": Case(ParallelSettings(tensor=2), optimizer="came"),
        "tensor, sophia": Case(ParallelSettings(tensor=2), optimizer="sophia"),
        "sequence": Case(ParallelSettings(tensor=2, sequence=True), model=GPT2, words=67),
    },
    4: {
        "replicate by tensor": Case(ParallelSettings(tensor=2)),
        "shard by tensor": Case(ParallelSettings(data="shard", tensor=2), words=67, optimizer="came"),
        "shard by sequence": Case(ParallelSettings(data="shard", tensor=2, sequence=True), model=GPT2),
        "tensor of 4": Case(ParallelSettings(tensor=4, sequence=True), model=EVEN, words=67),
    },
}
RESUMED = {2: {"tensor": ParallelSettings(tensor=2)}, 4: {"shard by tensor": ParallelSettings(data="shard", tensor=2)}}
"""Layouts that take over a stage from each other after two steps; ``one`` is one process."""


def prepare(root: Path, case: Case, *, whole: bool) -> Path:
    """Write a case's lake; ``whole`` is the one that one process trains."""
    optimizer = dataclasses.replace(BASE.optimizer, name=case.optimizer, lr=1e-3)
    training = dataclasses.replace(BASE, optimizer=optimizer, precision=case.precision, parallel="replicate" if whole else case.parallel)
    folder, _, _ = build(root, rows=26, training=training, model=case.model)
    stage = json.loads((folder / "stage.json").read_text())
    (folder / "stage.json").write_text(json.dumps({**stage, "vocabulary": case.words}))
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
