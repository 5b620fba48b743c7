"""Runs a training program interleaved: the original, the original again, the rewritten program, and so on.

The runs are interleaved because the speed of the machine drifts. The second run of the original is the A/A control: it
shows how much the machine's timings differ by chance. The first steps of each run are a warm-up and not timed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from autofuse.measure.statistics import paired_ratio
from autofuse.results.comparison import Estimate
from tools.gallery.repository import Repository, Unavailable, last_line

STEPS = 20
ROUNDS = 3
_WARM_UP = 4
_SECONDS = 600
_RECORDED = Path(__file__).with_name("recorded.py")


@dataclass(frozen=True)
class Trained:
    """The losses of every backward pass, before and after; the speed; and the A/A control, `again`."""

    before: tuple[float, ...]
    after: tuple[float, ...]
    speed: Estimate
    again: Estimate
    step_seconds: float

    @property
    def first(self) -> float:
        """The difference of the first losses, before any optimizer step, relative to the original's loss."""
        return next((abs(a - b) / max(abs(a), 1e-12) for a, b in zip(self.before, self.after, strict=True)), 0.0)

    @property
    def difference(self) -> float:
        """The largest difference of two losses, relative to the original's loss."""
        pairs = zip(self.before, self.after, strict=True)
        return max((abs(a - b) / max(abs(a), 1e-12) for a, b in pairs), default=0.0)


def train_both(repository: Repository, before: Path, after: Path, steps: int = STEPS, rounds: int = ROUNDS) -> Trained:
    """Train in both folders. Raises Unavailable if the original program does not run."""
    seconds: dict[str, list[float]] = {"before": [], "again": [], "after": []}
    losses: dict[str, tuple[float, ...]] = {}
    for turn in range(rounds):
        order = ["before", "again", "after"]
        for way in order if turn % 2 == 0 else reversed(order):
            found = _run(repository, after if way == "after" else before, steps)
            seconds[way] += found["seconds"][_WARM_UP:]
            losses[way] = tuple(found["losses"])
    if not losses["before"] or len(losses["before"]) != len(losses["after"]):
        raise Unavailable("before and after have different numbers of backward passes")
    return Trained(
        losses["before"], losses["after"], paired_ratio(seconds["before"], seconds["after"]).estimate,
        paired_ratio(seconds["before"], seconds["again"]).estimate,
        sorted(seconds["before"])[len(seconds["before"]) // 2],
    )  # fmt: skip


def _run(repository: Repository, tree: Path, steps: int) -> dict[str, list[float]]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "steps.json"
        command = [sys.executable, str(_RECORDED), str(out), str(steps), *repository.command]
        environment = {**os.environ, "PYTHONPATH": str(tree), "CUDA_VISIBLE_DEVICES": "", "PYTHONHASHSEED": "0"}
        try:
            done = subprocess.run(
                command, cwd=tree / repository.directory, env=environment, capture_output=True, text=True,
                timeout=_SECONDS, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except subprocess.TimeoutExpired as late:
            raise Unavailable(f"{steps} steps took more than {_SECONDS} seconds") from late
        found: dict[str, list[float]] = json.loads(out.read_text()) if out.exists() else {"seconds": [], "losses": []}
        if len(found["seconds"]) <= _WARM_UP:
            raise Unavailable(f"its program does not run here: {last_line(done.stderr)}")
        return found
