"""Runs the rewritten code before and after: the original package, and a copy with the rewritten files.

Each package runs in two processes of its own, so that it cannot affect the rest. execute.py builds and calls the code.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from tools.ecosystem.rewriting import Looked
from tools.ecosystem.sources import Tree

REPOSITORY = Path(__file__).parents[2]

# The rounding error of 2**14 additions in float64 relative to the largest value, enough for a small module and its
# gradients. A rewrite with another meaning is wrong by many orders of magnitude more.
_BOUND = 2**14 * torch.finfo(torch.float64).eps
_BOUND_OF_FLOAT32 = 2**8 * torch.finfo(torch.float32).eps  # if the code itself casts to float32


@dataclass(frozen=True)
class Ran:
    """The outcome for a symbol: equal, different, or not run. `why` is the difference, or why it was not run."""

    module: str
    symbol: str
    outcome: str
    why: str = ""


def run_both(tree: Tree, looked: Sequence[Looked]) -> list[Ran]:
    """Run every rewritten function of a tree before and after, if small arguments for it can be guessed."""
    changed = [f for f in looked if f.after is not None]
    if not changed:
        return []
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        shutil.copytree(tree.folder, copy / tree.folder.relative_to(tree.root), copy_function=os.link)
        for f in changed:
            new = copy / f.file.relative_to(tree.root)
            new.unlink()  # removes the hard link, so that the original file is not overwritten
            new.write_bytes(f.after or b"")
        return _both(tree, copy, changed, Path(folder))


def _both(tree: Tree, copy: Path, changed: Sequence[Looked], folder: Path) -> list[Ran]:
    """Run the original and the copy, and compare their results."""
    job = {tree.module(f.file): _symbols(f) for f in changed}
    (folder / "job.json").write_text(json.dumps(job))
    names = [(module, symbol) for module, symbols in job.items() for symbol in symbols]
    reasons: list[dict[str, str]] = []
    for half, root in (("before", tree.root), ("after", copy)):
        if (failure := _execute(root, folder, half, len(names))) is not None:
            return [Ran(m, s, "not run", f"{half}, {failure}") for m, s in names]
        reasons.append(json.loads((folder / f"{half}.json").read_text()))
    before, after = (torch.load(folder / half) for half in ("before", "after"))
    keys = [(m, s, f"{m}:{s}") for m, s in names]
    bounds = {tree.module(f.file): _error_bound(f) for f in changed}
    return [
        _compare(m, s, before.get(k), after.get(k), *(r.get(k, "") for r in reasons), bounds[m]) for m, s, k in keys
    ]


def _error_bound(looked: Looked) -> float:
    text = looked.file.read_bytes()
    return _BOUND_OF_FLOAT32 if b"float32" in text or b".float()" in text else _BOUND


def _symbols(looked: Looked) -> list[str]:
    """The classes and functions of a file that contain its edits."""
    found = (_reachable_name(f.symbol) for f in looked.findings if f.status in ("safe", "unsafe"))
    return list(dict.fromkeys(filter(None, found)))


def _reachable_name(symbol: str) -> str:
    """The class or function of the module that contains a symbol; "" if the symbol is nested in a function."""
    parts = symbol.split(".")
    return "" if symbol.startswith("<") else parts[0] if len(parts) <= 2 or parts[-1] == "<lambda>" else ""


def _execute(root: Path, folder: Path, half: str, count: int) -> str | None:
    """Run one half. Return what went wrong, or None."""
    files = [str(folder / name) for name in ("job.json", "plan.json", half)]
    path = os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH", ""))))
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tools.ecosystem.execute", str(root), *files]
    try:
        done = subprocess.run(command, capture_output=True, env=environment, timeout=120 + 10 * count, cwd=folder)
    except subprocess.TimeoutExpired:
        return "the process took too long"
    message = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
    return None if done.returncode == 0 else " ".join([f"the process ended with {done.returncode}:", *message])


def _compare(
    module: str,
    symbol: str,
    before: list[Tensor] | None,
    after: list[Tensor] | None,
    reason: str,
    later: str,
    bound: float,
) -> Ran:
    if before is None:
        return Ran(module, symbol, "not run", reason)
    if after is None:
        return Ran(module, symbol, "different", f"runs before, not after: {later}")
    if [t.shape for t in before] != [t.shape for t in after]:
        return Ran(module, symbol, "different", "what it returns has other shapes")
    worst = max((_error(a, b, bound) for a, b in zip(before, after, strict=True)), default=0.0)
    if worst <= 1:
        return Ran(module, symbol, "equal")
    return Ran(module, symbol, "different", f"{worst:.1e} times as far off as rounding explains")


def _error(before: Tensor, after: Tensor, bound: float) -> float:
    """The largest difference, in units of the bound. Where the original is NaN (a fully masked row), nothing counts."""
    known = ~before.isnan()
    if not bool(known.any()):
        return 0.0
    a, b = before[known].double(), after[known].double()
    finite = a.isfinite()
    if not torch.equal(a[~finite], b[~finite]):
        return float("inf")
    scale = 1 + float(a[finite].abs().max()) if bool(finite.any()) else 1.0
    return float((a - b)[finite].abs().nan_to_num(float("inf")).max()) / (bound * scale) if bool(finite.any()) else 0.0
