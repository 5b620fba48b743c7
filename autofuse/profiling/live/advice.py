"""Which rule would help which layer of a step, and by how much: reads every model of it, and puts that to its layers.

Knows models by what their names begin with; what a site is and what it would gain are known elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import nn

from autofuse.profiling.live.gains import with_places
from autofuse.profiling.live.module_calls import joined
from autofuse.profiling.live.operator_costs import Costs
from autofuse.profiling.live.prediction_factors import with_ranges
from autofuse.profiling.live.roofs import roofs
from autofuse.profiling.live.root_models import StepArguments
from autofuse.profiling.live.rule_places import Reading, read_places
from autofuse.results.profile import Layer


def readings(models: Mapping[str, nn.Module], calls: Mapping[nn.Module, StepArguments]) -> list[Reading]:
    """What was read of each model, sites under the names that the step's layers have."""
    return [_named(read_places(model, call=calls[model]), prefix) for prefix, model in models.items() if model in calls]


def advised(
    layers: Sequence[Layer], found: Sequence[Reading], step_seconds: float, device: torch.device
) -> tuple[Layer, ...]:
    """The layers with their places, and what fusing each is predicted to save of a step."""
    costs = Costs(roofs(device))
    for reading in found:
        places = {layer.fqn: layer.places for layer in with_places(layers, reading, costs, step_seconds)}
        layers = [replace(layer, places=(*layer.places, *places[layer.fqn])) for layer in layers]
    return with_ranges(layers) if device.type == "cpu" else tuple(layers)


def _named(reading: Reading, prefix: str) -> Reading:
    """The same with `prefix` before every name."""
    if not prefix:
        return reading
    sites = [site._replace(fqn=joined(prefix, site.fqn)) for site in reading.sites]
    return replace(reading, sites=sites, names={m: joined(prefix, name) for m, name in reading.names.items()})
