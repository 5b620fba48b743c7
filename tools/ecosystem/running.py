"""What was rewritten, run before and after: the original package, and a copy of it with the rewritten files.

Each package has two processes of its own, so that nothing it does can reach the run. Knows processes and the
comparison; how things are built and called is the business of execute.py.
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

# Rounding of some sixteen thousand additions in float64, at the magnitude of the largest value: what a small module
# and its gradients take. A rewrite that means something else is wrong by many orders more.
_BOUND = 2**14 * torch.finfo(torch.float64).eps
_BOUND_OF_FLOAT32 = 2**8 * torch.finfo(torch.float32).eps  # where the text itself casts to float32 on the way


@dataclass(frozen=True)
class Ran:
    """`outcome`: equal, different, not run; `why` is the difference, or what stood in the way."""

    module: str
    symbol: str
    outcome: str
    why: str = ""


def ran(tree: Tree, looked: Sequence[Looked]) -> list[Ran]:
    """Every rewritten function of one tree, run before and after where it can be built small."""
    changed = [f for f in looked if f.after is not None]
    if not changed:
        return []
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        shutil.copytree(tree.folder, copy / tree.folder.relative_to(tree.root), copy_function=os.link)
        for f in changed:
            new = copy / f.file.relative_to(tree.root)
            new.unlink()  # the link, not what it leads to
            new.write_bytes(f.after or b"")
        return _both(tree, copy, changed, Path(folder))


def _both(tree: Tree, copy: Path, changed: Sequence[Looked], folder: Path) -> list[Ran]:
    """The original and the copy, each run by a process; what both gave, compared."""
    job = {tree.module(f.file): _symbols(f) for f in changed}
    (folder / "job.json").write_text(json.dumps(job))
    names = [(module, symbol) for module, symbols in job.items() for symbol in symbols]
    reasons: list[dict[str, str]] = []
    for half, root in (("before", tree.root), ("after", copy)):
        if (failure := _executed(root, folder, half, len(names))) is not None:
            return [Ran(m, s, "not run", f"{half}, {failure}") for m, s in names]
        reasons.append(json.loads((folder / f"{half}.json").read_text()))
    before, after = (torch.load(folder / half) for half in ("before", "after"))
    keys = [(m, s, f"{m}:{s}") for m, s in names]
    bounds = {tree.module(f.file): _bound(f) for f in changed}
    return [
        _compared(m, s, before.get(k), after.get(k), *(r.get(k, "") for r in reasons), bounds[m]) for m, s, k in keys
    ]


def _bound(looked: Looked) -> float:
    text = looked.file.read_bytes()
    return _BOUND_OF_FLOAT32 if b"float32" in text or b".float()" in text else _BOUND


def _symbols(looked: Looked) -> list[str]:
    """What to run of a rewritten file: the classes and functions that hold its edits."""
    found = (_reachable(f.symbol) for f in looked.findings if f.status in ("safe", "unsafe"))
    return list(dict.fromkeys(filter(None, found)))


def _reachable(symbol: str) -> str:
    """The class or function of the module that holds a symbol; nothing where it is nested in a function."""
    parts = symbol.split(".")
    return "" if symbol.startswith("<") else parts[0] if len(parts) <= 2 or parts[-1] == "<lambda>" else ""


def _executed(root: Path, folder: Path, half: str, count: int) -> str | None:
    """Runs one half; what went wrong, if the process did not end well."""
    files = [str(folder / name) for name in ("job.json", "plan.json", half)]
    path = os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH", ""))))
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tools.ecosystem.execute", str(root), *files]
    try:
        done = subprocess.run(command, capture_output=True, env=environment, timeout=120 + 10 * count, cwd=folder)
    except subprocess.TimeoutExpired:
        return "the process took too long"
    said = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
    return None if done.returncode == 0 else " ".join([f"the process ended with {done.returncode}:", *said])


def _compared(
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
    """The largest difference, in units of the bound. NaN before may be anything after: a row masked out whole."""
    known = ~before.isnan()
    if not bool(known.any()):
        return 0.0
    a, b = before[known].double(), after[known].double()
    finite = a.isfinite()
    if not torch.equal(a[~finite], b[~finite]):
        return float("inf")
    scale = 1 + float(a[finite].abs().max()) if bool(finite.any()) else 1.0
    return float((a - b)[finite].abs().nan_to_num(float("inf")).max()) / (bound * scale) if bool(finite.any()) else 0.0
