"""The speed of the codemod: files per second of `autofuse check` without torch code, and the start of the command.

    python benchmarks/source.py --output benchmarks/results/source.json
    python benchmarks/source.py --packages torch transformers --output benchmarks/results/installed.json

CPU time (user and system) of whole processes on one core. Targets: 1,000 files per second after the start, and less
than 0.2 s for `autofuse --version`. Exits with 1 if one is missed. Files that import torch but contain nothing to fuse
are timed too, without a target.

With `--packages`, installed packages are read instead: cold on one core and on two, from the cache, with ast.parse and
with ruff, interleaved. Without `--sample`, `autofuse check` reads the whole folder, as its users do, and ast.parse and
ruff read those of its files that mention torch. With `--sample 300`, all of them read the same 300 files that mention
torch by name; `check` then parses each of them, also those without the words of a rule.

Ratios on one core are those of CPU time of whole processes, minus the start if the name says `reading`. Two cores are
compared by the wall clock, so other programs count against them. Targets: 300 files per second and 3 times the CPU time
of ast.parse on one core, at least 20 times faster from the cache, at least 1.5 times faster on two cores.
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
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

# Reading a thousand files takes less time than the difference between two starts of the command.
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
    """Writes `files` plain Python files of 30 to 300 lines, in folders of fifty."""
    generator = random.Random(0)
    for i in range(files):
        path = folder / f"package_{i // 50:02}" / f"module_{i:04}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        functions = "".join(_function(generator) for _ in range(generator.randint(3, 30)))
        path.write_text(f"{first_line}\n{functions}")


def _function(generator: random.Random) -> str:
    verb, noun = generator.choice(_VERBS), generator.choice(_NOUNS)
    return "\n" + _FUNCTION.format(verb=verb, Verb=verb.title(), noun=noun, number=generator.randint(2, 99))


def cpu_seconds(*arguments: str) -> float:
    """User and system time of `autofuse` with these arguments."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    no_output = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run([sys.executable, "-m", "autofuse", *arguments], check=True, **no_output)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def measure(repeats: int) -> dict[str, float]:
    """The least of several runs, which other programs disturb least. A first run fills the disk cache."""
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
    """Files per second of `autofuse check` after its start, and the CPU seconds of the start: a tree of one file."""
    with tempfile.TemporaryDirectory() as name:
        seconds = []
        for count in (1, files):
            folder = Path(name) / str(count)
            tree(folder, count, first_line)
            cpu_seconds("check", str(folder))
            seconds.append(min(cpu_seconds("check", str(folder)) for _ in range(repeats)))
    return (files - 1) / max(seconds[1] - seconds[0], 1e-3), seconds[0]


def root_of(package: str) -> str:
    """The folder of an installed package."""
    found = find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise SystemExit(f"The package {package} is not installed.")
    return next(iter(found.submodule_search_locations))


def sample(package: str, files: int) -> list[str]:
    """Files of an installed package that mention torch, always the same ones; all of them if `files` is 0."""
    every = sorted(p for p in Path(root_of(package)).rglob("*.py") if b"torch" in p.read_bytes())
    return [str(p) for p in random.Random(0).sample(every, min(files or len(every), len(every)))]


@dataclass(frozen=True)
class Seconds:
    """The time of a command: by the wall clock, and CPU time on all cores."""

    clock: float
    cpu: float


def seconds_of(command: list[str], cores: int = 1, **environment: str) -> Seconds:
    """The time of a command on this number of cores."""
    chosen = sorted(os.sched_getaffinity(0))[:cores]
    no_output = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        command, env={**os.environ, **environment}, preexec_fn=lambda: os.sched_setaffinity(0, chosen), **no_output
    )
    clock, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    return Seconds(clock, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)


PARSE = """import ast, sys, warnings
warnings.simplefilter("ignore")
for f in open(sys.argv[1]).read().splitlines():
    try:
        ast.parse(open(f, "rb").read())
    except SyntaxError:  # of a newer Python
        pass
"""


