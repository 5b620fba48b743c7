"""Counts the wrong verdicts of `autofuse.compare` while other programs keep every core busy, and the right ones.

Starts processes that compute without a pause, and others that compute in bursts. Then it compares a small MLP again and
again: with its own copy (no difference), and a model of 11 blocks with one of 10 (a tenth less work).

    python -m benchmarks.verdicts --tries 50 --out benchmarks/results/verdicts.json
"""

from __future__ import annotations

import argparse
import copy
import json
import multiprocessing
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

import autofuse
from autofuse.measure.environment import environment

WIDTH, BLOCKS = 256, 10
_BURST = 0.15  # average seconds of a burst, and of the pause after it


def main() -> None:
    """Runs the comparisons that the command line asks for, and prints or writes the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=int, default=50, help="of each kind (default: 50)")
    parser.add_argument("--rows", type=int, default=128, help="of the input: how long a step takes (default: 128)")
    parser.add_argument("--busy", type=int, default=os.cpu_count() or 1, help="processes without a pause")
    parser.add_argument("--bursts", type=int, default=1, help="processes that compute in bursts (default: 1)")
    parser.add_argument("--threads", type=int, action="append", help="of torch; may be repeated (default: its own)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="for the results, as JSON")
    options = parser.parse_args()
    results: dict[str, Any] = {
        "environment": environment(torch.device("cpu")), "rows": options.rows, "busy": options.busy,
        "bursts": options.bursts, "results": [],
    }  # fmt: skip
    with load(options.busy, options.bursts):
        for threads in options.threads or [torch.get_num_threads()]:
            torch.set_num_threads(threads)
            for kind, blocks in (("identical", BLOCKS), ("a tenth less work", BLOCKS + 1)):
                results["results"].append(
                    {"threads": threads, "kind": kind, **tries(options.tries, options.rows, blocks)}
                )
                if options.out:
                    options.out.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


def tries(count: int, rows: int, blocks: int) -> dict[str, Any]:
    """The verdicts and times of `count` comparisons of a model of `blocks` blocks with one of 10."""
    x = torch.randn(rows, WIDTH)
    verdicts: Counter[str] = Counter()
    clocks: Counter[str] = Counter()
    ratios, seconds, pairs = [], [], []
    for number in range(count):
        before = mlp(blocks)
        after = copy.deepcopy(before) if blocks == BLOCKS else mlp(BLOCKS)
        start = time.perf_counter()
        comparison = autofuse.compare(before, after, x, seed=number, progress=False)
        seconds.append(round(time.perf_counter() - start, 2))
        ratios.append(round(comparison.ratio, 4))
        pairs.append(comparison.pairs)
        verdicts[comparison.verdict] += 1
        clocks[comparison.clock] += 1
        print(blocks, number, comparison.summary, comparison.pairs, comparison.clock, seconds[-1], flush=True)
    print(blocks, dict(verdicts), f"{sum(seconds) / count:.1f} s each", flush=True)
    return {
        "verdicts": dict(verdicts), "clocks": dict(clocks), "ratios": ratios, "pairs": pairs, "seconds": seconds,
    }  # fmt: skip


def mlp(blocks: int) -> nn.Module:
    """`blocks` linear layers with a GELU each."""
    return nn.Sequential(*[part for _ in range(blocks) for part in (nn.Linear(WIDTH, WIDTH), nn.GELU())])


@contextmanager
def load(busy: int, bursts: int) -> Iterator[None]:
    """Runs other programs during a block: `busy` of them without a pause, and `bursts` in bursts."""
    context = multiprocessing.get_context("spawn")
    pauses = [0.0] * busy + [_BURST] * bursts
    processes = [context.Process(target=_compute, args=(i, p), daemon=True) for i, p in enumerate(pauses)]
    for process in processes:
        process.start()
    time.sleep(2)
    try:
        yield
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.join()


def _compute(number: int, pause: float) -> None:
    """Computes, or copies memory larger than the caches, until terminated or until the parent ends."""
    generator, parent = random.Random(number), os.getppid()
    memory, other = bytearray(8 << 20), bytes(8 << 20)
    while os.getppid() == parent:
        deadline = time.perf_counter() + (generator.expovariate(1 / pause) if pause else 1.0)
        while time.perf_counter() < deadline:
            if number % 2:
                memory[:] = other
            else:
                sum(range(20_000))
        time.sleep(generator.expovariate(1 / pause) if pause else 0.0)


if __name__ == "__main__":
    main()
