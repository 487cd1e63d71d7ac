"""Tensor parallelism (Shoeybi et al. 2019): every matrix, the vocabulary and by choice the positions of rows split over a group of ranks.

Column-wise q, k, v and the feed-forward's first matrices, row-wise its last and attention's output: one sum over the group after each half
of a block, and one of its input's gradient. The embedding is split by rows of the vocabulary, and so is the output layer, whose loss
never has logits of another rank. With ``sequence`` (Korthikanti et al. 2022) each sum is scattered over positions, and gathered before the
next matrices, so that norms and the residual stream are split as well.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel, parallelize_module

from train.blocks import BiasGELU, Block, LayerNorm, RMSNorm
from train.model import Decoder
from train.tensor_split import TensorSplit


def split_model(model: Decoder, mesh: DeviceMesh, *, sequence: bool) -> None:
    """Split a model, whose weights are the same on every rank, over the ranks of a mesh of one dimension."""
    model.split = TensorSplit(mesh, sequence, model.vocabulary)
    stream = Shard(1) if sequence else Replicate()
    for block in model.own_blocks:
        _split_block(block, mesh, stream)
    if model.embedding is not None:
        parallelize_module(model.embedding, mesh, RowwiseParallel(input_layouts=Replicate(), output_layouts=stream))
    if model.head is not None:
        _distribute(model.head, mesh, Shard(0))
    if model.norm is not None:
        _distribute(model.norm, mesh, Replicate())
    for module in model.modules():
        if isinstance(module, RMSNorm | LayerNorm):
            module.in_part = sequence
    if model.position_embedding is not None:
        _distribute(model.position_embedding, mesh, Replicate())


def _split_block(block: Block, mesh: DeviceMesh, stream: Shard | Replicate) -> None:
    column = ColwiseParallel()
    row = RowwiseParallel(output_layouts=stream)
    names = ("up",) if isinstance(block.feed_forward, BiasGELU) else ("gate", "up")
    # The input is gathered once for all matrices that take it, and its gradients are summed once.
    gathered: dict[str, Any] = {
        "attention": PrepareModuleInput(input_layouts=(stream, None), desired_input_layouts=(Replicate(), None)),
        "feed_forward": PrepareModuleInput(input_layouts=(stream,), desired_input_layouts=(Replicate(),)),
    }
    matrices = {f"attention.{name}": column for name in "qkv"} | {f"feed_forward.{name}": column for name in names}
    parallelize_module(block, mesh, gathered | matrices | {"attention.out": row, "feed_forward.down": row})
    for norm in (block.attention_norm, block.feed_forward_norm):
        _distribute(norm, mesh, Replicate())
    if isinstance(block.feed_forward, BiasGELU):
        _distribute(block.feed_forward, mesh, Shard(0))


def _distribute(module: nn.Module, mesh: DeviceMesh, placement: Shard | Replicate) -> None:
    """Place a module's own parameters; every rank has them whole, so nothing is sent."""
    for name, parameter in list(module.named_parameters(recurse=False)):
        placed = distribute_tensor(parameter.data, mesh, [placement], src_data_rank=None)
        module.register_parameter(name, nn.Parameter(placed, requires_grad=parameter.requires_grad))
