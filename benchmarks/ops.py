"""Every operation of autofuse.ops on a CPU, at shapes of real models, against torch's other ways to compute it.

    python -m benchmarks.ops --output benchmarks/results/ops-cpu.json
    python -m benchmarks.ops --op rms_norm rotary --quick

Each case is one interleaved run of four ways: `autofuse.ops`, the code as models write it, torch's own fused function
if there is one, and torch.compile of the hand-written code. The ratio is the time of the best of the others over that
of autofuse.ops, with its interval and the A/A control of the same run. Peak memory is measured separately. Target: 0.97
of the best in time, and no more memory than the best in time. Exits with 1 if a case misses it.

Each operation runs in its own process, with higher glibc thresholds for large blocks (benchmarks/README.md).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from autofuse.kernels.operation import OPERATIONS
from autofuse.measure.environment import environment
from autofuse.measure.memory import measure_peak_memory
from benchmarks.cases import GRIDS, Case, cases
from benchmarks.rounds import STEADY_ALLOCATOR, forward_and_backward, time_in_rounds, with_steady_allocator

OURS, SPELLED, NATIVE, COMPILED = "autofuse.ops", "eager", "torch native", "torch.compile"
TARGET = 0.97
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
CPU = torch.device("cpu")
Row = dict[str, Any]


def main(argv: list[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    torch.set_num_threads(options.threads)
    chosen = [
        c for c in cases(options.grid, tuple(options.op or ())) if c.model.name in (options.model or c.model.name)
    ]
    operations = list(dict.fromkeys(case.operation for case in chosen))
    if options.worker:
        rows = [row for case in chosen for row in case_rows(case, options)]
    else:
        rows = [row for operation in operations for row in _in_its_own_process(operation, options)]
    rows.sort(key=lambda row: row["ratio"])
    if not options.worker:
        print(as_markdown(rows))
    if options.output:
        options.output.write_text(json.dumps(_result(options, rows), indent=2) + "\n")
    return 0 if options.worker or all(row["met"] for row in rows) else 1


def case_rows(case: Case, options: argparse.Namespace) -> list[Row]:
    """One row for each dtype and mode."""
    rows = []
    for dtype in options.dtype:
        for mode in case.modes:
            if mode in options.mode:
                rows.append(case_row(case, dtype, mode, options.seconds))
                if options.worker:
                    print(as_markdown(rows[-1:]).splitlines()[-1], file=sys.stderr, flush=True)
    return rows


def case_row(case: Case, dtype: str, mode: str, seconds: float) -> Row:
    """Time and memory of all ways for one case."""
    torch.compiler.reset()
    torch.manual_seed(0)
    tensors = case.tensors(CPU, DTYPES[dtype], mode == "training")
    functions: dict[str, Callable[..., Any]] = {OURS: case.ours, SPELLED: case.spelled}
    if case.native is not None:
        functions[NATIVE] = case.native
    functions[COMPILED] = torch.compile(case.spelled, dynamic=False)
    with torch.set_grad_enabled(mode == "training"):
        ways = {name: forward_and_backward(function, tensors) for name, function in functions.items()}
        rounds = time_in_rounds(ways, CPU, seconds=seconds)
        peaks = {name: measure_peak_memory(way, CPU).bytes for name, way in ways.items()}
    best = rounds.best(OURS)
    fastest = {name: min(rounds.seconds[name]) for name in functions}
    effect, control = rounds.ratio(best, OURS), rounds.control(OURS)
    least = min((p for name, p in peaks.items() if name != OURS and p is not None), default=None)
    return {
        "operation": case.operation, "case": case.label, "dtype": dtype, "mode": mode,
        "shapes": [list(i.shape) for i in case.inputs], "best": best,
        "ratio": effect.ratio, "interval": list(effect.interval),
        # The ratio of the fastest runs, which is meaningful even if other programs disturb most of the rounds.
        "ratio_of_fastest": min(fastest[n] for n in functions if n != OURS) / fastest[OURS],
        "control": {"ratio": control.ratio, "interval": list(control.interval)},
        # Surely missed only beyond chance: the whole interval must be below the target.
        "met": effect.ratio >= TARGET, "surely_missed": effect.interval.high < TARGET,
        "seconds": {name: rounds.median(name) for name in functions}, "rounds": len(rounds.seconds[OURS]),
        "peak_bytes": peaks, "memory_ratio": None if not least or not peaks[OURS] else least / peaks[OURS],
        "chosen": _chosen_providers(case),
    }  # fmt: skip


def as_markdown(rows: list[Row]) -> str:
    """A table with one line for each row, in the order of the rows."""
    heads = "case, dtype, mode, ratio (interval), of the fastest, control, best, ours ms, best ms, ours MiB, least MiB"
    columns = heads.split(", ")
    lines = [f"| {' | '.join(columns)} |", f"| {' | '.join('---' for _ in columns)} |"]
    for row in rows:
        low, high = row["interval"]
        ours, others = row["peak_bytes"][OURS], [p for n, p in row["peak_bytes"].items() if n != OURS and p is not None]
        cells = (
            row["case"], row["dtype"], row["mode"], f"{row['ratio']:.2f} ({low:.2f} to {high:.2f})",
            f"{row['ratio_of_fastest']:.2f}", f"{row['control']['ratio']:.2f}", row["best"],
            f"{row['seconds'][OURS] * 1e3:.3g}", f"{row['seconds'][row['best']] * 1e3:.3g}",
            f"{(ours or 0) / 2**20:.1f}", f"{min(others, default=0) / 2**20:.1f}",
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _chosen_providers(case: Case) -> dict[str, int]:
    """The providers that computed the calls so far, if the operation has several."""
    operation = OPERATIONS.get(case.operation)
    counts = {} if operation is None else dict(operation.counts)
    if operation is not None:
        operation.counts.clear()
    return counts


def _in_its_own_process(operation: str, options: argparse.Namespace) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.json"
        command = [
            sys.executable, "-W", "ignore", "-m", "benchmarks.ops", "--worker", "--op", operation, "--output", file,
            "--grid", options.grid, "--seconds", options.seconds, "--threads", options.threads,
            "--dtype", *options.dtype, "--mode", *options.mode, *(["--model", *options.model] if options.model else []),
        ]  # fmt: skip
        start = time.perf_counter()
        process = subprocess.run([str(part) for part in command])
        print(f"{operation}: {time.perf_counter() - start:.0f} s", file=sys.stderr)
        if process.returncode or not file.exists():
            raise RuntimeError(f"The process that measured {operation} ended with {process.returncode}; see above.")
        return list(json.loads(file.read_text())["rows"])


def _result(options: argparse.Namespace, rows: list[Row]) -> dict[str, Any]:
    settings = {k: v for k, v in vars(options).items() if k not in ("output", "worker")}
    return {
        "version": 1, "benchmark": "ops-cpu", "target": TARGET,
        "settings": settings | {"allocator": STEADY_ALLOCATOR}, "environment": environment(CPU), "rows": rows,
    }  # fmt: skip


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.ops", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--op", nargs="+", help="operations by name; all by default")
    parser.add_argument("--model", nargs="+", help="shapes of these models; of all by default")
    parser.add_argument("--dtype", nargs="+", default=list(DTYPES), choices=DTYPES)
    parser.add_argument("--mode", nargs="+", default=["training", "inference"], choices=("training", "inference"))
    parser.add_argument("--grid", default="cpu", choices=GRIDS, help="the shapes")
    parser.add_argument("--seconds", type=float, default=3.0, help="how long to measure each case, compiling apart")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, help="a JSON file for the result")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument(
        "--quick", dest="seconds", action="store_const", const=1.0, help="one second for each case, for a first look"
    )
    return parser


if __name__ == "__main__":
    with_steady_allocator()
    sys.exit(main())
