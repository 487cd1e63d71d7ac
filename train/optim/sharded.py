"""The base of the own optimizers: sharded parameters, FP32 states, BF16 weights, and a report."""

from __future__ import annotations

import functools
import math
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from train.compiling import why_not
from train.kernels.dispatch import IMPLS, Impl, choose
from train.optim.reporting import state_bytes
from train.optim.shards import Place, Rule, local_of, place_of, process_groups, run
from train.optim.weights import ROUNDINGS, Part, arithmetic, noise_for, rounding_seed

State = dict[str, Any]


class ShardedOptimizer(torch.optim.Optimizer):
    """An optimizer whose rule sees one rank's part of a parameter and sums over all parts.

    Subclasses give ``_start`` (the state of a parameter), ``_rule`` (the update, see ``train.optim.shards``) and ``_figures``.
    Sharded (DTensor: FSDP2, tensor parallel) and whole parameters give the same update up to the rounding of the sums. States are
    FP32 (FP64 for FP64 parameters) whatever the parameter is, after ``load_state_dict`` too. ``_seen`` keeps, by parameter name, what
    ``report`` wants to know of the last step.

    Args:
        groups: parameter groups, parameters named or not.
        defaults: settings of each group, ``lr`` and ``weight_decay`` among them.
        rounding: how BF16 parameters are written: stochastic, master (an FP32 copy is the truth, 4 bytes) or nearest.
        seed: seed of stochastic rounding.
        impl: who updates whole parameters: eager, compile (torch.compile), native (C++, on a CPU), triton, or auto, which is Triton on
            CUDA and eager elsewhere. What a step over many tensors does not take (shards, vectors of factored rules, BF16 weights but by
            Triton, rules that have none) is always eager.
    """

    _placed: list[tuple[Place, dist.ProcessGroup | None]] | None
    _seen: dict[str, Any]

    def __init__(self, groups: Iterable[Any], defaults: dict[str, Any], *, rounding: str, seed: int, impl: str = "eager") -> None:
        if impl not in IMPLS:
            raise ValueError(f"impl must be one of {', '.join(IMPLS)}, got {impl!r}")
        if rounding not in ROUNDINGS:
            raise ValueError(f"rounding must be one of {', '.join(ROUNDINGS)}, got {rounding!r}")
        super().__init__(groups, {**defaults, "rounding": rounding, "seed": seed, "impl": impl})

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore groups and states, but for who computes, and forget what is derived from them."""
        super().__setstate__(state)
        for group in self.param_groups:
            group["impl"] = self.defaults["impl"]
        self._forget()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; parameters must be dense and floating, and FP16 ones need ``rounding="master"`` or ``"nearest"``."""
        super().add_param_group(param_group)
        self._forget()
        group = self.param_groups[-1]
        for parameter, name in zip(group["params"], self._names(len(self.param_groups) - 1), strict=True):
            if not parameter.is_floating_point():
                raise ValueError(f"{name} is {parameter.dtype}: only floating parameters can be optimized")
            if parameter.dtype == torch.float16 and group["rounding"] == "stochastic":
                raise ValueError(f"{name} is FP16, and stochastic rounding is for BF16: set rounding to 'master'")

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient; returns what ``closure`` does.

        Raises:
            ValueError: a sparse gradient.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        rules = []
        together: dict[tuple[Any, ...], list[tuple[Part, State]]] = {}
        for parameter, name, group, place, process_group in self._parameters():
            if parameter.grad is not None:
                state = self.state[parameter] or self._begin(parameter, group, place)
                state["step"] += 1
                part = self._part(parameter, name, group, place)
                impl = self._impl(part, group, state)
                if impl == "eager":
                    rules.append((self._rule(part, group, state), place, process_group))
                else:
                    dtypes = part.truth.dtype, part.grad.dtype, state["exp_avg"].dtype if "exp_avg" in state else None
                    together.setdefault((id(group), int(state["step"]), impl, dtypes), []).append((part, state))
        groups = {id(group): group for group in self.param_groups}
        for (number, step, impl, (dtype, *_)), entries in together.items():
            group, parts = groups[number], [part for part, _ in entries]
            random = dtype == torch.bfloat16 and group["rounding"] == "stochastic"
            seeds = [rounding_seed(group["seed"], part.name) for part in parts] if random else None
            self._together(parts, [state for _, state in entries], group, step, seeds, impl)
            for part in parts:
                if part.master is not None:
                    part.weights.copy_(part.master)
        run(rules)
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state as it was saved. torch would cast it to the parameters' dtype, which rounds FP32 states to BF16."""
        loaded: dict[str, Any] = {}
        hook = self.register_load_state_dict_pre_hook(lambda _, final: loaded.update(final))
        try:
            super().load_state_dict(state_dict)
        finally:
            hook.remove()
        keys = chain.from_iterable(group["params"] for group in loaded["param_groups"])
        parameters = chain.from_iterable(group["params"] for group in self.param_groups)
        for key, parameter in zip(keys, parameters, strict=True):
            for name, value in loaded["state"].get(key, {}).items():
                if isinstance(value, torch.Tensor):
                    device = "cpu" if name == "step" else parameter.device
                    self.state[parameter][name] = value.detach().to(device=device, copy=True)

    @torch.no_grad()
    def report(self) -> dict[str, float]:
        """Return figures of the last step; every rank must call it (one collective).

        Returns:
            ``update_rms``: RMS of the direction over all elements, before the learning rate. ``share_clipped``: share of elements whose
            update was clipped. ``state_bytes`` on this rank and ``state_bytes_per_parameter``.
        """
        sums: list[torch.Tensor] = []
        count = 0

        def measure(figures: list[torch.Tensor]) -> Rule:
            sums.append(torch.stack((yield figures)).double().cpu())

        rules = []
        for parameter, name, group, place, process_group in self._parameters():
            if self.state.get(parameter):
                count += parameter.numel()
                part = self._part(parameter, name, group, place)
                rules.append((measure(self._figures(part, group, self.state[parameter])), place, process_group))
        run(rules)
        squares, clipped = torch.stack(sums).sum(0).tolist() if sums else (0.0, 0.0)
        update_rms = math.sqrt(squares / max(1, count))
        return {"update_rms": update_rms, "share_clipped": clipped / max(1, count), **state_bytes(self)}

    @property
    def computed_by(self) -> str:
        """Who updates what a step over many tensors takes: eager, compile, triton, or native with its library's key. Bits depend on it."""
        group = self.param_groups[0]
        parameter = group["params"][0]
        if group["impl"] == "eager" or isinstance(parameter, DTensor):
            return "eager"
        impl = choose(group["impl"], parameter, native=True)
        if impl in ("compile", "native") and not _can_compile(parameter.device, impl):
            return "eager"
        if impl == "native":
            from train.kernels.native import library

            return f"native ({library.key()})"
        return impl

    @abstractmethod
    def _start(self, parameter: torch.Tensor, group: dict[str, Any], place: Place) -> State:
        """Return the state before the first step; tensors shaped like the parameter must be made by ``like``."""

    @abstractmethod
    def _rule(self, part: Part, group: dict[str, Any], state: State) -> Rule:
        """Update one part. ``state["step"]`` is already this step's number, from 1."""

    @abstractmethod
    def _figures(self, part: Part, group: dict[str, Any], state: State) -> list[torch.Tensor]:
        """Return this part's sum of squares of the last direction and its number of clipped elements."""

    def _takes(self, part: Part, impl: str) -> bool:
        """Return whether ``_together`` takes a whole part with these dimensions."""
        return False

    def _together(
        self, parts: list[Part], states: list[State], group: dict[str, Any], step: int, seeds: list[int] | None, impl: Impl
    ) -> None:
        """Update whole parts of one group and of equal dtypes by a step over many tensors (``train.kernels.steps``)."""
        raise NotImplementedError

    def _impl(self, part: Part, group: dict[str, Any], state: State) -> Impl:
        if group["impl"] == "eager" or part.place.mesh is not None or not part.weights.numel() or part.dtype == torch.float64:
            return "eager"
        impl = choose(group["impl"], part.weights, native=True)
        tensors = [part.truth, part.grad, *(value for name, value in state.items() if name != "step")]
        contiguous = all(tensor.is_contiguous() for tensor in tensors)
        if impl == "triton":
            return "triton" if contiguous and self._takes(part, impl) else "eager"
        wide = all(tensor.dtype == part.dtype for tensor in tensors) and part.master is None
        ready = impl != "eager" and wide and (contiguous or impl == "compile") and self._takes(part, impl)
        return impl if ready and _can_compile(part.weights.device, impl) else "eager"

    def _begin(self, parameter: torch.Tensor, group: dict[str, Any], place: Place) -> State:
        state: State = self.state[parameter]
        state["step"] = torch.zeros(())
        if group["rounding"] == "master" and parameter.dtype in (torch.bfloat16, torch.float16):
            state["master"] = parameter.detach().to(torch.float32)
        state.update(self._start(parameter, group, place))
        return state

    def _part(self, parameter: torch.Tensor, name: str, group: dict[str, Any], place: Place) -> Part:
        state = self.state[parameter]
        noise = None
        if parameter.dtype == torch.bfloat16 and group["rounding"] == "stochastic":
            generator = torch.Generator(parameter.device)
            noise = noise_for(generator, seed=group["seed"], name=name, step=int(state["step"]), offset=place.offset)
        weights, master = _vector(local_of(parameter)), state.get("master")
        return Part(
            name=name,
            weights=weights,
            grad=weights if parameter.grad is None else _vector(_local_grad(parameter, name)),
            master=None if master is None else _vector(local_of(master)),
            place=place,
            noise=noise,
        )

    def _parameters(self) -> Iterable[tuple[torch.Tensor, str, dict[str, Any], Place, dist.ProcessGroup | None]]:
        listed = [
            (parameter, name, group)
            for index, group in enumerate(self.param_groups)
            for parameter, name in zip(group["params"], self._names(index), strict=True)
        ]
        if self._placed is None:
            places = [place_of(parameter, name) for parameter, name, _ in listed]
            self._placed = list(zip(places, process_groups(places), strict=True))
        return [(*parameter, *placed) for parameter, placed in zip(listed, self._placed, strict=True)]

    def _names(self, index: int) -> list[str]:
        group = self.param_groups[index]
        names: list[str] = group.get("param_names") or [f"parameter {index}.{i}" for i in range(len(group["params"]))]
        return names

    def _forget(self) -> None:
        self._placed = None
        self._seen = {}


@functools.cache
def _can_compile(device: torch.device, impl: str) -> bool:
    if impl == "native":
        from train.kernels.native import library

        missing = library.why_not()
    else:
        missing = why_not(device)
    if missing:
        warnings.warn(f"the optimizer runs eagerly, not compiled: {missing}", stacklevel=2)
    return not missing


def like(parameter: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return zeros shaped and sharded as a parameter, FP32 (FP64 for FP64) unless a dtype is given."""
    return torch.zeros_like(parameter, dtype=dtype or arithmetic(parameter), requires_grad=False)


def vector(state: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a state that is shaped as its parameter, with at least one dimension."""
    return _vector(local_of(state))


def _vector(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(1) if tensor.ndim == 0 else tensor


def _local_grad(parameter: torch.Tensor, name: str) -> torch.Tensor:
    grad = parameter.grad
    assert grad is not None
    if grad.is_sparse:
        raise ValueError(f"{name} has a sparse gradient: use a dense embedding (sparse=False)")
    if isinstance(parameter, DTensor) and isinstance(grad, DTensor) and grad.placements != parameter.placements:
        grad = grad.redistribute(placements=parameter.placements)
    return local_of(grad)
