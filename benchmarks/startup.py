"""Time to the first training step against torch.compile: with cold caches, and in a second process with warm ones.

    python -m benchmarks.startup --output benchmarks/results/startup.json
    python -m benchmarks.startup --only 4x128 --rounds 1

Each start is its own process, with TORCHINDUCTOR_CACHE_DIR and AUTOFUSE_CACHE_DIR in a temporary folder. The second
start uses the folder of the first. Both ways take turns. A time begins when the model exists and ends after its first
forward and backward. It includes imports that either way needs, but not `import torch`. Targets: at most half of
torch.compile's time when cold, at most its time when warm; 48 layers take at most 1.5 times as long as 4.

The processor time includes compilers. On a busy machine it says more than the wall clock, if OMP_NUM_THREADS is 1:
threads that wait for each other use processor time too.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from autofuse.measure.environment import environment

OURS, COMPILED = "autofuse", "torch.compile"
SIZES = ("4x128", "48x128", "4x1024", "48x1024")  # layers x length
WIDTH, HEADS, VOCABULARY, BATCH = 256, 8, 5000, 4
_LIMIT = 1800  # seconds for one start


class Norm(nn.Module):
    """A hand-written layer norm."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        mean, variance = x.mean(-1, keepdim=True), x.var(-1, unbiased=False, keepdim=True)
        return self.weight * (x - mean) / torch.sqrt(variance + 1e-5) + self.bias


class Attention(nn.Module):
    """Hand-written causal attention."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.joint, self.out, self.dropout = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), nn.Dropout(0.1)
        self.register_buffer("mask", torch.tril(torch.ones(length, length)).view(1, 1, length, length))

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = (p.view(b, t, HEADS, c // HEADS).transpose(1, 2) for p in self.joint(x).split(c, 2))
        scores = q @ k.transpose(-2, -1) / math.sqrt(k.size(-1))
        mask: Tensor = self.get_buffer("mask")
        scores = scores.masked_fill(mask[:, :, :t, :t] == 0, float("-inf"))
        y = self.dropout(torch.softmax(scores, -1)) @ v
        result: Tensor = self.out(y.transpose(1, 2).contiguous().view(b, t, c))
        return result


class Gelu(nn.Module):
    """A hand-written tanh GELU."""

    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


class Block(nn.Module):
    """Attention and an MLP, each after a norm."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.norm1, self.attention, self.norm2 = Norm(), Attention(length), Norm()
        self.up, self.gelu, self.down = nn.Linear(WIDTH, 4 * WIDTH), Gelu(), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        result: Tensor = x + self.down(self.gelu(self.up(self.norm2(x))))
        return result


class Model(nn.Module):
    """A small GPT of `layers` equal blocks."""

    def __init__(self, layers: int, length: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block(length) for _ in range(layers))
        self.norm, self.head = Norm(), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        result: Tensor = self.head(self.norm(x))
        return result


def start(way: str, size: str) -> dict[str, float]:
    """Seconds to the first step in this process: wall clock, and processor time with that of compilers."""
    layers, length = map(int, size.split("x"))
    torch.manual_seed(0)
    model, ids = Model(layers, length), torch.randint(0, VOCABULARY, (BATCH, length))
    started_at, cpu_before = time.perf_counter(), _processor_seconds()
    if way == COMPILED:
        torch.compile(model)(ids).sum().backward()
    else:
        from autofuse import optimize  # its imports are part of the time

        optimize(model, ids)
        model(ids).sum().backward()
    return {"seconds": time.perf_counter() - started_at, "processor": _processor_seconds() - cpu_before}


def _processor_seconds() -> float:
    """The processor time of this process and of its children that have ended."""
    return sum(os.times()[:4])


def start_in_process(way: str, size: str, folder: str) -> dict[str, float]:
    """`start` in its own process, with caches in `folder`. Raises CalledProcessError and TimeoutExpired."""
    caches = {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor", "AUTOFUSE_CACHE_DIR": f"{folder}/autofuse"}
    command = [sys.executable, "-m", "benchmarks.startup", "--start", way, "--only", size]
    process = subprocess.run(command, env={**os.environ, **caches}, stdout=subprocess.PIPE, check=True, timeout=_LIMIT)
    found: dict[str, float] = json.loads(process.stdout.splitlines()[-1])
    return found


def measure(size: str, rounds: int) -> dict[str, Any]:
    """Cold and warm starts of both ways, interleaved."""
    times: dict[str, list[dict[str, float]]] = {f"{way} {kind}": [] for way in (OURS, COMPILED) for kind in KINDS}
    for place in range(rounds):
        for way in (OURS, COMPILED) if place % 2 == 0 else (COMPILED, OURS):
            with tempfile.TemporaryDirectory() as folder:
                for kind in KINDS:
                    times[f"{way} {kind}"].append({**start_in_process(way, size, folder), "load": os.getloadavg()[0]})
    row: dict[str, Any] = {"size": size}
    for clock, ratios in (("seconds", "ratios"), ("processor", "processor_ratios")):
        row[clock] = {name: median(t[clock] for t in runs) for name, runs in times.items()}
        row[ratios] = {kind: row[clock][f"{OURS} {kind}"] / row[clock][f"{COMPILED} {kind}"] for kind in KINDS}
    return {**row, "runs": times}


KINDS = ("cold", "warm")


def main() -> int:
    """Measures, prints and writes the result. Returns 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=SIZES, action="append")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--start", choices=(OURS, COMPILED), help="one start in this process")
    options = parser.parse_args()
    if options.start:
        print(json.dumps(start(options.start, options.only[0])))
        return 0
    rows = []
    for size in options.only or SIZES:
        rows.append(measure(size, options.rounds))
        text = ", ".join(f"{name} {s:.1f} s" for name, s in rows[-1]["seconds"].items())
        print(f"{size}: {text}; ratios {', '.join(f'{k} {r:.2f}' for k, r in rows[-1]['ratios'].items())}", flush=True)
    if options.output:
        about = {"environment": environment(torch.device("cpu")), "rounds": options.rounds, "rows": rows}
        options.output.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    return int(any(row["ratios"]["cold"] > 0.5 or row["ratios"]["warm"] > 1 for row in rows))


if __name__ == "__main__":
    sys.exit(main())
