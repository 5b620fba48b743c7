"""One measurement in a process of its own, which prints one line of JSON.

    python -m benchmarks.peers.one start MODEL WAY                the first step, peak memory, what was fused
    python -m benchmarks.peers.one time SECONDS MODEL WAY...   steps of all these ways, in interleaved rounds
    python -m benchmarks.peers.one judge WAY                      the look-alikes

A process of its own keeps a library that crashes, or that changes torch, away from the others.
"""

from __future__ import annotations

import copy
import json
import random
import re
import resource
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

import autofuse
from autofuse.measure.memory import measure_peak_memory
from autofuse.measure.statistics import estimate
from autofuse.measure.timing import ONE_CORE_SHARE, TimedRun, time_run, without_garbage_collection
from benchmarks.peers.judging import judge_all
from benchmarks.peers.models import build, first_tensor, step_of
from benchmarks.peers.ways import EAGER, WAYS

CPU = torch.device("cpu")
_ATTENTION = re.compile(r"^aten::_scaled_dot_product_\w*(flash|efficient|fused|cudnn)\w*$")
_WARMUP, _LEAST, _MOST = 3, 15, 60  # steps of each way


def start(name: str, way: str) -> dict[str, Any]:
    """The first step of a way, and its state afterwards. The time begins when the model exists."""
    model, inputs = build(name)
    original = copy.deepcopy(model)
    begin, cpu, children = time.perf_counter(), time.process_time(), _seconds_of_children()
    callable_model = WAYS[way].prepare(model, inputs)
    step = step_of(callable_model, model, inputs)
    step()
    seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
    children = _seconds_of_children() - children
    fused = autofuse.report(model).with_status("fused") if WAYS[way].counts_places else None
    model.load_state_dict(original.state_dict())
    return {
        "first_step_seconds": seconds, "first_step_cpu_seconds": cpu, "compiler_cpu_seconds": children,
        "parameters": _parameters(model),
        "places": None if fused is None else len(fused),
        "attention_kernels": _attention_kernels(callable_model, inputs),
        "difference": _difference(callable_model, original, inputs), "peak_bytes": measure_peak_memory(step, CPU).bytes,
    }  # fmt: skip


def _seconds_of_children() -> float:
    """CPU seconds of the processes that ended so far and that this one had started: C++ compilers."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def _attention_kernels(callable_model: Callable[..., Any], inputs: tuple[Any, ...]) -> int:
    """The number of fused attention kernels that one forward pass runs."""
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        callable_model(*inputs)
    return sum(bool(_ATTENTION.match(event.name)) for event in recorded.events() or ())


def _difference(callable_model: Callable[..., Any], original: nn.Module, inputs: tuple[Any, ...]) -> float:
    """The largest difference of the output from the original's, relative to its largest value; both without dropout."""
    if any(isinstance(m, nn.Dropout) and m.p > 0 for m in original.modules()):
        return float("nan")
    with torch.no_grad():
        found, wanted = first_tensor(callable_model(*inputs)), first_tensor(original(*inputs))
    return float((found - wanted).abs().max() / wanted.abs().max())


def time_ways(name: str, ways: Sequence[str], seconds: float) -> dict[str, Any]:
    """Median seconds of a step of each way, and its ratio to eager's with a 95 % interval."""
    steps = {}
    for way in ways:
        model, inputs = build(name)
        steps[way] = step_of(WAYS[way].prepare(model, inputs), model, inputs)
    runs = _in_rounds(steps, seconds)
    on_core = all(sum(r.kept_core for r in each) >= ONE_CORE_SHARE * len(each) for each in runs.values())
    times = {way: tuple(r.core if on_core else r.seconds for r in each) for way, each in runs.items()}
    wall = {way: sum(r.seconds for r in each) for way, each in runs.items()}
    return {
        "clock": "core" if on_core else "wall", "rounds": len(times[EAGER]), "threads": torch.get_num_threads(),
        "share_of_core": {way: sum(r.core for r in runs[way]) / wall[way] for way in ways},
        "seconds": {way: sorted(times[way])[len(times[way]) // 2] for way in ways},
        "against_eager": {way: _ratio(times[EAGER], times[way]) for way in ways if way != EAGER},
    }  # fmt: skip


def _ratio(before: Sequence[float], after: Sequence[float]) -> dict[str, Any]:
    found = estimate(before, after)
    return {"ratio": found.ratio, "interval": [found.interval.low, found.interval.high]}


def _in_rounds(steps: dict[str, Callable[[], None]], seconds: float) -> dict[str, list[TimedRun]]:
    """Every round runs each way once, in random order, until the seconds are spent."""
    order, runs = random.Random(0), dict[str, list[TimedRun]]({way: [] for way in steps})
    with without_garbage_collection():
        for _ in range(_WARMUP):
            for step in steps.values():
                step()
        begin = time.perf_counter()
        for done in range(_MOST):
            if done >= _LEAST and time.perf_counter() - begin > seconds:
                break
            for way in order.sample(list(steps), len(steps)):
                runs[way].append(time_run(steps[way], CPU))
    return runs


def main(arguments: Sequence[str]) -> dict[str, Any]:
    """Runs what the arguments ask for."""
    kind, *rest = arguments
    torch.set_num_threads(1)  # what other threads do is not on this thread's clock
    if kind == "start":
        return start(*rest)
    if kind == "judge":
        return judge_all(rest[0])
    seconds, name, *ways = rest
    return time_ways(name, ways, float(seconds))


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1:])))
