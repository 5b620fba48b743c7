"""The speed of the codemod on real code: files per second of `autofuse check`, and the cost of an edited file.

    python benchmarks/packages.py FOLDER --output benchmarks/results/packages.json

FOLDER contains packages with torch code, for example `site-packages` or what `python -m tools.ecosystem` unpacked.
Files that mention torch count. Files per second are those of the whole command, its start included: by the wall clock
on two cores, and by CPU time divided by two, which other programs disturb less. The cost of an edited file is the CPU
time of making its edits and reading the edited text again, on one core. Exits with 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

from autofuse.project.config import FileSettings
from autofuse.project.file_discovery import SourceFile
from autofuse.project.run import CheckedFile, RewriteResult, RewriteRun

FILES_A_SECOND, MILLISECONDS_AN_EDITED_FILE, CORES = 100, 50, 2


def time_check(folder: Path, repeats: int) -> tuple[float, float]:
    """Wall and CPU seconds of `autofuse check`: medians."""
    walls, cpus = [], []
    for _ in range(repeats):
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        subprocess.run([sys.executable, "-m", "autofuse", "check", str(folder)], check=False, **quiet)
        walls.append(time.perf_counter() - start)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpus.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    return statistics.median(walls), statistics.median(cpus)


def time_edits(files: list[Path]) -> list[float]:
    """CPU seconds of making the edits of each file that has any."""
    gc.disable()  # the command does the same for many files
    run, settings, seconds = RewriteRun(), FileSettings(Path("/")), []
    for path in files:
        file = SourceFile(str(path), settings, named=False)
        checked_file = run.check(file)
        if not isinstance(checked_file, CheckedFile) or not checked_file.proposals:
            continue
        start = time.process_time()
        result = run.rewrite(checked_file, file, unsafe=True)
        if isinstance(result, RewriteResult) and result.edits:
            seconds.append(time.process_time() - start)
    return seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path, help="a JSON file for the result")
    options = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    files = [f for f in sorted(options.folder.rglob("*.py")) if b"torch" in f.read_bytes()]
    wall, cpu = time_check(options.folder, options.repeats)
    edits = time_edits(files)
    result = {
        "files_with_torch": len(files),
        "files_a_second": len(files) / wall,
        "files_a_second_by_cpu_time": CORES * len(files) / cpu,
        "edited_files": len(edits),
        "milliseconds_an_edited_file": 1e3 * statistics.mean(edits) if edits else 0.0,
    }
    targets = {
        f"{FILES_A_SECOND} files a second": max(result["files_a_second"], result["files_a_second_by_cpu_time"])
        >= FILES_A_SECOND,
        f"{MILLISECONDS_AN_EDITED_FILE} ms an edited file": result["milliseconds_an_edited_file"]
        <= MILLISECONDS_AN_EDITED_FILE,
    }
    for name, value in result.items():
        print(f"{name:>28} {value:,.1f}")
    for target, met in targets.items():
        print(f"{'met' if met else 'MISSED'}: {target}")
    if options.output:
        environment = {"python": platform.python_version(), "platform": f"{platform.system()} {platform.machine()}"}
        data = {"version": 1, "benchmark": "packages", "targets": targets, **result, "environment": environment}
        options.output.write_text(json.dumps(data, indent=2) + "\n")
    return 0 if all(targets.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
