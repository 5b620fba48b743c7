"""Runs adversarial programs by hand: `python -m tests.adversary [words of their names] [--night] [--show] [--known]`.

--known runs only the programs in known.txt, and writes that file again with those that are still wrong.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections import Counter

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("AUTOFUSE_MEASURED", "0")

from tests.adversary.judge import verdicts
from tests.adversary.program import KNOWN
from tests.adversary.tables import every_program


def main(words: list[str]) -> None:
    night, show = "--night" in words, "--show" in words
    known = KNOWN.read_text().splitlines() if "--known" in words else []
    programs = {line.rpartition(" [")[0] for line in known}
    words = [w for w in words if not w.startswith("--")]
    chosen = [p for p in every_program() if (night or not p.night) and all(w in p.name for w in words)]
    chosen = [p for p in chosen if p.name in programs or not known]
    wrong = []
    counts: Counter[str] = Counter()
    started = time.time()
    for program in chosen:
        if show:
            print(program.source)
        try:
            found = verdicts(program)
        except Exception as error:
            counts["broken"] += 1
            print(f"BROKEN {program.name}: {error!r}")
            traceback.print_exc(limit=-3) if show else None
            continue
        for v in found:
            counts[f"{program.area} {v.outcome}"] += 1
            wrong += [f"{program.name} [{v.way}]"] * bool(v.wrong)
            if v.wrong or show:
                print(f"{v.outcome.upper()} {program.name} [{v.way}] {'; '.join(v.wrong)}  <{v.report}>")
    if known and not words:
        wrong += [cell for cell in known if cell.startswith("the long program")]  # it has a test of its own
        KNOWN.write_text("".join(f"{cell}\n" for cell in sorted(wrong)))
    print(f"{len(chosen)} programs in {time.time() - started:.0f} s: {dict(sorted(counts.items()))}")


main(sys.argv[1:])
