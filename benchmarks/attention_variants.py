"""Attention with mask arguments, shared heads, soft caps and sinks, against hand-written code, forward and backward.

    python -m benchmarks.attention_variants --output benchmarks/results/attention_variants.json

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
import torch.nn.functional as F
from torch import Tensor

import autofuse
from autofuse import ops
from autofuse.measure.environment import environment

STEADY_ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "8589934592"}
QUIET_PROFILER = {"KINETO_LOG_LEVEL": "6"}
_ENVIRONMENT = {**os.environ, **STEADY_ALLOCATOR, **QUIET_PROFILER}
SHAPES = ((1, 8, 2, 128), (1, 8, 2, 1024))  # batch, heads, heads of keys, length
WIDTH, CAP, SCALE = 64, 50.0, 0.125
Attend = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


def repeat_kv(x: Tensor, query: Tensor) -> Tensor:
    """repeat_kv of transformers."""
    b, g, s, d = x.shape
    times = query.shape[1] // g
    return x[:, :, None].expand(b, g, times, s, d).reshape(b, g * times, s, d)


def plain(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, sinks: Tensor) -> Tensor:
    scores = q @ repeat_kv(k, q).mT * SCALE + mask
    return F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype) @ repeat_kv(v, q)


def fused_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, sinks: Tensor) -> Tensor:
    return ops.attention(q, k, v, mask=mask, scale=SCALE, repeats=q.shape[1] // k.shape[1])


def soft_capped(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, sinks: Tensor) -> Tensor:
    scores = torch.tanh(q @ repeat_kv(k, q).mT * SCALE / CAP) * CAP + mask
    return F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype) @ repeat_kv(v, q)


def fused_soft_capped(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, sinks: Tensor) -> Tensor:
    times = q.shape[1] // k.shape[1]
    return ops.soft_capped_attention(q, k, v, cap=CAP, scale=SCALE / CAP, mask=mask, repeats=times)


def with_sinks(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, sinks: Tensor) -> Tensor:
    scores = q @ repeat_kv(k, q).mT * SCALE + mask
    both = torch.cat([scores, sinks.reshape(1, -1, 1, 1).expand(q.shape[0], -1, q.shape[-2], -1)], dim=-1)
    both = both - both.max(dim=-1, keepdim=True).values
    return F.softmax(both, dim=-1)[..., :-1] @ repeat_kv(v, q)


def fused_with_sinks(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, sinks: Tensor) -> Tensor:
    times = q.shape[1] // k.shape[1]
    return ops.sink_attention(q, k, v, sinks.view(1, -1, 1, 1), mask=mask, scale=SCALE, repeats=times)


CASES: dict[str, tuple[Attend, Attend]] = {
    "attention": (plain, fused_attention), "soft caps": (soft_capped, fused_soft_capped),
    "sinks": (with_sinks, fused_with_sinks),
}  # fmt: skip
WINDOWS = {"causal": 0, "window": 128}


def operands(shape: tuple[int, ...], window: int) -> tuple[Tensor, ...]:
    """Query, key, value, the mask that is added, and sinks."""
    b, h, g, t = shape
    q, k, v = (torch.randn(b, heads, t, WIDTH, requires_grad=True) for heads in (h, g, g))
    kept = torch.ones(t, t, dtype=torch.bool).tril()
    kept = kept.triu(1 - window) if window else kept
    mask = torch.zeros(b, 1, t, t).masked_fill(~kept, torch.finfo(torch.float32).min)
    return q, k, v, mask, torch.randn(h, requires_grad=True)


def step(attend: Attend, inputs: tuple[Tensor, ...]) -> None:
    """Forward and backward."""
    result = attend(*inputs)
    torch.autograd.grad(result, inputs[:3], result.detach())


def rows(count: int) -> Iterator[dict[str, object]]:
    for shape in SHAPES:
        for name, window in WINDOWS.items():
            for case, (written, ours) in CASES.items():
                result = autofuse.compare(written, ours, operands(shape, window), step, pairs=count)
                print(f"{case}, {name}, {shape}\n{result}\n", flush=True)
                yield {
                    "case": case, "mask": name, "shape": shape, "ratio": result.ratio,
                    "interval": [result.interval.low, result.interval.high], "verdict": result.verdict,
                    "before_peak_bytes": result.before_peak_bytes, "after_peak_bytes": result.after_peak_bytes,
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
        settings = {"pairs": options.pairs, "threads": options.threads}
        data = {"version": 1, "benchmark": "attention_variants", "settings": settings}
        data |= {"environment": environment(torch.device("cpu")), "rows": measured}
        options.output.write_text(json.dumps(data, indent=2) + "\n")
    return 0 if all(row["verdict"] in ("confirmed", "no-change") for row in measured) else 1


if __name__ == "__main__":
    if any(os.environ.get(name) != value for name, value in STEADY_ALLOCATOR.items()):  # read before Python begins
        os.execve(sys.executable, [sys.executable, "-m", "benchmarks.attention_variants", *sys.argv[1:]], _ENVIRONMENT)
    sys.exit(main())
