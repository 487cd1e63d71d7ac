"""How long the training stands still for a checkpoint: saved at once, and saved beside the training, in turn in one process.

    python bench/checkpoint.py [--rounds 5] [--width 512] [--layers 8]

Between two saves the model trains steps, as it would, until the pending save is durable; the stall is what the call of save holds up, the
wait for an earlier one included. The first save beside the training also makes its buffers and is left out. Accuracy: both kinds of
checkpoint are loaded and compared bit for bit.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch

from schemas.settings import ModelSettings
from train.checkpoint import checkpoint_path, load
from train.model import Decoder
from train.parallel import Ranks
from train.saving import Saver


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    options = parser.parse_args()
    model = Decoder(ModelSettings(layers=options.layers, width=options.width, heads=8), 8192, 128, seed=1)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    tokens = torch.randint(0, 8192, (2, 128))
    rest = (tokens.roll(-1, 1), torch.zeros_like(tokens), torch.arange(128).expand(tokens.shape))

    def step() -> None:
        model(tokens, *rest).mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    step()
    with tempfile.TemporaryDirectory() as folder:
        root, ranks = Path(folder), Ranks(0, 1, torch.device("cpu"))
        savers = {
            name: Saver(root, name, ranks, sharded=False, asynchronous=name == "async", last=1, every=0) for name in ("sync", "async")
        }
        stalls: dict[str, list[float]] = {name: [] for name in savers}
        for round_ in range(options.rounds + 1):
            for name, saver in savers.items():
                path = checkpoint_path(name, 0, round_)
                began = time.perf_counter()
                saver.save(path, lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()}, {}, {path})
                if round_:
                    stalls[name].append(time.perf_counter() - began)
                saver.wait()
            pair = [load(root, checkpoint_path(name, 0, round_)) for name in savers]
            same = all(map(torch.equal, *(list(one.tensors("model").values()) for one in pair)))
            if not same:
                sys.exit("the two kinds of checkpoint differ")
            step()
        size = sum(file.stat().st_size for file in (root / pair[0].path).iterdir())
    sync, stall = (statistics.median(stalls[name]) for name in savers)
    print(f"{model.parameter_count() / 1e6:.1f} M parameters, {size / 1e6:.0f} MB a checkpoint, medians of {options.rounds}")
    print(f"saved at once {sync * 1e3:.1f} ms; beside the training {stall * 1e3:.1f} ms: {stall / sync:.1%} (asked: under 10 %)")
    sys.exit(stall >= 0.1 * sync)


if __name__ == "__main__":
    main()
