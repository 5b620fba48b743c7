"""The time of every operation at shapes of real models: autofuse.ops' choice, and all other ways.

Before the timing, autofuse.ops chooses among its providers by measurement, as `autofuse tune` does, for steps that wait
for the GPU. The row contains the time of each provider (including Liger and flash-attn, if they are installed).

Seconds are wall-clock times of many calls in a row, so that launching overlaps with computing as in a model. For the
roofs the kernels' own time counts (torch.profiler), if the device reports it, because launching takes longer for small
shapes.

Bytes are the least that the operation can move: inputs read and outputs written once; in training also the outputs'
gradients and the inputs read again, and the inputs' gradients written. FLOPs are those of the hand-written code's
matrix products, halved under a causal mask. They are counted on the original and used for every way.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from autofuse.kernels import policy
from autofuse.kernels.operation import record_calls
from autofuse.kernels.tuning import tune
from autofuse.measure.memory import measure_peak_memory
from benchmarks.cases import Case, cases
from benchmarks.gpu.store import Results, Row, Setting, Task
from benchmarks.rounds import Action, forward_and_backward, time_in_rounds

OURS, SPELLED, NATIVE, COMPILED = "autofuse.ops", "eager", "torch native", "torch.compile"
_PROFILED = 5  # calls; the kernels' time is their mean
_LEAST_SECONDS = 5e-3  # of one timing, so that its synchronization does not matter


def tasks(setting: Setting, results: Results) -> list[Task]:
    """One for each case and mode, in bf16, training first."""
    modes = ("training", "inference")
    choice = [(case, mode) for mode in modes for case in cases(setting.grid) if mode in case.modes]
    return [
        Task(f"operations/{mode}/{case.label}", partial(row, case, mode == "training", setting), 40)
        for case, mode in choice
    ]


def row(case: Case, training: bool, setting: Setting) -> Row:
    """Seconds, kernel seconds and peak bytes of each way, and the measured choice of autofuse.ops."""
    torch.compiler.reset()
    tensors = case.tensors(setting.device, torch.bfloat16, training)
    with torch.set_grad_enabled(training), policy.using(launch_bound=False):
        functions = _functions(case)
        choice = _tune(case, tensors, setting)
        ways: dict[str, Action] = {name: forward_and_backward(f, tensors) for name, f in functions.items()}
        rounds = time_in_rounds(ways, setting.device, seconds=setting.seconds, rounds=(8, 60), least=_LEAST_SECONDS)
        kernels = {name: kernel_seconds(way, setting.device) for name, way in ways.items()}
        peaks = {name: measure_peak_memory(way, setting.device).bytes for name, way in ways.items()}
        traffic = bytes_moved(case, tensors)
    best = rounds.best(OURS)
    effect = rounds.ratio(best, OURS)
    return {
        "operation": case.operation, "case": case.label, "regime": "GPU",
        "mode": "training" if training else "inference",
        "dtype": "bf16", "shapes": [list(i.shape) for i in case.inputs], "bound": case.bound,
        "bytes": traffic, "flops": flops(case, training),
        "seconds": {name: rounds.median(name) for name in ways}, "kernel_seconds": kernels, "peak_bytes": peaks,
        "best": best, "ratio": effect.ratio, "interval": list(effect.interval),
        "control": list(rounds.control(OURS).interval), "chosen": choice,
    }  # fmt: skip


def kernel_seconds(way: Action, device: torch.device) -> float | None:
    """Seconds that the device computed in one call; None if it does not report that."""
    if device.type != "cuda":
        return None
    torch.cuda.synchronize(device)
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(_PROFILED):
            way()
        torch.cuda.synchronize(device)
    events = [e for e in profiler.events() or () if e.device_type.name == "CUDA"]
    return sum(e.self_device_time_total for e in events) * 1e-6 / _PROFILED or None


def bytes_moved(case: Case, tensors: list[Tensor]) -> int:
    """The least traffic of the operation; see the docstring of the module."""
    with torch.no_grad():
        result = case.ours(*tensors)
    outputs = sum(t.nbytes for t in (result if isinstance(result, tuple) else (result,)))
    inputs = sum(t.nbytes for t in tensors)
    gradients = sum(t.nbytes for t in tensors if t.requires_grad)
    return inputs + outputs + ((inputs + outputs + gradients) if gradients else 0)


def flops(case: Case, training: bool) -> float:
    """The FLOPs of the hand-written code's matrix products, forward and in training backward.

    They are counted without computing.
    """
    tensors = case.tensors(torch.device("meta"), torch.bfloat16, training)
    with torch.set_grad_enabled(training):
        step = forward_and_backward(case.spelled, tensors)
        with FlopCounterMode(display=False) as counter:
            step()
    return case.flops * counter.get_total_flops()


def _functions(case: Case) -> dict[str, Callable[..., Any]]:
    functions: dict[str, Callable[..., Any]] = {OURS: case.ours, SPELLED: case.spelled}
    if case.native is not None:
        functions[NATIVE] = case.native
    return functions | {COMPILED: torch.compile(case.spelled, dynamic=False)}


def _tune(case: Case, tensors: list[Tensor], setting: Setting) -> Row:
    """Measures the operation's providers so that the best is chosen; {} if it has only one."""
    with record_calls() as calls:
        case.ours(*tensors)
    call = next((c for c in calls if c.operation.name == case.operation), None)
    if call is None:
        return {}
    seconds = setting.seconds / 5
    return tune(call.operation, call.args, call.kwargs, training=torch.is_grad_enabled(), seconds=seconds).to_dict()
