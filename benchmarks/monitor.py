"""Measures the cost of `autofuse.Monitor` in a training: whole steps with and without it, and its own calls alone.

    python -m benchmarks.monitor --output benchmarks/results/monitor.json

A small GPT trains on a CPU. Ten steps without a monitor and ten with one (samples and tokens read from the batch, JSON
lines written every ten steps) are timed in interleaved pairs; two runs without a monitor are the A/A control. The calls
alone are timed too: a step within an interval, and the end of an interval with its writing. With intervals of 50 steps,
the cost of a step is a call and a fiftieth of an end.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from autofuse.demo import gpt as demo
from autofuse.measure.environment import environment
from autofuse.measure.step import training_step
from autofuse.measure.step_pairs import time_steps
from autofuse.monitoring import Monitor

CPU = torch.device("cpu")
STEPS, EVERY, TARGET = 10, 50, 0.01


def measure(folder: Path) -> dict[str, Any]:
    """The result as it is kept. Files are written into `folder`."""
    torch.manual_seed(0)
    model, x = demo.GPT(demo.Config(block_size=128, n_layer=2)), torch.randint(0, 64, (4, 128))
    load = os.getloadavg()[0]
    monitored = Monitor(model, folder / "steps.jsonl", every=STEPS)
    plain = _loop(model, x, None)
    found = time_steps(plain, _loop(model, x, monitored), CPU)
    control = time_steps(plain, _loop(model, x, None), CPU)
    step, end = seconds_of_calls(folder)
    whole = monitored.last.step_seconds if monitored.last else float("nan")
    each = step + end / EVERY
    return {
        "version": 1, "benchmark": "monitor", "environment": environment(CPU), "load": load, "step_seconds": whole,
        "ratio": found.effect.ratio, "interval": list(found.effect.interval), "clock": found.clock,
        "control": control.effect.ratio, "control_interval": list(control.effect.interval),
        "call_seconds": step, "end_seconds": end, "every": EVERY, "overhead": each / whole, "target": TARGET,
        "shortest_step_within_target": each / TARGET,
    }  # fmt: skip


def _loop(model: nn.Module, x: Tensor, monitor: Monitor | None) -> Callable[[], None]:
    def steps() -> None:
        for _ in range(STEPS):
            training_step(model, x)
            if monitor is not None:
                monitor.step(x)

    return steps


def seconds_of_calls(folder: Path, count: int = 2000) -> tuple[float, float]:
    """Median seconds of a call within an interval, and of one that ends an interval and writes it."""
    x = torch.zeros(4, 128, dtype=torch.long)
    within, ending = (Monitor(writers=folder / f"{every}.jsonl", every=every) for every in (10 * count, 1))
    return _seconds(within, x, count), _seconds(ending, x, count // 10)


def _seconds(monitor: Monitor, x: Tensor, count: int) -> float:
    taken = []
    for _ in range(count):
        start = time.perf_counter()
        monitor.step(x)
        taken.append(time.perf_counter() - start)
    return median(taken)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, metavar="FILE", help="write JSON here")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder))
    low, high = found["interval"]
    print(
        f"with a monitor {found['ratio']:.3f}x as fast ({low:.3f} to {high:.3f}), control {found['control']:.3f}x; "
        f"{found['call_seconds'] * 1e6:.1f} us a step, {found['end_seconds'] * 1e6:.0f} us an interval: "
        f"{found['overhead']:.3%} of steps of {found['step_seconds'] * 1e3:.1f} ms, load {found['load']:.1f}"
    )
    if options.output:
        options.output.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return 0 if found["overhead"] < TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
