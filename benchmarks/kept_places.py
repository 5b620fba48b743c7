"""Checks that `optimize` does not keep a fused site that gains nothing, or that is slower on purpose.

    python -m benchmarks.kept_places --output benchmarks/results/kept_places.json
    python -m benchmarks.kept_places --rounds 3
    python -m benchmarks.kept_places --layers 16 --output benchmarks/results/kept_places-16.json

A small model has hand-written layer norms. In one half of the rounds, the fused layer norm computes the model's own
formula, so that fusing changes nothing. In the other half it computes the formula twice. Each round optimizes a new
model, with an empty cache of timings. A site is kept wrongly if it is fused in training or inference. The script also
counts the rounds with torch's layer norm, which is faster and has to be kept. Exits with 1 if a site is kept wrongly.

With more than two layers, steps count as long, so that a few of the equal layers are timed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import autofuse
from autofuse import ops
from autofuse.fx.session import remembered_times, whole_step
from autofuse.measure.environment import environment

SHAPE, RULE = (16, 128, 256), "AF201"
Norm = Callable[..., Tensor]


class HandNorm(nn.Module):
    """A hand-written layer norm."""

    def __init__(self) -> None:
        super().__init__()
        width = SHAPE[-1]
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        mean, variance = x.mean(-1, keepdim=True), x.var(-1, unbiased=False, keepdim=True)
        return (x - mean) / torch.sqrt(variance + 1e-5) * self.weight + self.bias


class Layer(nn.Module):
    """A hand-written norm after a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(SHAPE[-1], SHAPE[-1]), HandNorm()

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.linear(x))  # type: ignore[no-any-return]


class Model(nn.Module):
    """Equal layers."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def same(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """The model's own formula."""
    mean, variance = x.mean(-1, keepdim=True), x.var(-1, unbiased=False, keepdim=True)
    return (x - mean) / torch.sqrt(variance + eps) * weight + bias


def slower(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """The formula, computed twice."""
    return torch.lerp(same(x, weight, bias, eps), same(x, weight, bias, eps), 0.5)


KINDS: dict[str, Norm | None] = {"same": same, "slower": slower, "faster": None}


@contextmanager
def fused_norm(norm: Norm | None) -> Iterator[None]:
    """In the block, fused layer norms run `norm`. None changes nothing."""
    before = ops.layer_norm
    try:
        if norm is not None:
            ops.layer_norm = norm  # type: ignore[assignment]
        yield
    finally:
        ops.layer_norm = before


def kept_sites(kind: str, seed: int, layers: int) -> list[str]:
    """The reports of the sites that `optimize` keeps in a new model."""
    torch.manual_seed(seed)
    with tempfile.TemporaryDirectory() as folder, fused_norm(KINDS[kind]):
        os.environ["AUTOFUSE_CACHE_DIR"] = folder
        remembered_times.forget()
        model = Model(layers)
        autofuse.optimize(model, torch.randn(SHAPE))
        sites = [s for s in autofuse.report(model) if s.rule == RULE]
    assert len(sites) == layers, "all norms are sites"
    return [f"{s.module}: {s.reason}" for s in sites if s.status == "fused"]


def measure(rounds: int, layers: int) -> dict[str, Any]:
    """The rounds of each kind in which a site was kept, with the reasons."""
    rows: dict[str, Any] = {}
    for kind in KINDS:
        found = [kept_sites(kind, seed, layers) for seed in range(rounds)]
        rows[kind] = {"rounds": rounds, "kept": sum(map(bool, found)), "reasons": [r for kept in found for r in kept]}
    return rows


def main() -> int:
    """Measures, prints and writes the result. Returns 1 if a site is kept wrongly."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    if options.layers > 2:
        whole_step.LONGEST = 0.0
    load = [os.getloadavg()[0]]
    rows = measure(options.rounds, options.layers)
    load.append(os.getloadavg()[0])
    for kind, row in rows.items():
        print(f"{kind}: {row['kept']} of {row['rounds']} kept")
    if options.output:
        about = {"environment": environment(torch.device("cpu")), "load": load, "layers": options.layers, "kinds": rows}
        options.output.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    return int(any(rows[kind]["kept"] for kind in ("same", "slower")))


if __name__ == "__main__":
    sys.exit(main())
