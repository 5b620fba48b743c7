"""The same models by eager PyTorch, torch.compile, Liger, Thunder, ONNX Runtime, and autofuse, side by side.

    python -m benchmarks.peers --output benchmarks/results/peers.json
    python -m benchmarks.peers --models gpt my_package.models:build
    python -m benchmarks.peers --page docs/peers.md     only the page, from the results as they are
    python -m benchmarks.peers --models --ways eager Thunder autofuse --output benchmarks/results/peers-older-torch.json
                                                        only the look-alikes, with a torch on which Thunder runs

A model is a name of benchmarks/peers/models.py, or `package.module:function` that returns a model and its inputs. Each
way first runs alone in a process of its own: the seconds to its first training step with cold caches, its peak memory,
and what it fused. Those that run are then timed in one process, in interleaved rounds, on one thread, by the time for
which that thread had a core. A way that does not run is named with the reason. Exits with 1 if autofuse computes a
look-alike wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from autofuse.measure.environment import environment
from benchmarks.peers.models import MODELS
from benchmarks.peers.page import as_markdown, read_older, reason_in
from benchmarks.peers.ways import EAGER, OURS, WAYS
from benchmarks.rounds import QUIET_PROFILER, STEADY_ALLOCATOR

RESULTS = Path(__file__).parents[1] / "results" / "peers.json"
_LIMIT = 1800  # seconds for one process


def main(argv: list[str] | None = None) -> int:
    """Measures, and writes the results and the page."""
    options = _parser().parse_args(argv)
    if options.page:
        text = as_markdown(json.loads(options.output.read_text()), read_older(RESULTS.parent))
        options.page.write_text(text, encoding="utf-8")
        return 0
    data = _begin(options)
    for way in (w for w in options.ways if w not in data["lookalikes"]):
        with tempfile.TemporaryDirectory() as caches:
            data["lookalikes"][way] = _in_process(Path(caches), "judge", way)
        print(f"{way}: {_count_verdicts(data['lookalikes'][way])}", flush=True)
        _write(data, options.output)
    for name in (m for m in options.models if m not in data["models"]):
        data["models"][name] = measure(name, options.ways, options.seconds)
        data["load"].append(os.getloadavg()[0])
        print(f"{name}: {json.dumps(data['models'][name])}", flush=True)
        _write(data, options.output)
    return int("wrong" in data["lookalikes"].get(OURS, {}).values())


def _begin(options: argparse.Namespace) -> dict[str, Any]:
    """The results so far: those of the file, with --resume and the same versions."""
    about = {
        "version": 1, "benchmark": "peers", "environment": environment(torch.device("cpu")),
        "seconds": options.seconds,
        "ways": {way: {"distribution": WAYS[way].distribution, "version": WAYS[way].version()} for way in options.ways},
    }  # fmt: skip
    old = json.loads(options.output.read_text()) if options.resume and options.output.exists() else {}
    if old and {key: old.get(key) for key in about} == about:
        return dict(old)
    return {**about, "load": [os.getloadavg()[0]], "lookalikes": {}, "models": {}}


def _write(data: Mapping[str, Any], file: Path) -> None:
    """Stores the results so far, because a run takes long."""
    file.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def measure(name: str, ways: Sequence[str], seconds: float) -> dict[str, Any]:
    """One model by all ways. Each starts with caches of its own; what they hold then serves the timing."""
    with tempfile.TemporaryDirectory() as folder:
        caches = {way: Path(folder) / str(place) for place, way in enumerate(ways)}
        started = {way: _in_process(caches[way], "start", name, way) for way in ways}
        running = [way for way in ways if "absent" not in started[way]]
        if EAGER not in running:
            return {"started": started, "timed": {"absent": "eager did not run"}}
        for way in running:
            if caches[way].exists():
                shutil.copytree(caches[way], Path(folder) / "all", dirs_exist_ok=True)
        return {"started": started, "timed": _in_process(Path(folder) / "all", "time", str(seconds), name, *running)}


def _in_process(caches: Path, *arguments: str) -> dict[str, Any]:
    """The output of benchmarks/peers/one.py; `{"absent": reason}` if it did not run."""
    folders = {"TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"), "AUTOFUSE_CACHE_DIR": str(caches / "autofuse")}
    variables = {**os.environ, **STEADY_ALLOCATOR, **QUIET_PROFILER, **folders, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "benchmarks.peers.one", *arguments]
    try:
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=_LIMIT)
    except subprocess.TimeoutExpired:
        return {"absent": f"it did not end within {_LIMIT} seconds"}
    if done.returncode:
        return {"absent": reason_in(done.stderr, done.returncode)}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _count_verdicts(verdicts: dict[str, str]) -> str:
    """The number of look-alikes by verdict."""
    words = [v.partition(":")[0] for v in verdicts.values()]
    return ", ".join(f"{words.count(word)} {word}" for word in sorted(set(words)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--models", nargs="*", default=list(MODELS), metavar="MODEL", help="without a name: only the look-alikes"
    )
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to time each model")
    parser.add_argument("--output", type=Path, default=RESULTS, help="the JSON file of the results")
    parser.add_argument("--resume", action="store_true", help="keep what the file has, if all versions are the same")
    parser.add_argument("--page", type=Path, help="only write the page from the results")
    return parser


if __name__ == "__main__":
    sys.exit(main())
