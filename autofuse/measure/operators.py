"""Which operators one run of something executes, by category (autofuse/ir/operator_categories.py)."""

from __future__ import annotations

from collections import Counter, defaultdict

import torch
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile

from autofuse.ir.operator_categories import COMPILED_GRAPH, ORDER, category_of
from autofuse.measure.timing import Action, synchronize
from autofuse.results.comparison import Category


def operators_of(action: Action, device: torch.device) -> dict[str, Category]:
    """Counts and seconds of one run by category, categories in a fixed order, those that do not occur left out.

    Seconds are each operator's own, on the device where its kernels ran: they leave out what it calls, and are
    stretched by the profiler itself, so compare them with each other and not with a timed step.
    """
    accelerated = device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if accelerated else [])]
    synchronize(device)
    with profile(activities=activities) as profiled:
        action()
        synchronize(device)
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    seconds: dict[str, float] = defaultdict(float)
    # Events of the device itself repeat, under kernels' names, what the operators that launched them account for.
    for event in profiled.events() or ():
        if event.device_type.name == "CPU" and (category := _category_in_place(event)):
            counts[category][COMPILED_GRAPH if COMPILED_GRAPH in event.name else event.name] += 1
            seconds[category] += (event.self_device_time_total if accelerated else event.self_cpu_time_total) * 1e-6
    return {name: Category(counts[name].total(), seconds[name], dict(counts[name])) for name in ORDER if name in counts}


def _category_in_place(event: FunctionEvent) -> str:
    """The event's category; "optimizer" for all that computes under an optimizer's step, however it is written."""
    category, ancestor = category_of(event.name), event.cpu_parent
    while category and ancestor is not None:
        if ancestor.name.startswith("Optimizer.step#"):
            return "optimizer"
        ancestor = ancestor.cpu_parent
    return category
