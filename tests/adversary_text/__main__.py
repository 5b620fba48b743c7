"""Runs adversarial programs for the codemod by hand: `python -m tests.adversary_text [words of their names] [--show]`.

--show prints the texts before and after the edits, with the messages. --known runs only the programs in known.txt, and
writes that file again with those that are still wrong. --all-known runs all requested programs, and lists in known.txt
all of them that are wrong.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter

os.environ.setdefault("OMP_NUM_THREADS", "1")

from tests.adversary_text.judge import MOST, BrokenProgram, Verdict, verdicts
from tests.adversary_text.program import KNOWN, Program
from tests.adversary_text.tables import every_program


def main(words: list[str]) -> None:
    show, known, all_known = ("--show" in words, "--known" in words, "--all-known" in words)
    words = [w for w in words if not w.startswith("--")]
    listed = {line.rpartition(" [")[0] for line in KNOWN.read_text().splitlines()}
    chosen = [p for p in every_program() if all(w in p.name for w in words) and (p.name in listed or not known)]
    wrong: list[str] = []
    counts: Counter[str] = Counter()
    offered: Counter[str] = Counter()
    started = time.process_time()
    for program in chosen:
        try:
            found = verdicts(program)
        except BrokenProgram as broken:
            counts["broken"] += 1
            print(f"BROKEN {broken}")
            continue
        for v in found:
            counts[f"{v.level} {v.outcome}"] += 1
            wrong += [f"{program.name} [{v.level}]"] * bool(v.wrong)
            if v.wrong or show:
                print(f"{v.outcome.upper()} {program.name} [{v.level}] {_why(v, show)}")
        offered.update(told.partition(" ")[0] for told in found[0].told)
        _show(program, found) if show else None
    if known or all_known:
        _write_known(wrong, {p.name for p in chosen}, {p.name for p in every_program()})
    print(f"{len(chosen)} programs in {time.process_time() - started:.0f} s of CPU: {dict(sorted(counts.items()))}")
    print(f"edits offered: {dict(sorted(offered.items()))}")


def _write_known(wrong: list[str], judged: set[str], programs: set[str]) -> None:
    """Writes the judged programs that are wrong to known.txt, and keeps the other listed programs that still exist."""
    listed = {line: line.rpartition(" [")[0] for line in KNOWN.read_text().splitlines()}
    kept = [line for line, name in listed.items() if name in programs - judged]
    KNOWN.write_text("".join(f"{cell}\n" for cell in sorted([*kept, *wrong])))


def _why(verdict: Verdict, show: bool) -> str:
    return "; ".join(w[:150] for w in verdict.wrong[: MOST if show else 1])


def _show(program: Program, found: list[Verdict]) -> None:
    print(program.text, *(f"  {told}" for told in found[0].told), f"drive: {program.drive}", sep="\n")
    for v in found:
        print(f"--- {v.level}", v.text if v.text.strip() != program.text.strip() else "unchanged", sep="\n")


main(sys.argv[1:])
