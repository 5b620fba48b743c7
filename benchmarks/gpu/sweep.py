"""Times launch configurations of row kernels on a GPU: the evidence for the constants in autofuse/kernels/triton.

    python -m benchmarks.gpu.sweep --compile --share 0 8    compiles a share of them into Triton's cache
    python -m benchmarks.gpu.sweep --output sweep.json      times all of them, one after another
    python -m benchmarks.gpu.sweep --only stages            only configurations whose name contains a text

Each configuration replaces constants of a kernel's module. A time is the median of calls with a cold cache, by the
GPU's clock. Results are compared with those of the configuration in use, and a difference beyond rounding is noted.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from autofuse.kernels.triton import activations, cross_entropy, cross_entropy_in_place, norm, softmax
from autofuse.measure.device_timing import CudaClock
from benchmarks.gpu.store import environment_of
from tools.ahead.predict_cases import cases

_ENTRIES = 2**26
_RUNS = 14


@dataclass(frozen=True)
class Configuration:
    """A call of tools/ahead/predict_cases.py at a width, and replaced constants: (module, name, value) each."""

    case: str
    width: int
    name: str
    replaced: tuple[tuple[Any, str, Any], ...] = ()


def configurations() -> Iterator[Configuration]:
    """All of them. The one in use, "now", is first for each call and width."""
    for found in (_losses(), _softmaxes(), _norm_gradients(), _activations(), _norms()):
        yield from found


def _norms() -> Iterator[Configuration]:
    for case in ("RMS norm", "add + RMS norm", "layer norm", "dropout + add + layer norm"):
        for width in (4096, 5120, 8192, 11008, 16384):
            yield Configuration(case, width, "now")
            block = 1 << (width - 1).bit_length()
            for each in (16, 32) if width in (4096, 11008) else ():
                whole = ((norm, "_tile", _constant((1, block, block // each))),)
                yield Configuration(case, width, f"whole row, {block // each} threads", whole)
            for chunk in (4096, 8192) if width == 11008 else ():
                wide = (norm, "_WIDEST", 8192), (norm, "_tile", _constant((1, chunk, 512)))
                yield Configuration(case, width, f"chunks of {chunk}, 512 threads", wide)


def _norm_gradients() -> Iterator[Configuration]:
    for case in _NORM_GRADIENTS:
        for width in (768, 1024, 2048, 4096, 5120, 8192, 11008, 16384):
            yield Configuration(case, width, "now")
            block = 1 << (width - 1).bit_length()
            for tall in (1, 2, 4) if block <= 1024 else (1,):
                for each in (8, 16) if block <= 1024 else (16,):
                    for programs in (4, 8, 16) if block <= 1024 else (1, 2):
                        threads = tall * block // each
                        if 64 <= threads <= 1024:
                            yield _norm_gradient(case, width, tall, block, threads, programs)
            yield from _pipelined_norm_gradients(case, width, block)
            if width > 8192:
                for chunk, threads in ((2048, 256), (4096, 512), (8192, 512)):
                    wide = (
                        (norm, "_WIDEST", 8192),
                        (norm, "_backward_tile", _constant(norm.BackwardTile(1, chunk, threads))),
                    )
                    yield Configuration(case, width, f"chunks of {chunk}, {threads} threads", wide)


def _pipelined_norm_gradients(case: str, width: int, block: int) -> Iterator[Configuration]:
    for tall in (1, 2) if block <= 1024 else (1,):
        for each in (8, 16) if block <= 4096 else (16,):
            for programs in (4, 8, 16) if block <= 1024 else (2, 4) if block == 2048 else (1, 2):
                for stages in (2, 3):
                    threads = tall * block // each
                    if 64 <= threads <= 1024:
                        yield _norm_gradient(case, width, tall, block, threads, programs, stages)


_NORM_GRADIENTS = (
    "RMS norm, backward", "add + RMS norm, backward", "layer norm, backward", "dropout + add + layer norm, backward",
)  # fmt: skip


def _norm_gradient(
    case: str, width: int, tall: int, block: int, threads: int, programs: int, stages: int = 1
) -> Configuration:
    tile = norm.BackwardTile(tall, block, threads, stages, programs)
    replaced = (
        (norm, "_WIDEST_WITH_MORE", 16384), (norm, "_backward_tile", _constant(tile)),
        (norm, "_tile_ahead", _constant(None)), (norm, "_registers", _constant(0)),
    )  # fmt: skip
    name = f"{tall} rows, {threads} threads, {programs} programs each" + _stages_named(stages)
    return Configuration(case, width, name, replaced)


def _stages_named(stages: int) -> str:
    return f", {stages} stages" if stages > 1 else ""


def _activations() -> Iterator[Configuration]:
    for width in (3072, 11008):
        yield Configuration("bias + GELU", width, "now")
        yield Configuration("bias + GELU, backward", width, "now")
        for rows in (1, 2, 4):  # the backward pass halves them
            for threads in (128, 256):
                for waves in (8, 16):
                    replaced = (
                        (activations, "tile", _constant((rows, 1024))), (activations, "THREADS", threads),
                        (activations, "_WAVES", waves),
                    )  # fmt: skip
                    name = f"{max(rows // 2, 1)} rows of 1024, {threads} threads, {waves} waves"
                    yield Configuration("bias + GELU, backward", width, name, replaced)


def _softmaxes() -> Iterator[Configuration]:
    for case in ("softmax", "softmax, backward"):
        for width in (5120, 11008, 16384):
            yield Configuration(case, width, "now")
            for threads in (256, 512, 1024):
                replaced = (softmax, "_WHOLE", 16384), (softmax, "_threads", _constant(threads))
                yield Configuration(case, width, f"whole row, {threads} threads", replaced)


def _losses() -> Iterator[Configuration]:
    names = {"cross entropy": cross_entropy, "cross entropy with its gradient, in place": cross_entropy_in_place}
    for case, module in names.items():
        for width in (1024, 4096, 16384, 128256):
            yield Configuration(case, width, "now")
            for block in (1024, 4096, 8192, 16384):
                for each in (8, 16, 32):
                    threads = block // each
                    if 64 <= threads <= 1024 and block < 2 * width:
                        replaced = ((module, "_block", _constant((block, threads))),)
                        yield Configuration(case, width, f"blocks of {block}, {threads} threads", replaced)


def _constant(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


@contextmanager
def _with_constants(configuration: Configuration) -> Iterator[None]:
    before = [(module, name, getattr(module, name)) for module, name, _ in configuration.replaced]
    try:
        for module, name, value in configuration.replaced:
            setattr(module, name, value)
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


def _sample(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    if dtype is torch.int64:
        return torch.ones(shape, dtype=dtype, device="cuda")
    generator = torch.Generator("cuda").manual_seed(sum(shape))
    return torch.rand(shape, generator=generator, device="cuda").add_(0.5).to(dtype)


def _chosen_configurations(only: str) -> list[Configuration]:
    return [c for c in configurations() if only in c.name or c.name == "now"]


def _compile(share: int, of: int, only: str) -> None:
    for configuration in _chosen_configurations(only)[share::of]:
        call = cases(configuration.width, 2**20, _sample)[configuration.case]
        try:
            with _with_constants(configuration):
                call()
        except Exception as error:
            print(configuration.case, configuration.width, configuration.name, type(error).__name__, flush=True)


def _measure(budget: float, only: str) -> list[dict[str, Any]]:
    clock, rows, end = CudaClock(torch.device("cuda")), list[dict[str, Any]](), time.monotonic() + budget
    called: tuple[str, int] | None = None
    expected: list[Tensor] = []
    for configuration in _chosen_configurations(only):
        if time.monotonic() > end:
            break
        key = configuration.case, configuration.width
        if key != called:
            called, call = key, cases(configuration.width, _ENTRIES, _sample)[configuration.case]
        row = {"case": configuration.case, "width": configuration.width, "configuration": configuration.name}
        try:
            with _with_constants(configuration):
                results = _tensors(call())
                if configuration.name == "now":
                    expected = results
                host = min(clock.host_seconds(call) for _ in range(3))
                found = sorted(clock.device_seconds(call, host) for _ in range(_RUNS))
            in_place = "in place" in configuration.case  # it overwrites its operand
            row |= {"seconds": found[len(found) // 2], "equal": in_place or _agree(results, expected)}
        except Exception as error:
            row |= {"failed": f"{type(error).__name__}: {error}"[:150]}
        rows.append(row)
    return rows


def _tensors(result: Any) -> list[Tensor]:
    return [t for t in (result if isinstance(result, tuple) else (result,)) if isinstance(t, Tensor)]


def _agree(results: list[Tensor], expected: list[Tensor]) -> bool:
    """Whether tensors differ by no more than a rounding of bf16, relative to the largest value."""
    pairs = zip(results, expected, strict=True)
    return all(bool((a.float() - b.float()).abs().max() <= 2**-7 * b.float().abs().max()) for a, b in pairs)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compile", action="store_true", help="only compile")
    parser.add_argument("--share", type=int, nargs=2, default=(0, 1), metavar=("NUMBER", "OF"))
    parser.add_argument("--budget", type=float, default=600.0, help="seconds after which no configuration is timed")
    parser.add_argument("--only", default="", metavar="TEXT", help="only configurations whose name contains this")
    parser.add_argument("--output", default="sweep.json")
    options = parser.parse_args(argv)
    if options.compile:
        _compile(*options.share, options.only)
        return 0
    rows = _measure(options.budget, options.only)
    with open(options.output, "w") as file:
        json.dump({"environment": environment_of(torch.device("cuda")), "rows": rows}, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
