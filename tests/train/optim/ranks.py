"""What each of several gloo processes does in the sharding tests; ``run_ranks`` runs them and returns what rank 0 found."""

import copy
import json
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from tests.train import processes
from tests.train.optim.cases import STEPS, gradients, travelled_error
from train.optim import build_optimizer
from train.optim.adafactor import Adafactor
from train.optim.adamw import SGD, AdamW
from train.optim.came import CAME
from train.optim.lion import Lion
from train.optim.sophia import Sophia

WHOLE_ONLY = ("adamw8bit", "kfac", "lbfgs", "muon", "schedule_free", "soap")
COUNTED = 10  # the step whose collectives are counted; any after the first

BUILDS = {
    "adafactor": lambda p: Adafactor(p, weight_decay=0.1),
    "adafactor_momentum": lambda p: Adafactor(p, beta1=0.9),
    "came": lambda p: CAME(p, lr=1e-3, warmup_steps=1, weight_decay=0.1),
    "sophia": lambda p: Sophia(p, lr=1e-3),
    "lion": lambda p: Lion(p, lr=1e-3),
    "adamw": lambda p: AdamW(p, lr=1e-3, fused=True),
    "sgd": lambda p: SGD(p, lr=1e-2, momentum=0.9, foreach=True),
}


def run_ranks(folder: Path) -> dict[int, dict]:
    """Run all comparisons on four processes, of which 1, 2 and 4 are the ranks of a mesh; returns what was found, by ranks."""
    processes.run_ranks(_compare_all, 4, folder, str(folder))
    return {world: json.loads((folder / f"{world}.json").read_text()) for world in (1, 2, 4)}


def _compare_all(rank: int, world: int, folder: str) -> None:
    meshes = {size: DeviceMesh("cpu", list(range(size))) for size in (1, 2, world)}
    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    for size, mesh in meshes.items():
        if rank < size:
            found = _compare_on(mesh, grid if size == 4 else None)
            if rank == 0:
                Path(folder, f"{size}.json").write_text(json.dumps(found))
        dist.barrier()


def _compare_on(mesh: DeviceMesh, grid: DeviceMesh | None) -> dict:
    found = {"errors": {}, "collectives": {}, "reports": {}}
    for name, build in BUILDS.items():
        _compare(name, build, _one_mesh(mesh), found)
    if grid is None:
        found["fsdp"] = _model(mesh)
    else:
        for name in ("adafactor", "came", "adamw"):
            _compare(f"{name}/grid", BUILDS[name], _two_meshes(grid), found)
        found["parallel"] = _model(grid)
    return found | {"noise": _replicas_round_alike(mesh), "refused": _refusals(mesh)}


def _one_mesh(mesh: DeviceMesh) -> list[tuple]:
    shapes = [((16, 12), 0), ((16, 12), 1), ((7, 5), 0), ((3, 9), 0), ((9, 3), 1), ((4, 6, 8), 0), ((4, 6, 8), 1), ((4, 6, 8), 2)]
    shapes += [((13,), 0), ((1, 11), 0), ((11, 1), 0)]
    return [(shape, mesh, (Shard(dim),)) for shape, dim in shapes] + [((6, 6), mesh, (Replicate(),)), ((6, 6), None, None)]


def _two_meshes(grid: DeviceMesh) -> list[tuple]:
    return [
        ((10, 12), grid, (Shard(0), Shard(1))),
        ((10, 12), grid, (Shard(1), Shard(0))),
        ((10, 12), grid, (Replicate(), Shard(0))),
        ((12, 10), grid, (Shard(0), Replicate())),
        ((12, 6), grid, (Shard(0), Shard(0))),
        ((12, 6), grid["dp"], (Shard(0),)),
        ((9,), grid["dp"], (Shard(0),)),
        ((12, 6), grid["tp"], (Shard(1),)),
    ]


