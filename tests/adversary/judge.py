"""Judges one program: right in every way of capture, or what is wrong with it."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from tests.adversary.compare import differences
from tests.adversary.program import WAYS, Program
from tests.adversary.world import Seen, seen_of

MOST = 4  # differences that are told of one program


@dataclass(frozen=True)
class Verdict:
    """What came of one program in one way of capture. wrong: empty where it is right."""

    way: str
    fused: bool
    wrong: tuple[str, ...]
    report: str

    @property
    def outcome(self) -> str:
        return "wrong" if self.wrong else "fused" if self.fused else "refused"


def verdicts(program: Program, ways: tuple[str, ...] = WAYS) -> list[Verdict]:
    """One for each way. Raises RuntimeError for a program that does not run as its author wrote it."""
    with tempfile.TemporaryDirectory() as folder:
        original = seen_of(program, None, Path(folder))
        _check(program, original)
        return [_verdict(program, original, seen_of(program, way, Path(folder)), way) for way in ways]


def _check(program: Program, original: Seen) -> None:
    """A program whose very first call raises attacks nothing."""
    label, first = original.snapshots[0]
    if isinstance(first, str) and first.startswith("raises"):
        raise RuntimeError(f"{program}: {label} {first} in the original")


def _verdict(program: Program, original: Seen, optimized: Seen, way: str) -> Verdict:
    wrong = [optimized.error] if optimized.error else []
    found = differences(optimized.before_optimize, optimized.after_optimize, 0.0, "optimize itself changed")
    wrong += list(islice(found, MOST))
    after = dict(optimized.snapshots)
    for label, before in original.snapshots:
        if label in after:  # a call that raises on one side has no gradients there
            wrong += islice(differences(before, after[label], program.tolerance, label), MOST)
    if program.fused and not optimized.fused:
        wrong += ["nothing stands in the way, but it is not fused"]
    return Verdict(way, optimized.fused, tuple(wrong[:MOST]), optimized.report)
