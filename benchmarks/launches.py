"""Microseconds of Python for each call of an operation, compared with Liger and torch.compile's wrapper.

    python -m benchmarks.launches --output benchmarks/results/launches.json [--with FOLDER]
    python -m benchmarks.launches --device cuda --output benchmarks/results/gpu-h100/launches.json

`forward` is a call whose gradient is recorded. `step` adds torch.autograd.grad of its result, most of which is torch's
autograd engine; `engine` is the same for an autograd.Function that does nothing. `chained` is one of ten calls in a
row, forward and backward, as in a model. Times are the least of many repeats.

On a CPU, no GPU is needed: kernels are chosen, compiled and their arguments bound as on a GPU, but the driver launches
nothing. Times are CPU time of one thread. torch.compile's numbers include the kernel for a CPU, which takes a
microsecond or two at this size. On a GPU, kernels run, on tensors so small that the GPU waits for the host. Times are
wall-clock times of 40 calls in a row until the GPU is done.

--with: a folder that contains liger_kernel (pip install --no-deps --target FOLDER liger-kernel packaging).
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from autofuse import ops
from autofuse.kernels import policy
from autofuse.kernels.operation import OPERATIONS
from autofuse.measure.environment import environment

CHAIN = 10
Operands = tuple[Tensor, ...]
Call = Callable[..., Any]  # takes the operands, and returns as many results of the same shapes
OPERATION_NAMES = ("rms_norm", "gated_product", "rotary", "rotary_pair")


def main(argv: list[str] | None = None) -> int:
    options = _options(argv)
    if os.environ.get("TRITON_INTERPRET", "0") == "1":
        print("TRITON_INTERPRET=1 is set, so kernels are interpreted and not launched. Unset it.", file=sys.stderr)
        return 2
    torch.set_num_threads(1)
    sys.path += [str(folder) for folder in options.more]
    rows: dict[str, dict[str, dict[str, float]]] = {}
    device = torch.device(options.device)
    with as_on_a_gpu(device), torch.enable_grad():
        for name, (operands, ways) in cases(options.compile, device).items():
            rows[name] = {way: time_call(call, operands) for way, call in ways.items()}
            for way, times in rows[name].items():
                print(f"{name:14s} {way:14s} " + "  ".join(f"{k} {v:6.1f}" for k, v in times.items()), flush=True)
    if options.output:
        environment_with_load = environment(device) | {"load": f"{os.getloadavg()[0]:.1f}"}
        data = {"version": 1, "environment": environment_with_load, "unit": "microseconds", "rows": rows}
        options.output.write_text(json.dumps(data, indent=2) + "\n")
    return 0


def cases(compiles: bool, device: torch.device) -> dict[str, tuple[Operands, dict[str, Call]]]:
    """For each operation, the tensors of the call and the ways to compute it."""
    draw = partial(torch.randn, dtype=torch.bfloat16, device=device)
    x, up = draw(2, 4, 64).requires_grad_(), draw(2, 4, 64).requires_grad_()
    q, weight = draw(1, 4, 16, 64).requires_grad_(), draw(64).requires_grad_()
    angles, k = draw(16, 64), draw(1, 2, 16, 64).requires_grad_()
    plain: dict[str, tuple[Operands, Call, Call]] = {
        "rms_norm": ((x,), lambda x: ops.rms_norm(x, weight), lambda x: F.rms_norm(x, (64,), weight)),
        "gated_product": ((x,), lambda x: ops.gated_product(x, up), lambda x: F.silu(x) * up),
        "rotary": ((q,), lambda q: ops.rotary(q, angles, angles), lambda q: _rotate(q, angles)),
        "rotary_pair": (
            (q, k),
            lambda q, k: ops.rotary_pair(q, k, angles, angles),
            lambda q, k: (_rotate(q, angles), _rotate(k, angles)),
        ),
    }
    liger = _liger(weight, up, angles[None])
    all_ways: dict[str, tuple[Operands, dict[str, Call]]] = {"engine": ((x,), {"torch": _Nothing.apply})}
    for name, (operands, ours, by_torch) in plain.items():
        ways = {"autofuse": ours, "torch": by_torch} | ({"liger": liger[name]} if name in liger else {})
        if name == "rotary_pair":
            ways["autofuse, two calls"] = lambda q, k: (ops.rotary(q, angles, angles), ops.rotary(k, angles, angles))
        all_ways[name] = (
            operands,
            ways | ({"torch.compile": torch.compile(by_torch, dynamic=False)} if compiles else {}),
        )
    return all_ways


def time_call(call: Call, operands: Operands) -> dict[str, float]:
    """Microseconds of one call: forward, with its backward pass, and in a row of ten with the backward pass."""
    gradients = [torch.ones_like(x) for x in operands]
    least = _least_on_gpu if operands[0].is_cuda else _least_seconds

    def step(calls: int) -> None:
        results = operands
        for _ in range(calls):
            made = call(*results)
            results = made if isinstance(made, tuple) else (made,)
        torch.autograd.grad(results, operands, gradients)

    return {
        "forward": least(lambda: call(*operands)),
        "step": least(lambda: step(1)),
        "chained": round(least(lambda: step(CHAIN)) / CHAIN, 2),
    }


def _least_seconds(action: Callable[[], object], calls: int = 40, repeats: int = 60) -> float:
    for _ in range(3 * calls):
        action()
    times = []
    for _ in range(repeats):
        start = time.thread_time()
        for _ in range(calls):
            action()
        times.append((time.thread_time() - start) / calls)
    return round(min(times) * 1e6, 2)


def _least_on_gpu(action: Callable[[], object], calls: int = 40, repeats: int = 20) -> float:
    for _ in range(calls):
        action()
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            action()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / calls)
    return round(min(times) * 1e6, 2)


@contextmanager
def as_on_a_gpu(device: torch.device) -> Iterator[None]:
    """In the block, our Triton kernels take tensors of any size. On a CPU, they are compiled but not launched."""
    before = {n: (OPERATIONS[n].providers, OPERATIONS[n].least) for n in OPERATION_NAMES}
    for name in OPERATION_NAMES:
        operation = OPERATIONS[name]
        ours = (replace(p, devices=("cpu", "cuda")) for p in operation.providers if p.name == "triton")
        operation.providers, operation.least = (*ours, operation.torch), 0
        operation.forget()
    try:
        with policy.using(launch_bound=False), nullcontext() if device.type == "cuda" else without_launches():
            yield
    finally:
        for name, (providers, least) in before.items():
            OPERATIONS[name].providers, OPERATIONS[name].least = providers, least
            OPERATIONS[name].forget()


@contextmanager
def without_launches() -> Iterator[None]:
    """In the block, Triton compiles kernels for an H100 that is not there, and launches none."""
    from tools.ahead.absent import absent
    from tools.ahead.targets import TARGETS

    with absent(TARGETS[90].gpu, 0) as driver:
        driver.launcher_cls = lambda source, metadata: _launch_nothing  # type: ignore[method-assign]
        yield


def _launch_nothing(*arguments: Any) -> None:
    """Takes the place of the function that launches a compiled kernel."""


class _Nothing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


def _rotate(x: Tensor, angles: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * angles + torch.cat((-second, first), -1) * angles


def _liger(weight: Tensor, up: Tensor, angles: Tensor) -> dict[str, Call]:
    """Liger's functions for the same operations, if it is installed. Its rotary takes query and key together."""
    try:
        norm = importlib.import_module("liger_kernel.ops.rms_norm").LigerRMSNormFunction
        product = importlib.import_module("liger_kernel.ops.swiglu").LigerSiLUMulFunction
        rope = importlib.import_module("liger_kernel.ops.rope").LigerRopeFunction
    except ImportError:
        return {}
    return {
        "rms_norm": lambda x: norm.apply(x, weight, 1e-6, 0.0, "llama", False),
        "gated_product": lambda x: product.apply(x, up),
        "rotary_pair": lambda q, k: rope.apply(q, k, angles, angles),
    }


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.launches", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--output", type=Path, help="a JSON file for the results")
    parser.add_argument("--with", dest="more", type=Path, nargs="+", default=[], help="folders of packages")
    parser.add_argument("--no-compile", dest="compile", action="store_false", help="leave torch.compile out")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
