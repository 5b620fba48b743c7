"""Runs programs of the attack by hand: `python -m tests.adversary [words of their names] [--night] [--show]`."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections import Counter

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("AUTOFUSE_MEASURED", "0")

from tests.adversary.judge import verdicts
from tests.adversary.tables import every_program


def main(words: list[str]) -> None:
    night, show = "--night" in words, "--show" in words
    words = [w for w in words if not w.startswith("--")]
    chosen = [p for p in every_program() if (night or not p.night) and all(w in p.name for w in words)]
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
            if v.wrong or show:
                print(f"{v.outcome.upper()} {program.name} [{v.way}] {'; '.join(v.wrong)}  <{v.report}>")
    print(f"{len(chosen)} programs in {time.time() - started:.0f} s: {dict(sorted(counts.items()))}")


main(sys.argv[1:])
