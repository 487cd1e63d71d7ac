"""An optimizer's state by the names of its parameters: what a pipeline's rank has is a part of the whole model's, whatever its numbers."""

from __future__ import annotations

from typing import Any

import torch

State = dict[str, Any]


def by_name(state: State) -> State:
    """A ``state_dict`` with settings and states by parameter name; one that has them already stays as it is."""
    if "settings" in state:
        return state
    settings, states = {}, {}
    for group in state["param_groups"]:
        own = {key: value for key, value in group.items() if key not in ("params", "param_names")}
        for number, name in zip(group["params"], group["param_names"], strict=True):
            settings[name] = own
            if number in state["state"]:
                states[name] = state["state"][number]
    return {"settings": settings, "state": states}


def for_optimizer(named: State, optimizer: torch.optim.Optimizer) -> State:
    """What an optimizer loads: of a state by name, that of its own parameters.

    Raises:
        KeyError: a parameter that the state does not know.
    """
    groups = optimizer.state_dict()["param_groups"]
    states = {}
    for group in groups:
        group.update(named["settings"][group["param_names"][0]])
        for number, name in zip(group["params"], group["param_names"], strict=True):
            if name in named["state"]:
                states[number] = named["state"][name]
    return {"param_groups": groups, "state": states}
