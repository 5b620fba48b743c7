"""Measures everything that autofuse claims about GPUs: correctness, the time of each operation, and of whole models.

    python -m benchmarks.gpu --out results/ --budget 1700    on the GPU: under 30 minutes, something of every section
    python -m benchmarks.gpu --out results/                  on the GPU; repeat until it reports that all is done
    python -m benchmarks.gpu --out results/ --section training --only gpt2
    python -m benchmarks.gpu --out results/ --workers 8     rows that are not timed, in 8 processes; then the others
    python -m benchmarks.gpu --out results/ --workers 8 --warm     fills the compilers' caches and measures nothing
    python -m benchmarks.gpu --out /tmp/toy --device cpu --toy

Every figure is a row, and each row is written as soon as it is measured. If a run ends for whatever reason, the next
one continues. A row that ended its process twice is left out and listed. No row begins after `--budget` seconds. Writes
rows.jsonl, results.json (with hardware and versions) and results.md.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch

from benchmarks.gpu import (
    correctness,
    devices,
    libraries,
    operations,
    predictions,
    profiles,
    roofs,
    training,
    whole_models,
)
from benchmarks.gpu.page import as_markdown
from benchmarks.gpu.store import Results, Setting, Task
from benchmarks.gpu.workers import fill_caches, run_untimed
from benchmarks.rounds import with_steady_allocator

SECTIONS = {"roofs": roofs.tasks, "correctness": correctness.tasks, "devices": devices.tasks}
SECTIONS |= {"models": whole_models.tasks}
SECTIONS |= {"predictions": predictions.tasks, "training": training.tasks, "libraries": libraries.tasks}
SECTIONS |= {"profiles": profiles.tasks, "operations": operations.tasks}
# The share of a call's time that a section may use before the next one begins. Later sections may use what is left.
SHARES = {
    "roofs": 0.02, "correctness": 0.15, "devices": 0.05, "models": 0.1, "predictions": 0.12, "training": 0.2,
    "libraries": 0.15, "profiles": 0.11, "operations": 0.1,
}  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    start = time.monotonic()
    options = _parser().parse_args(argv)
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        print("This machine has no CUDA GPU. To try the code on a CPU, use --device cpu --toy.", file=sys.stderr)
        return 2
    arguments = list(sys.argv[1:] if argv is None else argv)
    if options.warm and not options.share:
        fill_caches(arguments, options.workers)
        return 0
    setting = Setting(torch.device(options.device), options.toy, options.warm, options.seconds)
    results = Results(options.out, setting)
    if options.workers > 1 and not options.share:
        run_untimed(arguments, options.section, options.workers)
        results = Results(options.out, setting)
    by_section = {
        section: [t for t in SECTIONS[section](setting, results) if _is_requested(t.key, options)]
        for section in SECTIONS if section in options.section
    }  # fmt: skip
    if options.share:
        by_section = {section: tasks[options.share[0] :: options.share[1]] for section, tasks in by_section.items()}
    requested = [task for tasks in by_section.values() for task in tasks]
    deadline = 0.0
    for section, tasks in by_section.items():
        deadline += SHARES[section] * options.budget
        _run_tasks(tasks, results, start + deadline)
        if results.broken:
            break
    left = sum(not results.has(t.key) for t in requested)
    if left and not results.broken:
        left = _run_tasks(requested, results, start + options.budget)
    if options.share:
        return 0
    results.write(as_markdown)
    print(f"{len(requested) - left} of {len(requested)} rows are done{'; call again for the rest' if left else ''}")
    return 0


def _is_requested(key: str, options: argparse.Namespace) -> bool:
    if any(text in key for text in options.without):
        return False
    return not options.only or any(text in key for text in options.only)


def _run_tasks(tasks: list[Task], results: Results, deadline: float) -> int:
    """Runs the tasks that are not done yet, while there is time. Returns how many are left."""
    pending = [task for task in tasks if not results.has(task.key)]
    for done, task in enumerate(pending):
        if time.monotonic() + task.seconds > deadline:
            return len(pending) - done
        started_at = time.monotonic()
        row = results.run(task)
        print(f"{task.key}: {row.get('failed', 'done')} ({time.monotonic() - started_at:.0f} s)", flush=True)
        if results.broken:
            print("The device no longer responds to this process. Call again.", file=sys.stderr)
            return len(pending) - done - 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="a folder for the results, made if need be")
    parser.add_argument("--budget", type=float, default=540.0, help="seconds after which no further row is begun")
    parser.add_argument("--seconds", type=float, default=2.0, help="of timing for each row")
    parser.add_argument("--device", default="cuda")
    parser.add_argument(
        "--toy", action="store_true", help="sizes at which a CPU finishes too; the figures mean nothing"
    )
    parser.add_argument("--section", nargs="+", default=list(SECTIONS), choices=SECTIONS)
    parser.add_argument("--only", nargs="+", metavar="TEXT", help="only rows whose key contains one of these")
    parser.add_argument(
        "--without", nargs="+", metavar="TEXT", default=[], help="no rows whose key contains one of these"
    )
    parser.add_argument("--workers", type=int, default=1, help="processes for rows that are not timed")
    parser.add_argument("--warm", action="store_true", help="only fill the compilers' caches, in all workers")
    parser.add_argument("--share", type=int, nargs=2, help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    with_steady_allocator()
    sys.exit(main())
