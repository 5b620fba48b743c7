"""The source door's speed: files a second of `autofuse check` where nothing is torch, and the start of the command.

    python benchmarks/source.py --output benchmarks/results/source.json

CPU time (user and system) of whole processes on one core. Targets: 1,000 files a second after start, and less than
0.2 s for `autofuse --version`. Exits with 1 if one is missed. Files that import torch but hold nothing to fuse are
timed too, for which there is no target.
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
import tempfile
from pathlib import Path

# Reading a thousand files takes less than two starts of the command differ by.
FILES, TORCH_FILES, FILES_A_SECOND, START = 10_000, 1_000, 1_000, 0.2

_FUNCTION = '''
def {verb}_{noun}({noun}s, limit={number}):
    """{Verb} the first {noun}s, at most {number} of them."""
    found = {{}}
    for index, {noun} in enumerate({noun}s):
        if index >= limit or not {noun}:
            break
        found[{noun}] = found.get({noun}, 0) + {number}
    return sorted(found.items(), key=lambda item: (-item[1], item[0]))
'''
_VERBS, _NOUNS = ("count", "collect", "rank", "merge", "trim"), ("order", "line", "ticket", "user", "invoice", "route")


def tree(folder: Path, files: int, first_line: str) -> None:
    """Write `files` plain Python files of 30 to 300 lines, in folders of fifty."""
    draw = random.Random(0)
    for i in range(files):
        path = folder / f"package_{i // 50:02}" / f"module_{i:04}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        functions = "".join(_function(draw) for _ in range(draw.randint(3, 30)))
        path.write_text(f"{first_line}\n{functions}")


def _function(draw: random.Random) -> str:
    verb, noun = draw.choice(_VERBS), draw.choice(_NOUNS)
    return "\n" + _FUNCTION.format(verb=verb, Verb=verb.title(), noun=noun, number=draw.randint(2, 99))


def cpu_seconds(*arguments: str) -> float:
    """User and system time of `autofuse` with these arguments."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run([sys.executable, "-m", "autofuse", *arguments], check=True, **quiet)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def measured(repeats: int) -> dict[str, float]:
    """The least of several runs, which other work on the machine disturbs least; a first one fills the disk cache."""
    version = min(cpu_seconds("--version") for _ in range(repeats))
    plain, torch = _speed("import json", FILES, repeats), _speed("import torch", TORCH_FILES, repeats)
    return {
        "version_cpu_seconds": version,
        "files_a_second": plain[0],
        "start_cpu_seconds": plain[1],
        "files_a_second_that_import_torch": torch[0],
        "start_cpu_seconds_with_rules": torch[1],
    }


def _speed(first_line: str, files: int, repeats: int) -> tuple[float, float]:
    """Files a second of `autofuse check` after its start, and the CPU seconds of the start: a tree of one file."""
    with tempfile.TemporaryDirectory() as name:
        seconds = []
        for count in (1, files):
            folder = Path(name) / str(count)
            tree(folder, count, first_line)
            cpu_seconds("check", str(folder))
            seconds.append(min(cpu_seconds("check", str(folder)) for _ in range(repeats)))
    return (files - 1) / max(seconds[1] - seconds[0], 1e-3), seconds[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--output", type=Path, help="a JSON file for the result")
    options = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    result = measured(options.repeats)
    targets = {
        f"{FILES_A_SECOND:,} files a second": result["files_a_second"] >= FILES_A_SECOND,
        f"--version under {START} s": result["version_cpu_seconds"] < START,
    }
    for name, value in result.items():
        print(f"{name:>33} {value:,.3f}" if isinstance(value, float) else f"{name:>33} {value:,}")
    for target, met in targets.items():
        print(f"{'met' if met else 'MISSED'}: {target}")
    if options.output:
        environment = {"python": platform.python_version(), "platform": f"{platform.system()} {platform.machine()}"}
        data = {"version": 1, "benchmark": "source", "targets": targets, **result, "environment": environment}
        options.output.write_text(json.dumps(data, indent=2) + "\n")
    return 0 if all(targets.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
