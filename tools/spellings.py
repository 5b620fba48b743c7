"""Chooses the spellings that the default test run takes: `python -m tools.spellings`, after spellings have been added.

Every branch of autofuse that any spelling takes, through either door, is taken by one that is chosen, and every family
(a file of tests/spellings, and a rule in it) has one. The others are written to tests/spellings/by_night.txt. It
takes about ten minutes.
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


def taken(s: Spelling) -> set[Branch]:
    """The branches of autofuse that one spelling takes, through both doors."""
    measured = coverage.Coverage(data_file=None, branch=True, include=[f"{PACKAGE}/*"], config_file=False)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        measured.start()
        try:
            _through_live(s)
            _through_text(s)
        finally:
            measured.stop()
    data = measured.get_data()
    return {(file, *arc) for file in data.measured_files() for arc in data.arcs(file) or ()}


def _through_live(s: Spelling) -> None:
    for given in {True, not s.optional}:
        autofuse.optimize(s.module(), arguments(s, example(s, given)))


def _through_text(s: Spelling) -> None:
    for options in ((), ("--unsafe",)):
        with TemporaryDirectory() as folder:
            path = Path(folder) / "model.py"
            path.write_text(s.text())
            main(["rewrite", *options, str(path)])


def chosen(branches: dict[Spelling, set[Branch]]) -> list[Spelling]:
    """As few as the greedy choice finds that take every branch, and one of every family."""
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
    taken(every[0])  # what is done once in a process is no one's own
    branches = dict[Spelling, set[Branch]]()
    for i, s in enumerate(every):
        branches[s] = taken(s)
        print(f"{i + 1} of {len(every)}: {s.name}", file=sys.stderr)
    sample = chosen(branches)
    left_out = sorted(f"{s.path.stem} {s.name}\n" for s in every if s not in sample)
    BY_NIGHT.write_text("".join(left_out))
    print(f"{len(sample)} of {len(every)} take all {len(set().union(*branches.values()))} branches")
