"""Time of every operation at shapes of real models: what autofuse.ops chooses, and what else there is.

Before it is timed, autofuse.ops chooses among its providers by measurement, as `autofuse tune` does; what each of them
took (Liger and flash-attn among them, where they are installed) is kept in the row.

Seconds are wall-clock, many calls in a row, so that launching overlaps with computing as in a model. For the roofs the
kernels' own time counts (torch.profiler), where the device tells it: of small shapes, launching takes longer.

Bytes are the least that the operation can move: inputs read and outputs written once; in training also the outputs'
gradients and the inputs once more read, and the inputs' gradients written. FLOPs are those of the spelled-out code's
matrix products, halved under a causal mask; they are counted on the original and held against every way alike.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from autofuse.kernels.operation import record_calls
from autofuse.kernels.tuning import tune
from autofuse.measure.memory import measure_peak_memory
from benchmarks.cases import Case, cases
from benchmarks.gpu.store import Results, Row, Setting, Task
from benchmarks.rounds import Action, forward_and_backward, measured

OURS, SPELLED, NATIVE, COMPILED = "autofuse.ops", "eager", "torch native", "torch.compile"
_PROFILED = 5  # calls, of which the kernels' time is the mean
_LEAST_SECONDS = 5e-3  # of one timing: the synchronisation around it should not count


def tasks(setting: Setting, results: Results) -> list[Task]:
    """One for each case and mode, in bf16: training first."""
    modes = ("training", "inference")
    chosen = [(case, mode) for mode in modes for case in cases(setting.grid) if mode in case.modes]
    return [
        Task(f"operations/{mode}/{case.label}", partial(row, case, mode == "training", setting), 40)
        for case, mode in chosen
    ]


def row(case: Case, training: bool, setting: Setting) -> Row:
    """Seconds, kernel seconds and peak bytes of each way, and the choice that was measured for autofuse.ops."""
    torch.compiler.reset()
    tensors = case.tensors(setting.device, torch.bfloat16, training)
    with torch.set_grad_enabled(training):
        functions = _functions(case)
        chosen = _tuned(case, tensors, setting)
        ways: dict[str, Action] = {name: forward_and_backward(f, tensors) for name, f in functions.items()}
        rounds = measured(ways, setting.device, seconds=setting.seconds, rounds=(8, 60), least=_LEAST_SECONDS)
        kernels = {name: kernel_seconds(way, setting.device) for name, way in ways.items()}
        peaks = {name: measure_peak_memory(way, setting.device).bytes for name, way in ways.items()}
        traffic = bytes_moved(case, tensors)
    best = rounds.best(OURS)
    effect = rounds.ratio(best, OURS)
    return {
        "operation": case.operation, "case": case.label, "mode": "training" if training else "inference",
        "dtype": "bf16", "shapes": [list(i.shape) for i in case.inputs], "bound": case.bound,
        "bytes": traffic, "flops": flops(case, training),
        "seconds": {name: rounds.median(name) for name in ways}, "kernel_seconds": kernels, "peak_bytes": peaks,
        "best": best, "ratio": effect.ratio, "interval": list(effect.interval),
        "control": list(rounds.control(OURS).interval), "chosen": chosen,
    }  # fmt: skip


def kernel_seconds(way: Action, device: torch.device) -> float | None:
    """Seconds that the device computed in one call; None where it does not tell."""
    if device.type != "cuda":
        return None
    torch.cuda.synchronize(device)
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        for _ in range(_PROFILED):
            way()
        torch.cuda.synchronize(device)
    events = [e for e in profiled.events() or () if e.device_type.name == "CUDA"]
    return sum(e.self_device_time_total for e in events) * 1e-6 / _PROFILED or None


def bytes_moved(case: Case, tensors: list[Tensor]) -> int:
    """The least traffic that the operation can do with; see the module's first lines."""
    with torch.no_grad():
        result = case.ours(*tensors)
    outputs = sum(t.nbytes for t in (result if isinstance(result, tuple) else (result,)))
    inputs = sum(t.nbytes for t in tensors)
    gradients = sum(t.nbytes for t in tensors if t.requires_grad)
    return inputs + outputs + ((inputs + outputs + gradients) if gradients else 0)


def flops(case: Case, training: bool) -> float:
    """Of the spelled-out code's matrix products, forward and, in training, backward; counted without computing."""
    tensors = case.tensors(torch.device("meta"), torch.bfloat16, training)
    with torch.set_grad_enabled(training):
        step = forward_and_backward(case.spelled, tensors)
        with FlopCounterMode(display=False) as counted:
            step()
    return case.flops * counted.get_total_flops()


def _functions(case: Case) -> dict[str, Callable[..., Any]]:
    found: dict[str, Callable[..., Any]] = {OURS: case.ours, SPELLED: case.spelled}
    if case.native is not None:
        found[NATIVE] = case.native
    return found | {COMPILED: torch.compile(case.spelled, dynamic=False)}


def _tuned(case: Case, tensors: list[Tensor], setting: Setting) -> Row:
    """Measure the operation's providers and let the best be chosen; {} where it has none to choose from."""
    with record_calls() as made:
        case.ours(*tensors)
    call = next((c for c in made if c.operation.name == case.operation), None)
    if call is None:
        return {}
    seconds = setting.seconds / 5
    return tune(call.operation, call.args, call.kwargs, training=torch.is_grad_enabled(), seconds=seconds).to_dict()