def measure_package(package: str, files: int, repeats: int) -> dict[str, float]:
    """Seconds of each way to read a package's files, the least of `repeats`, and their ratios."""
    paths = sample(package, files)
    checked = paths if files else [root_of(package)]
    check = [sys.executable, "-m", "autofuse", "check", "--exit-zero"]
    found: dict[str, list[Seconds]] = {}
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as cache:
            named, kept = Path(cache) / "files.txt", {"AUTOFUSE_CACHE_DIR": cache}
            named.write_text("\n".join(paths))
            ways = {
                "nothing": ([sys.executable, "-c", "import ast"], 1),
                "parsed": ([sys.executable, "-c", PARSE, str(named)], 1),
                "ruff": ([sys.executable, "-m", "ruff", "check", "--no-cache", "--isolated", *paths], 1),
                "start": ([*check, "--no-cache", __file__], 1),
                "two_cores": ([*check, "--no-cache", *checked], 2),
                "cold": ([*check, *checked], 1),
                "cached": ([*check, *checked], 1),
            }
            for name, (command, cores) in ways.items():
                found.setdefault(name, []).append(seconds_of(command, cores, **kept))
    cpu = {name: min(s.cpu for s in runs) for name, runs in found.items()}
    clock = {name: min(s.clock for s in runs) for name, runs in found.items()}
    reading, parsing = cpu["cold"] - cpu["start"], cpu["parsed"] - cpu["nothing"]
    return {
        **{f"{name}_cpu_seconds": value for name, value in cpu.items()},
        "cold_clock_seconds": clock["cold"],
        "two_cores_clock_seconds": clock["two_cores"],
        "files": len(paths),
        "bytes": sum(map(os.path.getsize, paths)),
        "files_a_second_reading": len(paths) / reading,
        "files_a_second_cached": len(paths) / cpu["cached"],
        "reading_over_parsing": reading / parsing,
        "cold_over_ruff": cpu["cold"] / cpu["ruff"],
        "cached_over_ruff": cpu["cached"] / cpu["ruff"],
        "cold_over_cached": cpu["cold"] / cpu["cached"],
        "one_core_over_two_by_the_clock": clock["cold"] / clock["two_cores"],
    }


def packages(options: argparse.Namespace) -> int:
    """Measures installed packages. Returns 1 if a target is missed."""
    load = os.getloadavg()
    results = {name: measure_package(name, options.sample, options.repeats) for name in options.packages}
    targets = {}
    for name, result in results.items():
        print(name)
        for key, value in result.items():
            print(f"{key:>33} {value:,.3f}")
        targets |= {
            f"{name}: 300 files a second": result["files_a_second_reading"] >= 300,
            f"{name}: 3 times ast.parse": result["reading_over_parsing"] <= 3,
            f"{name}: from the cache 20 times faster": result["cold_over_cached"] >= 20,
            f"{name}: two cores 1.5 times faster": result["one_core_over_two_by_the_clock"] >= 1.5,
        }
    for target, met in targets.items():
        print(f"{'met' if met else 'MISSED'}: {target}")
    if options.output:
        machine = {**environment(), "cores": len(os.sched_getaffinity(0)), "repeats": options.repeats}
        machine |= {"load_before": load, "load_after": os.getloadavg()}
        data = {"version": 1, "benchmark": "installed packages", "targets": targets, "packages": results}
        data |= {"environment": machine}
        options.output.write_text(json.dumps(data, indent=2) + "\n")
    return 0 if all(targets.values()) else 1


def environment() -> dict[str, object]:
    return {"python": platform.python_version(), "platform": f"{platform.system()} {platform.machine()}"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--output", type=Path, help="a JSON file for the result")
    parser.add_argument("--packages", nargs="+", metavar="NAME", help="measure files of these installed packages")
    parser.add_argument("--sample", type=int, default=0, help="how many files of each package (default: the folder)")
    options = parser.parse_args()
    if options.packages:
        return packages(options)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    result = measure(options.repeats)
    targets = {
        f"{FILES_A_SECOND:,} files a second": result["files_a_second"] >= FILES_A_SECOND,
        f"--version under {START} s": result["version_cpu_seconds"] < START,
    }
    for name, value in result.items():
        print(f"{name:>33} {value:,.3f}" if isinstance(value, float) else f"{name:>33} {value:,}")
    for target, met in targets.items():
        print(f"{'met' if met else 'MISSED'}: {target}")
    if options.output:
        data = {"version": 1, "benchmark": "source", "targets": targets, **result, "environment": environment()}
        options.output.write_text(json.dumps(data, indent=2) + "\n")
    return 0 if all(targets.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
