"""Counts the operators of one run, by category (autofuse/ir/operator_categories.py)."""

from __future__ import annotations

from collections import Counter, defaultdict

import torch
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile

from autofuse.ir.operator_categories import COMPILED_GRAPH, ORDER, category_of
from autofuse.measure.timing import Action, synchronize
from autofuse.results.comparison import Category


def count_operators(action: Action, device: torch.device) -> dict[str, Category]:
    """Returns counts and seconds of the operators of one run, by category and in a fixed order.

    Seconds are each operator's own time, without the operators that it calls, on the device of its kernels. The
    profiler makes them longer: compare them with each other, not with a timed step.
    """
    uses_cuda = device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if uses_cuda else [])]
    synchronize(device)
    with profile(activities=activities) as profiled:
        action()
        synchronize(device)
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    seconds: dict[str, float] = defaultdict(float)
    # Events of the device are kernels. The operators that launched them already count.
    for event in profiled.events() or ():
        if event.device_type.name == "CPU" and (category := _category_of_event(event)):
            counts[category][COMPILED_GRAPH if COMPILED_GRAPH in event.name else event.name] += 1
            seconds[category] += (event.self_device_time_total if uses_cuda else event.self_cpu_time_total) * 1e-6
    return {name: Category(counts[name].total(), seconds[name], dict(counts[name])) for name in ORDER if name in counts}


def _category_of_event(event: FunctionEvent) -> str:
    """Returns the category of an event. Every computation inside an optimizer's step has the category "optimizer"."""
    category, ancestor = category_of(event.name), event.cpu_parent
    while category and ancestor is not None:
        if ancestor.name.startswith("Optimizer.step#"):
            return "optimizer"
        ancestor = ancestor.cpu_parent
    return category
