"""Judges one program: it is right in every way of capture, or there is a list of what is wrong."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from tests.adversary.compare import differences
from tests.adversary.program import WAYS, Program
from tests.adversary.world import RunRecord, record_run

MOST = 4  # differences reported for one program


@dataclass(frozen=True)
class Verdict:
    """The outcome of one program in one way of capture. wrong: what is wrong, empty if the program is right."""

    way: str
    fused: bool
    wrong: tuple[str, ...]
    report: str

    @property
    def outcome(self) -> str:
        return "wrong" if self.wrong else "fused" if self.fused else "refused"


def verdicts(program: Program, ways: tuple[str, ...] = WAYS) -> list[Verdict]:
    """Returns one verdict for each way. Raises RuntimeError if the program does not run without autofuse."""
    with tempfile.TemporaryDirectory() as folder:
        original = record_run(program, None, Path(folder))
        _check(program, original)
        return [_verdict(program, original, record_run(program, way, Path(folder)), way) for way in ways]


def _check(program: Program, original: RunRecord) -> None:
    """Raises RuntimeError if the first call of the original fails, because such a program tests nothing."""
    label, first = original.snapshots[0]
    if isinstance(first, str) and first.startswith("raises"):
        raise RuntimeError(f"{program}: {label} {first} in the original")


def _verdict(program: Program, original: RunRecord, optimized: RunRecord, way: str) -> Verdict:
    wrong = [optimized.error] if optimized.error else []
    found = differences(optimized.before_optimize, optimized.after_optimize, 0.0, "optimize itself changed")
    wrong += list(islice(found, MOST))
    after = dict(optimized.snapshots)
    for label, before in original.snapshots:
        if label in after:  # a call that raises in one run has no gradients there
            wrong += islice(differences(before, after[label], program.tolerance, label), MOST)
    if program.fused and not optimized.fused:
        wrong += ["the program must be fused, but it is not fused"]
    return Verdict(way, optimized.fused, tuple(wrong[:MOST]), optimized.report)
