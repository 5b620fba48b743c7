"""Whole steps of hand-written models on a CPU: autofuse against eager and torch.compile, in time and peak memory.

    python -m benchmarks.models --output benchmarks/results/models-cpu.json
    python -m benchmarks.models --only llama --mode inference

The demo's model and those of examples/, larger than toys and smaller than on a GPU. All three ways run in one process
in interleaved rounds, each on its own copy. In training all have the same AdamW(fused=True), so that only the model
differs. The ratio is the time of the faster of the other two over that of autofuse. Target: 1 within the noise, and no
more peak memory than the least of the others. Exits with 1 if a whole interval is below 0.97.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autofuse
from autofuse.demo import gpt as demo
from autofuse.measure.environment import environment
from autofuse.measure.memory import measure_peak_memory
from benchmarks.rounds import STEADY_ALLOCATOR, Action, time_in_rounds, with_steady_allocator
from examples import bert, gpt, llama, vit

OURS, EAGER, COMPILED = "autofuse", "eager", "torch.compile"
TARGET = 0.97
CPU = torch.device("cpu")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
Row = dict[str, Any]


@dataclass(frozen=True)
class Example:
    """A model and its inputs. `classes` is the number of classes for each position, or for each image."""

    build: Callable[[], nn.Module]
    inputs: Callable[[], tuple[Tensor, ...]]
    classes: int


def _ids(batch: int, length: int, classes: int) -> Tensor:
    return torch.randint(2, classes, (batch, length))


def _padded_inputs(batch: int, length: int, classes: int) -> tuple[Tensor, Tensor]:
    """Ids, and a mask with 0 on the last quarter of every other row."""
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[::2, -length // 4 :] = 0
    return _ids(batch, length, classes), mask


EXAMPLES: Mapping[str, Example] = MappingProxyType(
    {
        "demo": Example(
            lambda: demo.GPT(demo.Config(vocab_size=65, block_size=512, dropout=0.0)), lambda: (_ids(4, 512, 65),), 65
        ),
        "gpt": Example(
            lambda: gpt.GPT(gpt.Config(length=256, width=384, heads=6, layers=4)),
            lambda: (_ids(4, 256, len(gpt.ALPHABET)),), len(gpt.ALPHABET),
        ),
        "bert": Example(
            lambda: bert.Bert(bert.Config(numbers=998, length=256, width=384, heads=6, layers=4, inner=1536)),
            lambda: _padded_inputs(4, 256, 1000), 1000,
        ),
        "llama": Example(
            lambda: llama.Llama(
                llama.Config(
                    vocabulary=1000, length=256, dim=384, hidden_dim=1024, n_heads=6, n_kv_heads=2, n_layers=4
                )
            ),
            lambda: (_ids(4, 256, 1000),), 1000,
        ),
        "vit": Example(
            lambda: vit.ViT(vit.Config(side=64, patch=4, dim=384, heads=6, depth=4, mlp_dim=1536)),
            lambda: (torch.randn(4, 64, 64),), len(vit.SHAPES),
        ),
    }
)  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    torch.set_num_threads(options.threads)
    rows = []
    for name in options.only or EXAMPLES:
        for dtype in options.dtype:
            for mode in options.mode:
                rows.append(row(name, dtype, mode, options.seconds))
                print(as_text(rows[-1]), flush=True)
    if options.output:
        settings = {k: v for k, v in vars(options).items() if k != "output"} | {"allocator": STEADY_ALLOCATOR}
        data = {"version": 1, "benchmark": "models-cpu", "target": TARGET, "settings": settings}
        options.output.write_text(json.dumps(data | {"environment": environment(CPU), "rows": rows}, indent=2) + "\n")
    return 0 if all(r["met"] for r in rows) else 1


def row(name: str, dtype: str, mode: str, seconds: float) -> Row:
    """Time and memory of the three ways for one model."""
    torch.compiler.reset()
    torch.manual_seed(0)
    example = EXAMPLES[name]
    inputs = tuple(t.to(DTYPES[dtype]) if t.is_floating_point() else t for t in example.inputs())
    model = example.build().to(DTYPES[dtype]).train(mode == "training")
    first, steps, sites = _prepare(model, inputs, example.classes, mode == "training")
    rounds = time_in_rounds(steps, CPU, seconds=seconds, rounds=(15, 60))
    peaks = {way: measure_peak_memory(step, CPU).bytes for way, step in steps.items()}
    best = rounds.best(OURS)
    effect, control = rounds.ratio(best, OURS), rounds.control(OURS)
    fastest = {way: min(rounds.seconds[way]) for way in steps}
    return {
        "model": name, "dtype": dtype, "mode": mode, "parameters": sum(p.numel() for p in model.parameters()),
        "ratio": effect.ratio, "interval": list(effect.interval), "best": best,
        "ratio_of_fastest": min(fastest[EAGER], fastest[COMPILED]) / fastest[OURS],
        "control": list(control.interval), "met": effect.interval.high >= TARGET,
        "seconds": {way: rounds.median(way) for way in steps}, "rounds": len(rounds.seconds[OURS]),
        "first_call_seconds": first, "peak_bytes": peaks, "sites": sites,
    }  # fmt: skip


def as_text(row: Row) -> str:
    """One row on one line."""
    seconds = ", ".join(f"{way} {value * 1e3:.1f} ms" for way, value in row["seconds"].items())
    peaks = ", ".join(f"{way} {(value or 0) / 2**20:.0f} MiB" for way, value in row["peak_bytes"].items())
    low, high = row["interval"]
    name = f"{row['model']}, {row['dtype']}, {row['mode']}"
    return (
        f"{name}: {row['ratio']:.2f} ({low:.2f} to {high:.2f}) of {row['best']}, "
        f"of the fastest runs {row['ratio_of_fastest']:.2f}; {seconds}; {peaks}; {row['sites']}"
    )


def _prepare(
    model: nn.Module, inputs: tuple[Tensor, ...], classes: int, training: bool
) -> tuple[dict[str, float], dict[str, Action], dict[str, int]]:
    """The seconds of each way's first call, a step of each way, and autofuse's sites by status.

    The first call includes optimizing or compiling.
    """
    first, steps = dict[str, float](), dict[str, Action]()
    sites: dict[str, int] = {}
    for way in (OURS, EAGER, COMPILED):
        own = copy.deepcopy(model)
        start = time.perf_counter()
        callable_model: Any = torch.compile(own) if way == COMPILED else own
        if way == OURS:
            autofuse.optimize(own, inputs)
            for site in autofuse.report(own).sites:
                sites[site.status] = sites.get(site.status, 0) + 1
        steps[way] = _step(callable_model, own, inputs, classes) if training else _inference(callable_model, inputs)
        steps[way]()
        first[way] = time.perf_counter() - start
    return first, steps, sites


def _step(callable_model: Any, model: nn.Module, inputs: tuple[Tensor, ...], classes: int) -> Action:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    targets = torch.randint(classes, callable_model(*inputs).shape[:-1])

    def step() -> None:
        F.cross_entropy(callable_model(*inputs).flatten(0, -2), targets.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _inference(callable_model: Any, inputs: tuple[Tensor, ...]) -> Action:
    def step() -> None:
        with torch.no_grad():
            callable_model(*inputs)

    return step


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.models", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=EXAMPLES)
    parser.add_argument("--dtype", nargs="+", default=["fp32"], choices=DTYPES)
    parser.add_argument("--mode", nargs="+", default=["training", "inference"], choices=("training", "inference"))
    parser.add_argument("--seconds", type=float, default=20.0, help="how long to measure each row, compiling apart")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, help="a JSON file for the result")
    return parser


if __name__ == "__main__":
    with_steady_allocator()
    sys.exit(main())
