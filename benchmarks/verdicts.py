"""How often `autofuse.compare` errs while other programs keep every core busy, and how often it finds what is there.

Starts processes that compute without a pause, and others that do so in bursts, then compares a small MLP again and
again: with its own copy (nothing to find) and with one of 11 blocks where it has 10 (one tenth to find).

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
_BURST = 0.15  # seconds, on average, of a burst and of the pause after it


def main() -> None:
    """Run the tries that the command line asks for and print, or write, what came of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=int, default=50, help="of each kind (default: 50)")
    parser.add_argument("--rows", type=int, default=128, help="of the input: how long a step takes (default: 128)")
    parser.add_argument("--busy", type=int, default=os.cpu_count() or 1, help="processes without a pause")
    parser.add_argument("--bursts", type=int, default=1, help="processes that compute in bursts (default: 1)")
    parser.add_argument("--threads", type=int, action="append", help="of torch; may be repeated (default: its own)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="for the results, as JSON")
    options = parser.parse_args()
    written: dict[str, Any] = {
        "environment": environment(torch.device("cpu")), "rows": options.rows, "busy": options.busy,
        "bursts": options.bursts, "results": [],
    }  # fmt: skip
    with load(options.busy, options.bursts):
        for threads in options.threads or [torch.get_num_threads()]:
            torch.set_num_threads(threads)
            for kind, blocks in (("identical", BLOCKS), ("a tenth less work", BLOCKS + 1)):
                written["results"].append(
                    {"threads": threads, "kind": kind, **tries(options.tries, options.rows, blocks)}
                )
                if options.out:
                    options.out.write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")


def tries(count: int, rows: int, blocks: int) -> dict[str, Any]:
    """What so many comparisons of a model of `blocks` blocks with one of 10 said, and how long they took."""
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
    """So many linear layers with a GELU each."""
    return nn.Sequential(*[part for _ in range(blocks) for part in (nn.Linear(WIDTH, WIDTH), nn.GELU())])


@contextmanager
def load(busy: int, bursts: int) -> Iterator[None]:
    """Other programs for the length of a block: so many that compute without a pause, and so many in bursts."""
    context = multiprocessing.get_context("spawn")
    pauses = [0.0] * busy + [_BURST] * bursts
    processes = [context.Process(target=_computing, args=(i, p), daemon=True) for i, p in enumerate(pauses)]
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


def _computing(number: int, pause: float) -> None:
    """Arithmetic, or copies of memory beyond the caches, by turns; until terminated, or until the parent is gone."""
    draws, parent = random.Random(number), os.getppid()
    memory, other = bytearray(8 << 20), bytes(8 << 20)
    while os.getppid() == parent:
        until = time.perf_counter() + (draws.expovariate(1 / pause) if pause else 1.0)
        while time.perf_counter() < until:
            if number % 2:
                memory[:] = other
            else:
                sum(range(20_000))
        time.sleep(draws.expovariate(1 / pause) if pause else 0.0)


if __name__ == "__main__":
    main()