def _compare(name: str, build, cases: list[tuple], found: dict) -> None:
    """Take twenty steps with sharded and with whole parameters; record the worst error of all and the collectives of one step."""
    wholes, shards = [], []
    for i, (shape, mesh, placements) in enumerate(cases):
        start = torch.randn(shape, generator=torch.Generator().manual_seed(i)) * 0.02
        wholes.append(nn.Parameter(start.clone()))
        shards.append(nn.Parameter(start if mesh is None else distribute_tensor(start, mesh, placements, src_data_rank=None)))
    starts = [p.detach().clone() for p in wholes]
    optimizers = build(wholes), build(shards)
    grads = [gradients(p, seed=i) for i, p in enumerate(wholes)]
    for step in range(STEPS):
        for whole, shard, sequence, (_, mesh, placements) in zip(wholes, shards, grads, cases, strict=True):
            whole.grad = sequence[step].clone()
            shard.grad = whole.grad if mesh is None else distribute_tensor(whole.grad, mesh, placements, src_data_rank=None)
        with CommDebugMode() if step == COUNTED else nullcontext() as counted:
            for optimizer in optimizers:
                if isinstance(optimizer, Sophia) and optimizer.curvature_due():
                    optimizer.update_curvature(tokens=256)
                optimizer.step()
        if step == COUNTED:
            found["collectives"][name] = counted.get_total_counts()
    found["reports"][name] = [{k: v for k, v in o.report().items() if not k.startswith("state")} for o in optimizers]
    finals = [s.detach() if mesh is None else s.detach().full_tensor() for s, (_, mesh, _) in zip(shards, cases, strict=True)]
    found["errors"][name] = max(
        travelled_error(final, whole.detach(), start) for final, whole, start in zip(finals, wholes, starts, strict=True)
    )


def _network(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(12, 16), nn.GELU(), nn.Linear(16, 12), nn.LayerNorm(12))


def _model(mesh: DeviceMesh) -> dict[str, float]:
    """Train a model under FSDP2 (over tensor parallel on a grid) and whole; then load its state into another and go on."""
    found = {}
    for name, build in BUILDS.items():
        whole, pair = _network(0), []
        for seed in (0, 1):
            model = _network(seed)
            if mesh.ndim == 2:
                model = parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
            pair.append(fully_shard(model, mesh=mesh["dp"] if mesh.ndim == 2 else mesh))
        sharded, resumed = pair
        start = {n: p.detach().clone() for n, p in whole.named_parameters()}
        first, second, third = build(whole.named_parameters()), build(sharded.named_parameters()), build(resumed.named_parameters())
        batches = [torch.randn(8, 12, generator=torch.Generator().manual_seed(i)) for i in range(STEPS)]
        for i, batch in enumerate(batches):
            if i == 3:  # a copy: torch shares a loaded state's tensors
                resumed.load_state_dict(sharded.state_dict())
                set_optimizer_state_dict(resumed, third, copy.deepcopy(get_optimizer_state_dict(sharded, second)))
            for model, optimizer in ((whole, first), (sharded, second), *(((resumed, third),) if i >= 3 else ())):
                optimizer.zero_grad()
                (model(batch) - batch.roll(1)).square().mean().backward()
                if isinstance(optimizer, Sophia) and optimizer.curvature_due():
                    optimizer.update_curvature(tokens=8)
                optimizer.step()
        finals = [{n: p.detach().full_tensor() for n, p in model.named_parameters()} for model in (sharded, resumed)]
        total = sum(float((whole.get_parameter(n).detach() - s).square().sum()) for n, s in start.items()) ** 0.5
        apart = sum(float((whole.get_parameter(n).detach() - finals[0][n]).square().sum()) for n in start) ** 0.5
        found[name] = apart / total
        found[f"{name}/resumed"] = float(not all(torch.equal(finals[0][n], finals[1][n]) for n in start))
    return found


def _refusals(mesh: DeviceMesh) -> dict[str, str]:
    """What the optimizers that work on whole parameters say of a sharded one."""
    said = {}
    sharded = nn.Parameter(distribute_tensor(torch.zeros(8, 8), mesh, (Shard(0),), src_data_rank=None))
    for name in WHOLE_ONLY:
        try:
            build_optimizer(name, [("hidden.weight", sharded)], lr=1e-3)
        except ValueError as error:
            said[name] = str(error)
    return said


def _replicas_round_alike(mesh: DeviceMesh) -> bool:
    start = torch.ones(64, 8, dtype=torch.bfloat16)
    p = nn.Parameter(distribute_tensor(start, mesh, (Replicate(),), src_data_rank=None))
    optimizer = Sophia([p], lr=1e-3, weight_decay=0.0)
    for _ in range(3):
        p.grad = distribute_tensor(torch.ones_like(start), mesh, (Replicate(),), src_data_rank=None)
        optimizer.step()
    mine = p.detach().to_local().float()
    gathered = [torch.empty_like(mine) for _ in range(mesh.size())]
    dist.all_gather(gathered, mine, group=mesh.get_group())
    return all(torch.equal(other, mine) for other in gathered) and not torch.equal(mine, torch.ones_like(mine))
