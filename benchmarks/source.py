"""The source door's speed: files a second of `autofuse check` where nothing is torch, and the start of the command.

    python benchmarks/source.py --output benchmarks/results/source.json
    python benchmarks/source.py --packages torch transformers --sample 300

CPU time (user and system) of whole processes on one core. Targets: 1,000 files a second after start, and less than
0.2 s for `autofuse --version`. Exits with 1 if one is missed. Files that import torch but hold nothing to fuse are
timed too, for which there is no target.

With `--packages`, samples of installed packages' files that mention torch are read instead: cold on one core and on
two, from the cache, by ast.parse and by ruff, in turns. Those are times on the clock, of whole processes. Targets: from
the cache at least 20 times faster, two cores at least 1.5 times.
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
import time
from importlib.util import find_spec
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


def sample(package: str, files: int) -> list[str]:
    """Files of an installed package that mention torch, the same ones each time."""
    found = find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise SystemExit(f"{package} is not installed here.")
    (root,) = found.submodule_search_locations
    every = sorted(p for p in Path(root).rglob("*.py") if b"torch" in p.read_bytes())
    return [str(p) for p in random.Random(0).sample(every, min(files, len(every)))]


def clock_seconds(command: list[str], cores: int = 1, **environment: str) -> float:
    """How long a command takes on so many cores."""
    chosen = sorted(os.sched_getaffinity(0))[:cores]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    begin = time.perf_counter()
    subprocess.run(
        command, env={**os.environ, **environment}, preexec_fn=lambda: os.sched_setaffinity(0, chosen), **quiet
    )
    return time.perf_counter() - begin


PARSE = "import ast, sys\nfor f in sys.argv[1:]: ast.parse(open(f, 'rb').read())"


def of_package(package: str, files: int, repeats: int) -> dict[str, float]:
    """Seconds of each way to read a package's files, the least of `repeats`, and the ratios that matter."""
    paths = sample(package, files)
    check = [sys.executable, "-m", "autofuse", "check", "--exit-zero"]
    seconds: dict[str, list[float]] = {}
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as cache:
            kept = {"AUTOFUSE_CACHE_DIR": cache}
            ways = {
                "parsed": ([sys.executable, "-c", PARSE, *paths], 1),
                "ruff": ([sys.executable, "-m", "ruff", "check", "--no-cache", "--isolated", *paths], 1),
                "start": ([*check, "--no-cache", __file__], 1),
                "two_cores": ([*check, "--no-cache", *paths], 2),
                "cold": ([*check, *paths], 1),
                "cached": ([*check, *paths], 1),
            }
            for name, (command, cores) in ways.items():
                seconds.setdefault(name, []).append(clock_seconds(command, cores, **kept))
    least = {name: min(of_it) for name, of_it in seconds.items()}
    reading = least["cold"] - least["start"]
    return {
        **{f"{name}_seconds": value for name, value in least.items()},
        "files": len(paths),
        "files_a_second_cold": len(paths) / reading,
        "cold_over_parsed": reading / least["parsed"],
        "cold_over_ruff": least["cold"] / least["ruff"],
        "cold_over_cached": least["cold"] / least["cached"],
        "one_core_over_two": least["cold"] / least["two_cores"],
    }


def packages(options: argparse.Namespace) -> int:
    """Measures installed packages. Returns 1 where a target is missed."""
    results = {name: of_package(name, options.sample, options.repeats) for name in options.packages}
    missed = []
    for name, result in results.items():
        print(name)
        for key, value in result.items():
            print(f"{key:>33} {value:,.3f}")
        missed += [f"{name}: from the cache 20 times faster"] if result["cold_over_cached"] < 20 else []
        missed += [f"{name}: two cores 1.5 times faster"] if result["one_core_over_two"] < 1.5 else []
    print("\n".join(f"MISSED: {target}" for target in missed) or "all targets met")
    if options.output:
        options.output.write_text(json.dumps(results, indent=2) + "\n")
    return 1 if missed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--output", type=Path, help="a JSON file for the result")
    parser.add_argument("--packages", nargs="+", metavar="NAME", help="measure files of these installed packages")
    parser.add_argument("--sample", type=int, default=300, help="how many files of each package (default: 300)")
    options = parser.parse_args()
    if options.packages:
        return packages(options)
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
