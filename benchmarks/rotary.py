"""Rotary embeddings, forward and backward: `autofuse.ops.rotary` against the code of models.

    python benchmarks/rotary.py --output benchmarks/results/rotary.json

Measured as docs/measuring.md describes: interleaved pairs in random order, with an A/A control. The script starts
itself again with higher glibc thresholds for large blocks, as demo.py does and explains.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

import autofuse
from autofuse import ops
from autofuse.measure.environment import environment

STEADY_ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "8589934592"}
QUIET_PROFILER = {"KINETO_LOG_LEVEL": "6"}
SHAPES = ((4, 8, 512, 64), (1, 32, 1024, 128))  # batch, heads, length, head_dim
DTYPES = (torch.float32, torch.bfloat16)
Rotate = Callable[..., Tensor]


def halves(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def pairs(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return x * cos + torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2) * sin


def rotary_of_pairs(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return ops.rotary(x, cos, sin, interleaved=True)


CASES: dict[str, tuple[Rotate, Rotate]] = {"halves": (halves, ops.rotary), "pairs": (pairs, rotary_of_pairs)}


def operands(layout: str, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """x as attention has it, with heads moved before positions, and angles that both entries of a pair share."""
    batch, heads, length, dim = shape
    half = torch.outer(torch.arange(length).float(), 10000.0 ** -(torch.arange(0, dim, 2) / dim))
    angles = torch.cat((half, half), -1) if layout == "halves" else half.repeat_interleave(2, -1)
    x = torch.randn(batch, length, heads, dim, dtype=dtype).transpose(1, 2)
    return x.requires_grad_(), angles.cos().to(dtype), angles.sin().to(dtype)


def step(rotate: Rotate, inputs: tuple[Tensor, Tensor, Tensor]) -> None:
    """Forward and backward."""
    result = rotate(*inputs)
    torch.autograd.grad(result, inputs[0], result.detach())


def rows(count: int) -> Iterator[dict[str, object]]:
    for dtype in DTYPES:
        for shape in SHAPES:
            for layout, (written, fused) in CASES.items():
                result = autofuse.compare(written, fused, operands(layout, shape, dtype), step, pairs=count)
                print(f"{layout}, {tuple(shape)}, {dtype}\n{result}\n", flush=True)
                yield {
                    "layout": layout, "shape": shape, "dtype": str(dtype).removeprefix("torch."),
                    "ratio": result.ratio, "interval": [result.interval.low, result.interval.high],
                    "verdict": result.verdict, "before_peak_bytes": result.before_peak_bytes,
                    "after_peak_bytes": result.after_peak_bytes,
                }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=Path, help="a JSON file for the result")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    measured = list(rows(options.pairs))
    if options.output:
        data = {"version": 1, "benchmark": "rotary", "settings": {"pairs": options.pairs, "threads": options.threads}}
        data |= {"environment": environment(torch.device("cpu")), "rows": measured}
        options.output.write_text(json.dumps(data, indent=2) + "\n")
    return 0 if all(row["verdict"] in ("confirmed", "no-change") for row in measured) else 1


if __name__ == "__main__":
    if any(os.environ.get(name) != value for name, value in STEADY_ALLOCATOR.items()):  # read before Python begins
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **STEADY_ALLOCATOR, **QUIET_PROFILER})
    sys.exit(main())
