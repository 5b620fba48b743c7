"""Chooses the spellings that the default test run uses: `python -m tools.spellings`. Run it after you add spellings.

The chosen spellings cover every branch of autofuse that any spelling covers, in the FX pass and in the codemod, and
include one of every family (a file of tests/spellings and a rule in it). The others are written to
tests/spellings/by_night.txt. It takes about ten minutes.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TRITON_INTERPRET", "1")
os.environ.setdefault("AUTOFUSE_MEASURED", "0")

import coverage

import autofuse
from autofuse.cli import main
from tests.spellings.harness import BY_NIGHT, LOOKALIKES, SPELLED, Spelling, arguments, example, family

PACKAGE = str(Path(autofuse.__file__).parent)
Branch = tuple[str, int, int]


def covered_branches(s: Spelling) -> set[Branch]:
    """Return the branches of autofuse that a spelling covers, in the FX pass and in the codemod."""
    measured = coverage.Coverage(data_file=None, branch=True, include=[f"{PACKAGE}/*"], config_file=False)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        measured.start()
        try:
            _run_fx_pass(s)
            _run_codemod(s)
        finally:
            measured.stop()
    data = measured.get_data()
    return {(file, *arc) for file in data.measured_files() for arc in data.arcs(file) or ()}


def _run_fx_pass(s: Spelling) -> None:
    for given in {True, not s.optional}:
        autofuse.optimize(s.module(), arguments(s, example(s, given)))


def _run_codemod(s: Spelling) -> None:
    for options in ((), ("--unsafe",)):
        with TemporaryDirectory() as folder:
            path = Path(folder) / "model.py"
            path.write_text(s.text())
            main(["rewrite", *options, str(path)])


def choose(branches: dict[Spelling, set[Branch]]) -> list[Spelling]:
    """Choose spellings greedily until they cover every branch; then add one of each missing family."""
    missing = set[Branch]().union(*branches.values())
    left, found = list(branches), list[Spelling]()
    while missing:
        best = max(left, key=lambda s: len(branches[s] & missing))
        missing -= branches[best]
        left.remove(best)
        found.append(best)
    families = {family(s) for s in found}
    for s in left:
        if family(s) not in families:
            families.add(family(s))
            found.append(s)
    return sorted(found, key=lambda s: (s.path.stem, s.name))


if __name__ == "__main__":
    every = (*SPELLED, *LOOKALIKES)
    covered_branches(every[0])  # code that runs once in a process must not count for the first spelling
    branches = dict[Spelling, set[Branch]]()
    for i, s in enumerate(every):
        branches[s] = covered_branches(s)
        print(f"{i + 1} of {len(every)}: {s.name}", file=sys.stderr)
    sample = choose(branches)
    left_out = sorted(f"{s.path.stem} {s.name}\n" for s in every if s not in sample)
    BY_NIGHT.write_text("".join(left_out))
    print(f"{len(sample)} of {len(every)} spellings cover all {len(set().union(*branches.values()))} branches")
