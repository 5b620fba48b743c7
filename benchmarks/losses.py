"""Time and peak memory of a language model's loss: all logits at once, in torch's chunks, and in autofuse.ops' blocks.

    python benchmarks/losses.py --output benchmarks/results/losses.json

One step is the last linear layer, its cross entropy, and the gradients of both operands. Each variant is compared with
the first in interleaved pairs (docs/measuring.md).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autofuse
from autofuse import ops

# see benchmarks/README.md
STEADY_ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "8589934592"}
SIZES = ((1024, 256, 16_000), (512, 256, 1_000))  # rows, width, classes


class Whole(nn.Module):
    """All logits, and their cross entropy."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(classes, width) / width**0.5)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(F.linear(x, self.weight), target)


class InChunksOfTorch(Whole):
    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return F.linear_cross_entropy(x, self.weight, target, options=nn.LinearCrossEntropyOptions())


class InBlocks(Whole):
    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return ops.linear_cross_entropy(x, self.weight, target)


def step(model: nn.Module, inputs: tuple[Tensor, Tensor]) -> None:
    for t in (*model.parameters(), inputs[0]):
        t.grad = None
    model(*inputs).backward()


def compare(kind: type[Whole], size: tuple[int, int, int], options: argparse.Namespace) -> autofuse.Comparison:
    """Compares all logits at once with `kind`, with the same weight and inputs."""
    rows, width, classes = size
    torch.manual_seed(0)
    all_logits = Whole(width, classes).to(options.device)
    other = kind(width, classes).to(options.device)
    other.load_state_dict(all_logits.state_dict())
    x = torch.randn(rows, width, device=options.device).requires_grad_()
    target = torch.randint(0, classes, (rows,), device=options.device)
    return autofuse.compare(all_logits, other, (x, target), step, pairs=options.pairs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=Path, help="a JSON file for the result")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    kinds = {"torch, in chunks": InChunksOfTorch, "autofuse.ops": InBlocks}
    if not hasattr(F, "linear_cross_entropy"):
        del kinds["torch, in chunks"]
    results = []
    for size in SIZES:
        for name, kind in kinds.items():
            comparison = compare(kind, size, options)
            print(f"\n{size[0]} rows, width {size[1]}, {size[2]} classes: logits whole -> {name}\n{comparison}")
            results.append({"size": size, "after": name, **comparison.to_dict()})
    if options.output:
        settings = {k: v for k, v in vars(options).items() if k != "output"} | {"allocator": STEADY_ALLOCATOR}
        data = {"version": 1, "benchmark": "losses", "settings": settings, "results": results}
        options.output.write_text(json.dumps(data, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    if any(os.environ.get(name) != value for name, value in STEADY_ALLOCATOR.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **STEADY_ALLOCATOR})
    sys.exit(main())
