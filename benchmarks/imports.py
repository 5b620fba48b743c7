"""The CPU time that importing autofuse.optimize adds to importing torch.

    python benchmarks/imports.py --output benchmarks/results/imports.json

CPU time (user and system) of whole processes: `import autofuse; autofuse.optimize` against `import torch`, in pairs in
random order. The ratio is the median over the pairs, with its 95 % interval. Target: at most 1.2. Exits with 1 if it is
missed. Byte code is compiled beforehand, as for installed packages.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import resource
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median

from autofuse.results.medians import median_interval

TARGET = 1.2
TORCH = "import torch"
MEASURED = {
    "autofuse.optimize": "import autofuse; autofuse.optimize",
    # Without the handling of garbage collection in autofuse/__init__.py.
    "its module by itself": "import autofuse.fx.session.optimize",
}


def cpu_seconds(code: str) -> float:
    """User and system time of a Python process that runs `code`."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True, env=variables)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def in_turns(codes: Sequence[str], rounds: int) -> dict[str, list[float]]:
    """Seconds of each code, measured next to each other in each round, in random order."""
    seconds: dict[str, list[float]] = {code: [] for code in codes}
    generator = random.Random(0)
    for code in codes:  # writes byte code and fills the disk cache
        cpu_seconds(code)
    for _ in range(rounds):
        for code in generator.sample(codes, len(codes)):
            seconds[code].append(cpu_seconds(code))
    return seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--output", type=Path, help="a JSON file for the result")
    options = parser.parse_args()
    seconds = in_turns([TORCH, *MEASURED.values()], options.rounds)
    base = seconds[TORCH]
    print(f"{'import torch':>22} {median(base):.2f} s")
    rows = {}
    for name, code in MEASURED.items():
        ratios = [ours / torch for ours, torch in zip(seconds[code], base, strict=True)]
        low, high = median_interval(ratios)
        rows[name] = {"seconds": median(seconds[code]), "ratio": median(ratios), "interval": [low, high]}
        print(f"{name:>22} {median(seconds[code]):.2f} s, {median(ratios):.2f} times torch's ({low:.2f} to {high:.2f})")
    met = rows["autofuse.optimize"]["ratio"] <= TARGET
    print(f"{'met' if met else 'MISSED'}: at most {TARGET} times the import of torch")
    if options.output:
        environment = {
            "python": platform.python_version(), "torch": version("torch"),
            "platform": f"{platform.system()} {platform.machine()}",
        }  # fmt: skip
        data = {"version": 1, "benchmark": "imports", "torch_seconds": median(base), "met": met, "measured": rows}
        options.output.write_text(json.dumps(data | {"environment": environment}, indent=2) + "\n")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
