"""``gristmill score``: the loss of a run's model on every document, as a file that a recipe takes as a signal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console

from curate.lots import read_lots
from pipelines.generate import last_checkpoint
from schemas.errors import GristmillError
from schemas.manifest import read_snapshot
from schemas.tables import DOCUMENT_LOSSES

Json = Any


def score_documents(root: Path, run: str, output: Path, tell: Callable[[int, int], None]) -> dict[str, Json]:
    """Score every document of the lake that is packed and not held out, and write the file.

    Args:
        root: the lake.
        run: a run in it with a stage that has ended.
        output: Parquet file to write (table ``document_losses``).
        tell: called with rows done and rows in all.

    Raises:
        GristmillError: the run has no such stage, the file cannot be written, or the lake's rows were made by another tokenizer.
    """
    found = last_checkpoint(root, run)
    if not output.parent.is_dir():
        raise GristmillError("there is no such folder", where=str(output.parent), fix="make it, or name another file with -o")
    if found is None:
        raise GristmillError(f"run {run!r} has no finished stage", where=str(root / "runs"), fix="train one: gristmill run RECIPE")
    import torch

    from train.checkpoint import load
    from train.model import Decoder
    from train.score import score

    stage, path = found
    snapshot = read_snapshot(root)
    vocabulary = snapshot.steps["tokenizer"][0].counts["vocabulary"]
    table = read_lots(root, snapshot)
    lots = [table.lots[line["lot"]] for line in table.lines if line["split"] == "train"]
    if vocabulary != stage.vocabulary or max(lot.row_length for lot in lots) > stage.row_length:
        raise GristmillError(
            f"the lake's rows have {vocabulary} words, the model knows {stage.vocabulary} and rows of {stage.row_length} tokens",
            where=str(root),
            fix="score with a run of the same tokenizer and row length",
        )
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = Decoder(stage.model, stage.vocabulary, stage.row_length)
    model.load_state_dict(load(root, path).tensors("model"))
    training = stage.training
    scores = score(root, lots, model.to(device), height=training.micro_batch_rows, precision=training.precision, device=device, tell=tell)
    ids = pa.FixedSizeBinaryArray.from_buffers(
        DOCUMENT_LOSSES.field("doc_id").type, len(scores.tokens), [None, pa.py_buffer(scores.doc_ids.tobytes())]
    )
    loss = pa.array(scores.nats / scores.tokens.clip(1), mask=scores.tokens == 0)
    rows = pa.table([ids, pa.array(scores.tokens), loss], schema=DOCUMENT_LOSSES)
    try:
        pq.write_table(rows, output, compression="zstd")
    except OSError as error:
        raise GristmillError(f"cannot write: {error.strerror}", where=str(output), fix="name another file with -o") from error
    mean = float(scores.nats.sum() / max(1, scores.tokens.sum()))
    return {"file": str(output), "run": run, "checkpoint": path, "documents": rows.num_rows, "loss": mean}


def print_scores(found: dict[str, Json], console: Console) -> None:
    """Tell what was scored and how to use it."""
    console.print(f"{found['documents']:,} documents, {found['loss']:.3f} nats per token under {found['checkpoint']}", highlight=False)
    use = f"  signals:\n    surprise: {{losses: {found['file']}}}\n  sources:\n    NAME: {{difficulty: surprise}}"
    console.print(f"Use it in a recipe, for example:\n{use}", highlight=False, markup=False)
