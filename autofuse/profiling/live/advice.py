"""Predicts which rule would help which layer of a step, and by how much, and adds these places to the layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import nn

from autofuse.profiling.live.gains import with_places
from autofuse.profiling.live.module_calls import join_names
from autofuse.profiling.live.operator_costs import Costs
from autofuse.profiling.live.prediction_factors import with_ranges
from autofuse.profiling.live.roofs import roofs
from autofuse.profiling.live.root_models import StepArguments
from autofuse.profiling.live.rule_places import Reading, read_places
from autofuse.results.profile import Layer


def readings(models: Mapping[str, nn.Module], calls: Mapping[nn.Module, StepArguments]) -> list[Reading]:
    """Return the reading of each model. Its sites have the names of the step's layers.

    Args:
        models: Each model, by the prefix of its modules' names.
        calls: The arguments of each model's call.
    """
    return [
        _with_prefix(read_places(model, call=calls[model]), prefix)
        for prefix, model in models.items()
        if model in calls
    ]


def with_advice(
    layers: Sequence[Layer], found: Sequence[Reading], step_seconds: float, device: torch.device
) -> tuple[Layer, ...]:
    """Return the layers with their places, and the predicted saving of each place in a step."""
    costs = Costs(roofs(device))
    for reading in found:
        places = {layer.fqn: layer.places for layer in with_places(layers, reading, costs, step_seconds)}
        layers = [replace(layer, places=(*layer.places, *places[layer.fqn])) for layer in layers]
    return with_ranges(layers) if device.type == "cpu" else tuple(layers)


def _with_prefix(reading: Reading, prefix: str) -> Reading:
    """Return the reading with `prefix` before every name."""
    if not prefix:
        return reading
    sites = [site._replace(fqn=join_names(prefix, site.fqn)) for site in reading.sites]
    return replace(reading, sites=sites, names={m: join_names(prefix, name) for m, name in reading.names.items()})
