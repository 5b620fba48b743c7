"""The launches of a call, with the properties that the performance model needs.

The bytes of a launch are those of its tensors, each once, with the declared shapes. Only this file knows, by kernel
name, the iterations of loops and the data that a kernel reads twice. It does not depend on the properties of GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from torch import Tensor
from triton.runtime.jit import JITFunction

from tools.ahead.absent import absent
from tools.ahead.launches import CUOBJDUMP
from tools.ahead.predict_code import Counted, counted
from tools.ahead.predict_gpus import Gpu
from tools.ahead.predict_model import Work
from tools.ahead.resources import Resources, resources, resources_of_amd
from tools.ahead.targets import TARGETS, Arch

Arguments = Mapping[str, Any]


def works(call: Callable[[], object], gpu: Gpu) -> list[tuple[str, Work]]:
    """Return every launch of `call`, in order, with the name of its kernel, as `gpu` would run it."""
    launched = _trace_launches(call, gpu.arch)
    coded = launched if gpu.code == gpu.arch else _trace_launches(call, gpu.code)
    return [
        (name, _work(name, given, programs, used, gpu, _count(binary)))
        for (name, given, programs, used, _), (*_, binary) in zip(launched, coded, strict=True)
    ]


def _work(name: str, given: Arguments, programs: int, used: Resources, gpu: Gpu, code: Counted) -> Work:
    turns, passes = _TURNS.get(name, _ONCE)(given), _PASSES.get(name, 1)
    tensors = {id(t): t for t in given.values() if isinstance(t, Tensor)}.values()
    moved, again = float(sum(_bytes(t) for t in tensors)), 0.0
    for operand in _AGAIN.get(name, ()):
        if isinstance(given.get(operand), Tensor):
            again += _bytes(given[operand])
    for operand in _WRITTEN_TOO.get(name, ()):
        moved += _bytes(given[operand])
    trips = (1.0 if code.loads else 0.0) + (turns * passes if code.looped_loads else 0.0)
    target = TARGETS[gpu.arch]
    resident = target.resident(used.registers, used.shared, used.warps)
    warps = TARGETS[gpu.code].gpu.warp_size * 1.0  # of the counted code, for the other's threads
    issued = code.total(turns) * used.warps * target.gpu.warp_size / warps
    return Work(moved, again, programs, resident, issued, trips)


def _bytes(t: Tensor) -> int:
    """The bytes of memory of `t`. Expanded dimensions count once."""
    entries = 1
    for size, stride in zip(t.shape, t.stride(), strict=True):
        entries *= size if stride else 1
    return entries * t.element_size()


def _ceil(given: Arguments, entries: str, of_each: str) -> float:
    return float(-(-int(given[entries]) // int(given[of_each])))


def _units(given: Arguments, units: str, each: str, of_each: str) -> float:
    return float(-(-int(given[units]) * int(given[each]) // int(given[of_each])))


def _ONCE(given: Arguments) -> float:
    return 1.0


# The iterations of a kernel's loops, the number of successive loops, the data that more
# than one loop reads, and the data that is written in place.
_TURNS: Mapping[str, Callable[[Arguments], float]] = {
    "norm._backward": lambda a: _ceil(a, "share", "tall"),
    "norm_wide.affine_backward": lambda a: _ceil(a, "share", "tall"),
    "norm_wide.forward_wide": lambda a: _units(a, "width", "each", "block"),
    "norm_wide.backward_wide": lambda a: _units(a, "width", "each", "block"),
    "activations._backward": lambda a: _ceil(a, "rows_each", "ROWS"),
    "cross_entropy._losses": lambda a: _units(a, "classes", "UNIT", "BLOCK"),
    "cross_entropy_in_place._losses_and_gradient": lambda a: float(a["classes"] // a["BLOCK"]),
    "softmax.softmax_long": lambda a: _units(a, "width", "UNIT", "BLOCK"),
    "softmax.gradient_long": lambda a: _units(a, "width", "UNIT", "BLOCK"),
}
_PASSES = {
    "norm_wide.forward_wide": 2, "norm_wide.backward_wide": 2, "cross_entropy_in_place._losses_and_gradient": 2,
    "softmax.softmax_long": 2, "softmax.gradient_long": 2,
}  # fmt: skip
_AGAIN = {
    "norm_wide.forward_wide": ("x", "residual"),
    "norm_wide.backward_wide": ("given", "total"),
    "cross_entropy_in_place._losses_and_gradient": ("LOGITS",),
    "softmax.softmax_long": ("X",),
    "softmax.gradient_long": ("P", "G"),
}
_WRITTEN_TOO = {"cross_entropy_in_place._losses_and_gradient": ("LOGITS",)}


@lru_cache(maxsize=512)
def _count(binary: bytes) -> Counted:
    return counted(binary, CUOBJDUMP)


def _trace_launches(call: Callable[[], object], arch: Arch) -> list[tuple[str, Arguments, int, Resources, bytes]]:
    """For each launch: file and kernel, arguments by name, programs, resources of a program, and the binary."""
    taken: list[tuple[str, Arguments, int, Resources, bytes]] = []
    usual, target = JITFunction.run, TARGETS[arch]
    with absent(target.gpu, list(TARGETS).index(arch)) as driver:

        def run(kernel: Any, *arguments: Any, grid: Any, warmup: bool, **named: Any) -> Any:
            with driver.entered(driver.home):
                compiled = usual(kernel, *arguments, grid=grid, warmup=True, **named)
            warps, shared = compiled.metadata.num_warps, compiled.metadata.shared
            given = dict(zip(kernel.arg_names, arguments, strict=False)) | named
            programs = 1
            for size in grid:
                programs *= size
            if target.gpu.backend == "hip":
                binary, used = b"", _of_amd(compiled.asm["amdgcn"], shared, warps)
            else:
                binary = compiled.asm["cubin"]
                used = _of_nvidia(binary, shared, warps)
            file = kernel.fn.__module__.rpartition(".")[2]
            taken.append((f"{file}.{kernel.fn.__name__}", given, programs, used, binary))
            return compiled

        JITFunction.run = run
        try:
            call()
        finally:
            JITFunction.run = usual
    return taken


@lru_cache(maxsize=512)
def _of_nvidia(binary: bytes, shared: int, warps: int) -> Resources:
    return resources(binary, shared, warps, CUOBJDUMP)


@lru_cache(maxsize=512)
def _of_amd(text: str, shared: int, warps: int) -> Resources:
    return resources_of_amd(text, shared, warps)
