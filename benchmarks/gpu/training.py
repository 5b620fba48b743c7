"""Whole training steps: eager, torch.compile, Liger's modules, autofuse, and autofuse with torch.compile.

"autofuse, loss given" is `optimize(..., loss_fn=...)`: cross entropy is computed in blocks, without all logits.
"compiled blocks" adds `compile=True`: torch.compile compiles the model's repeated blocks with their fused operations.

A step is forward, cross entropy, backward and AdamW(fused=True), the same for all. Weights are bf16. Each way is its
own row, on a fresh model of the same seed. Model FLOPs are counted once, on the original, and used for every way: work
that a fusion saves is not work that the model needs (MFU: Chowdhery et al., arXiv:2204.02311).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

import autofuse
from autofuse.kernels.policy import settings
from autofuse.measure.timing import seconds_of, synchronize
from autofuse.profiling.peaks import peak_of
from benchmarks.gpu.liger import missing, with_liger
from benchmarks.gpu.models import FULL, TOY, TrainedModel
from benchmarks.gpu.store import Results, Row, Setting, Task

LOSS_GIVEN = "autofuse, loss given"
COMPILED_BLOCKS = ", compiled blocks"
WAYS = (
    "eager", "torch.compile", "Liger", "autofuse", LOSS_GIVEN, LOSS_GIVEN + COMPILED_BLOCKS,
    "autofuse + torch.compile",
)  # fmt: skip
_COMPARED_STEPS = 4  # their losses are stored; they are the warm-up, too
_TIMED_STEPS = (5, 40)
_PROFILED_STEPS, _KERNELS = 3, 40
Step = Callable[[], Tensor]


def tasks(setting: Setting, results: Results) -> list[Task]:
    """One for each model and way."""
    models = TOY if setting.toy else FULL
    return [
        Task(f"training/{name}/{way}", partial(row, trained, way, setting), 100)
        for name, trained in models.items() for way in WAYS
    ]  # fmt: skip


def row(trained: TrainedModel, way: str, setting: Setting) -> Row:
    """Seconds of a step, tokens per second, MFU, peak bytes and the first losses of one way."""
    if way == "Liger" and (why := missing(setting.device)):
        return {"model": trained.name, "way": way, "absent": why}
    torch.compiler.reset()
    model = trained.model(setting.device, torch.bfloat16)
    ids, targets = trained.data(setting.device)
    start = time.perf_counter()
    prepared_model = _prepare(trained, model, way, ids)
    synchronize(setting.device)
    preparation = time.perf_counter() - start
    step = _step(partial(trained.loss, prepared_model, ids, targets), model)
    first = [seconds_and_loss(step, setting.device) for _ in range(_COMPARED_STEPS)]
    peak = _peak_bytes(step, setting.device)
    warm = first[-1][0]
    count = min(_TIMED_STEPS[1], max(_TIMED_STEPS[0], int(2 * setting.seconds / warm)))
    seconds = [seconds_of(step, setting.device) for _ in range(count)]
    middle = median(seconds)
    return {
        "model": trained.name, "way": way, "parameters": sum(p.numel() for p in model.parameters()),
        "batch": trained.batch, "length": trained.length, "seconds": middle, "all_seconds": seconds,
        "preparation_seconds": preparation, "first_step_seconds": first[0][0],
        "tokens_per_second": trained.tokens / middle,
        **_flops(trained, middle, setting.device), "peak_bytes": peak, "losses": [loss for _, loss in first],
        "draws": trained.draws, **_sites(model), "launch_bound": settings().launch_bound,
        "kernels": _kernels(step, setting.device),
    }  # fmt: skip


def _flops(trained: TrainedModel, seconds: float, device: torch.device) -> Row:
    """The model's FLOPs, for models whose steps can be counted without data: loops over experts cannot."""
    if trained.takes_labels:
        return {"mfu": None}
    flops = model_flops(trained)
    return {"model_flops": flops, "flops_per_second": flops / seconds, "mfu": _mfu(flops / seconds, device)}


def model_flops(trained: TrainedModel) -> int:
    """The FLOPs of the original's step, forward and backward, counted on tensors without data."""
    meta = torch.device("meta")
    model = trained.model(meta, torch.bfloat16)
    ids = torch.zeros(trained.batch, trained.length, dtype=torch.long, device=meta)
    with FlopCounterMode(display=False) as counter:
        trained.loss(model, ids, ids).backward()
    return int(counter.get_total_flops())


def seconds_and_loss(step: Step, device: torch.device) -> tuple[float, float]:
    losses: list[Tensor] = []
    seconds = seconds_of(lambda: losses.append(step()), device)
    return seconds, losses[0].item()


def _prepare(trained: TrainedModel, model: nn.Module, way: str, ids: Tensor) -> Any:
    """The callable for the model in that way."""
    if way.startswith("autofuse"):
        loss_fn = F.cross_entropy if way.startswith(LOSS_GIVEN) else None
        autofuse.optimize(model, trained.example(ids), loss_fn=loss_fn, compile=way.endswith(COMPILED_BLOCKS))
    if way == "Liger":
        with_liger(model)
    if way == "autofuse + torch.compile":
        trained.loss(model, ids, ids)  # fused sites run their first-call checks before the compiler traces them
    return torch.compile(model) if way.endswith("torch.compile") else model


def _sites(model: nn.Module) -> Row:
    """autofuse's sites by status, and why those are declined that are no equal layers."""
    sites = autofuse.report(model).sites
    declined = dict.fromkeys(f"{s.rule}: {s.reason}" for s in sites if s.status != "fused")
    return {"sites": dict(Counter(s.status for s in sites)), "declined": list(declined)[:10]}


def _step(compute_loss: Step, model: nn.Module) -> Step:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    torch.manual_seed(0)

    def step() -> Tensor:
        loss = compute_loss()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def _peak_bytes(step: Step, device: torch.device) -> int | None:
    """The most bytes allocated during a step, with weights and optimizer; None on a CPU."""
    if device.type != "cuda":
        return None
    synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    step()
    synchronize(device)
    return torch.cuda.max_memory_allocated(device)


def _kernels(step: Step, device: torch.device) -> list[Row]:
    """The kernels that take the most time: microseconds and launches in a step; empty on a CPU."""
    if device.type != "cuda":
        return []
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(_PROFILED_STEPS):
            step()
        synchronize(device)
    totals: dict[str, tuple[float, int]] = {}
    for event in profiler.events() or ():
        if event.device_type.name == "CUDA":
            seconds, count = totals.get(event.name, (0.0, 0))
            totals[event.name] = (seconds + event.self_device_time_total, count + 1)
    longest = sorted(totals.items(), key=lambda item: -item[1][0])[:_KERNELS]
    return [
        {"name": name[:120], "microseconds": micro / _PROFILED_STEPS, "launches": count / _PROFILED_STEPS}
        for name, (micro, count) in longest
    ]


def _mfu(flops_per_second: float, device: torch.device) -> float | None:
    """The share of the data sheet's dense bf16 peak; None if the peak is unknown."""
    peak = peak_of(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
    return None if peak is None else flops_per_second / peak.flops["bfloat16"]
