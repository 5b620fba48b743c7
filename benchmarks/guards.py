"""What the guards of an optimized module cost in a call: the module against the same fused call written by hand.

    python benchmarks/guards.py --output benchmarks/results/guards.json

The inputs are tiny, so that a call is nearly all overhead. Both run in alternating rounds; a round's time is the mean
of many calls, and the figure is the difference of the medians of the rounds, in microseconds a call. It holds the
guards and what `autofuse.ops` adds to the torch function that it calls.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autofuse
from autofuse.measure.environment import environment


class Gelu(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


class FusedGelu(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(x, approximate="tanh")


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = nn.Parameter(torch.ones(8)), nn.Parameter(torch.zeros(8)), 1e-5

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(-1, keepdim=True)
        variance = x.var(-1, unbiased=False, keepdim=True)
        return (x - mean) / torch.sqrt(variance + self.eps) * self.weight + self.bias


class FusedNorm(Norm):
    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, (8,), self.weight, self.bias, self.eps)


class Attention(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        weights = torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.size(-1)), dim=-1)
        return weights @ v


class FusedAttention(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v)


CASES: dict[str, tuple[type[nn.Module], type[nn.Module], int]] = {
    "gelu": (Gelu, FusedGelu, 1),
    "layer norm": (Norm, FusedNorm, 1),
    "attention": (Attention, FusedAttention, 3),
}


Call = Callable[[], object]


def microseconds(first: Call, second: Call, rounds: int, calls: int) -> tuple[float, float]:
    """The median round of each, in microseconds a call; which goes first in a round is left to chance."""
    times: tuple[list[float], list[float]] = ([], [])
    order = random.Random(0)
    for _ in range(rounds):
        for which in order.sample((0, 1), 2):
            call = (first, second)[which]
            start = time.perf_counter()
            for _ in range(calls):
                call()
            times[which].append((time.perf_counter() - start) / calls * 1e6)
    return median(times[0][rounds // 10 :]), median(times[1][rounds // 10 :])


def measured(name: str, rounds: int, calls: int) -> dict[str, float]:
    """One case. Raises RuntimeError if its module was not fused: there would be no guard to measure."""
    written, by_hand, count = CASES[name]
    inputs = tuple(torch.randn(1, 1, 2, 8) for _ in range(count))
    module = autofuse.optimize(copy.deepcopy(written()), inputs).eval()
    if not any(site.status == "fused" for site in autofuse.report(module).sites):
        raise RuntimeError(f"The module for {name!r} was not fused:\n{autofuse.report(module)}")
    fused = by_hand().eval()
    with torch.no_grad():
        optimized, hand = microseconds(lambda: module(*inputs), lambda: fused(*inputs), rounds, calls)
    return {"optimized": optimized, "by_hand": hand, "overhead": optimized - hand}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--calls", type=int, default=500)
    parser.add_argument("--output", type=Path, help="a JSON file for the result")
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = {name: measured(name, options.rounds, options.calls) for name in CASES}
    print(f"{'microseconds a call':>20} {'optimized':>10} {'by hand':>10} {'overhead':>10}")
    for name, row in results.items():
        print(f"{name:>20} {row['optimized']:10.2f} {row['by_hand']:10.2f} {row['overhead']:10.2f}")
    if options.output:
        data = {"version": 1, "benchmark": "guards", "microseconds_a_call": results}
        data["environment"] = environment(torch.device("cpu"))
        options.output.write_text(json.dumps(data, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
