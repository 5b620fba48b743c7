"""The source door's speed on real code: files a second of `autofuse check`, and what an edited file costs.

    python benchmarks/packages.py FOLDER --output benchmarks/results/packages.json

FOLDER holds packages with torch code, such as `site-packages` or what `python -m tools.ecosystem` unpacked. Counted are
files that mention torch. Files a second are those of the whole command, its start included, by the wall clock on two
cores, and by CPU time divided by two, which other work on the machine disturbs less. What an edited file costs is CPU
time of making its edits, and reading again what they touched, on one core. Exits with 1 if a target is missed.
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


def checked(folder: Path, repeats: int) -> tuple[float, float]:
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


def edited(files: list[Path]) -> list[float]:
    """CPU seconds of making the edits of each file that has any."""
    gc.disable()  # as where many files are read
    run, settings, seconds = RewriteRun(), FileSettings(Path("/")), []
    for path in files:
        file = SourceFile(str(path), settings, named=False)
        found = run.check(file)
        if not isinstance(found, CheckedFile) or not found.proposals:
            continue
        start = time.process_time()
        result = run.rewrite(found, file, unsafe=True)
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
    wall, cpu = checked(options.folder, options.repeats)
    edits = edited(files)
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
