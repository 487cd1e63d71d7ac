"""Loaders of other libraries over the rows of ``bench/loader.py``, each as a function that gives its next batch as torch int64.

They need litdata, datasets and mosaicml-streaming (which imports torchvision, and uses none of it here). Each gets tokens alone:
boundaries, documents and sources, which ours gives too, are left out.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

Next = Callable[[], torch.Tensor]


def again(start: Callable[[], Iterator[torch.Tensor]]) -> Next:
    """Batches of one epoch after another."""
    batches = start()

    def following() -> torch.Tensor:
        nonlocal batches
        batch = next(batches, None)
        if batch is None:
            batches = start()
            batch = next(batches)
        return batch

    return following


def litdata_rows(root: Path, tokens: np.ndarray, batch: int) -> dict[str, Next]:
    """litdata's TokensLoader over memory-mapped chunks, shuffled."""
    from litdata import StreamingDataset
    from litdata.streaming import Cache, TokensLoader

    length = tokens.shape[1]
    folder = root / "litdata"
    folder.mkdir()
    cache = Cache(str(folder), chunk_size=length * 8192, item_loader=TokensLoader(block_size=length))
    for index, row in enumerate(tokens):
        cache._add_item(index, torch.from_numpy(row))
    cache.done()
    cache.merge(1)

    def start() -> Iterator[torch.Tensor]:
        rows = iter(StreamingDataset(str(folder), item_loader=TokensLoader(block_size=length), shuffle=True, seed=1))
        for _ in range(len(tokens) // batch):
            yield torch.stack([next(rows) for _ in range(batch)]).to(torch.int64)

    return {"litdata": again(start)}


def arrow_rows(root: Path, batch: int) -> dict[str, Next]:
    """``datasets`` over our own shards, in torch's format: in order, and shuffled by its index."""
    import datasets

    datasets.disable_progress_bars()
    files = sorted(map(str, root.glob("lots/*/*.arrow")))
    whole = datasets.load_dataset("arrow", data_files=files, split="train", cache_dir=str(root / "datasets")).select_columns(["tokens"])
    found = {}
    for name, rows in (("datasets, in order", whole), ("datasets, shuffled", whole.shuffle(seed=1))):
        shown = rows.with_format("torch")

        def start(shown: datasets.Dataset = shown) -> Iterator[torch.Tensor]:
            for first in range(0, len(shown) // batch * batch, batch):
                yield shown[first : first + batch]["tokens"].to(torch.int64)

        found[name] = again(start)
    return found


def streaming_rows(root: Path, tokens: np.ndarray, batch: int) -> dict[str, Next]:
    """MosaicML streaming over MDS shards, shuffled."""
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    from streaming import MDSWriter, StreamingDataset

    logging.getLogger("streaming").setLevel(logging.ERROR)
    folder = root / "mds"
    with MDSWriter(out=str(folder), columns={"tokens": f"ndarray:uint16:{tokens.shape[1]}"}) as writer:
        for row in tokens:
            writer.write({"tokens": row})
    rows = StreamingDataset(local=str(folder), shuffle=True, batch_size=batch)

    def start() -> Iterator[torch.Tensor]:
        samples = iter(rows)
        for _ in range(len(tokens) // batch):
            yield torch.from_numpy(np.stack([next(samples)["tokens"] for _ in range(batch)]).astype(np.int64))

    return {"MosaicML streaming": again(start)}
