"""The demo's model at length 1024, optimized and with AdamW(fused=True), against eager and against torch.compile.

    python benchmarks/demo.py --output benchmarks/results/demo.json

Each comparison runs interleaved pairs of whole training steps in one process, with an A/A control. Two targets: at
least 2x eager (the lower end of the interval counts), and not slower than torch.compile. Exits with 1 if one is missed.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import autofuse
from autofuse.demo.gpt import GPT, Config, configure_optimizer, train_step
from autofuse.demo.training import harbour_log

# By default glibc returns large blocks to the system after each step and faults them in again, in irregular time.
STEADY_ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "8589934592"}
QUIET_PROFILER = {"KINETO_LOG_LEVEL": "6"}


@dataclass(frozen=True)
class Variant:
    """A model with its optimizer, and the seconds of its first step, including optimizing or compiling."""

    name: str
    model: Any
    optimizer: torch.optim.Optimizer
    first_step: float


class Bench:
    """The model and the batch with which all variants start."""

    def __init__(self, options: argparse.Namespace) -> None:
        corpus = harbour_log()
        torch.manual_seed(options.seed)
        config = Config(vocab_size=len(corpus.alphabet), block_size=options.length)
        self.model = GPT(config).to(options.device, getattr(torch, options.dtype)).train()
        windows = corpus.ids[: options.batch * options.length + 1].to(options.device)
        shape = (options.batch, options.length)
        self.batch = (windows[:-1].view(shape), windows[1:].view(shape))
        self.pairs, self.seed = options.pairs, options.seed

    def variant(self, name: str, change: Callable[[GPT], Any], *, fused_optimizer: bool) -> Variant:
        """The model after `change`, and after its first step."""
        model = copy.deepcopy(self.model)
        start = time.perf_counter()
        changed_model = change(model)
        optimizer = configure_optimizer(model)
        if fused_optimizer:
            settings = {name: optimizer.defaults[name] for name in ("lr", "betas", "eps", "weight_decay")}
            optimizer = torch.optim.AdamW(model.parameters(), **settings, fused=True)
        train_step(changed_model, optimizer, *self.batch)
        return Variant(name, changed_model, optimizer, time.perf_counter() - start)

    def compare(self, before: Variant, after: Variant) -> autofuse.Comparison:
        """Compares whole training steps of both."""
        optimizers = {id(before.model): before.optimizer, id(after.model): after.optimizer}

        def step(model: nn.Module, batch: tuple[Tensor, Tensor]) -> None:
            train_step(model, optimizers[id(model)], *batch)

        return autofuse.compare(before.model, after.model, self.batch, step, pairs=self.pairs, seed=self.seed)

    def optimize(self, model: GPT) -> GPT:
        autofuse.optimize(model, (self.batch[0],))
        return model


def main() -> int:
    options = _options()
    bench = Bench(options)
    variants = {
        "eager": bench.variant("eager", lambda model: model, fused_optimizer=False),
        "compiled": bench.variant("torch.compile", torch.compile, fused_optimizer=False),
        "compiled_fused": bench.variant("torch.compile, fused AdamW", torch.compile, fused_optimizer=True),
        "swapped": bench.variant("optimized", bench.optimize, fused_optimizer=False),
        "optimized": bench.variant("optimized, fused AdamW", bench.optimize, fused_optimizer=True),
    }
    ours = variants["optimized"]
    print(autofuse.report(ours.model))
    comparisons = {}
    for name in ("eager", "compiled", "compiled_fused", "swapped"):
        print(f"\n{variants[name].name} -> {ours.name}")
        comparisons[name] = bench.compare(variants[name], ours)
        print(comparisons[name])
    not_slower = {name: c.verdict in ("confirmed", "no-change") for name, c in comparisons.items()}
    targets = {
        "at least 2x eager": comparisons["eager"].interval.low >= 2.0,
        "not slower than torch.compile": not_slower["compiled"],
        "not slower than torch.compile with fused AdamW": not_slower["compiled_fused"],
    }
    for target, met in targets.items():
        print(f"{'met' if met else 'MISSED'}: {target}")
    if options.output:
        options.output.write_text(json.dumps(_result(options, variants, comparisons, targets), indent=2) + "\n")
    return 0 if all(targets.values()) else 1


def _result(
    options: argparse.Namespace, variants: dict[str, Variant], comparisons: dict[str, Any], targets: dict[str, bool]
) -> dict[str, Any]:
    return {
        "version": 1,
        "benchmark": "demo",
        "settings": {k: v for k, v in vars(options).items() if k != "output"} | {"allocator": STEADY_ALLOCATOR},
        "targets": targets,
        "first_step_seconds": {name: variant.first_step for name, variant in variants.items()},
        "optimized_against": {name: comparison.to_dict() for name, comparison in comparisons.items()},
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=1024, help="characters in a sequence")
    parser.add_argument("--batch", type=int, default=2, help="sequences in a batch")
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16"))
    parser.add_argument("--output", type=Path, help="a JSON file for the result")
    return parser.parse_args()


def _with_steady_allocator() -> None:
    """Starts this script again with the allocator's environment variables, which are read before Python starts."""
    if any(os.environ.get(name) != value for name, value in STEADY_ALLOCATOR.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **STEADY_ALLOCATOR, **QUIET_PROFILER})


if __name__ == "__main__":
    _with_steady_allocator()
    sys.exit(main())
