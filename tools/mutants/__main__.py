"""Checks that the tests notice wrong changes: `python -m tools.mutants` makes about sixty, and runs the tests of each.

    python -m tools.mutants --list              list the mutants
    python -m tools.mutants --only masks -j 2   one area, two mutants at a time
    python -m tools.mutants --seed 7 --json F   other mutants, and the results in a file

It exits with 1 if fewer than nine in ten are noticed. tools/mutants/README.md judges the mutants that survived.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from tools.mutants.areas import AREAS
from tools.mutants.choosing import choose_mutants
from tools.mutants.running import KILLED, SURVIVED, TIMEOUT, FailingTestsError, Outcome, outcomes

ENOUGH = 0.9


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    mutants = choose_mutants(options.count, options.seed, tuple(options.only))
    if options.list:
        print("\n".join(f"{m.area:13} {m}" for m in mutants))
        return 0
    try:
        found = list(outcomes(mutants, options.jobs, options.timeout, _print_outcome))
    except FailingTestsError as error:
        print(error, file=sys.stderr)
        return 2
    print(_table(found))
    if options.json:
        options.json.write_text(json.dumps(_as_json(found, options.seed), indent=1) + "\n")
    return 0 if _count_killed(found) >= ENOUGH * len(found) else 1


def _print_outcome(outcome: Outcome) -> None:
    print(f"{outcome.status:9} {outcome.seconds:6.1f} s  {outcome.mutant}  {outcome.by}", file=sys.stderr, flush=True)


def _count_killed(found: list[Outcome]) -> int:
    return sum(o.status == KILLED for o in found)


def _table(found: list[Outcome]) -> str:
    lines = [f"{'area':13} {KILLED:>9} {SURVIVED:>9} {TIMEOUT:>9}"]
    for area in dict.fromkeys(o.mutant.area for o in found):
        counts = Counter(o.status for o in found if o.mutant.area == area)
        lines.append(f"{area:13} {counts[KILLED]:9} {counts[SURVIVED]:9} {counts[TIMEOUT]:9}")
    lines.append(f"{_count_killed(found)} of {len(found)} were noticed")
    for survivor in (o for o in found if o.status == SURVIVED):
        lines += ["", str(survivor.mutant), survivor.mutant.difference()]
    return "\n".join(lines)


def _as_json(found: list[Outcome], seed: int) -> dict[str, Any]:
    rows = [
        {
            "area": o.mutant.area,
            "file": o.mutant.file,
            "line": o.mutant.change.line,
            "operator": o.mutant.change.operator,
            "status": o.status,
            "seconds": o.seconds,
            "by": o.by,
            "difference": o.mutant.difference(),
        }
        for o in found
    ]
    return {"version": 1, "seed": seed, "mutants": rows}


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="list the mutants, and run nothing")
    parser.add_argument("--only", nargs="+", default=[], choices=AREAS, metavar="AREA", help=", ".join(AREAS))
    parser.add_argument("--seed", type=int, default=0, help="another seed makes other mutants (default: 0)")
    parser.add_argument("--count", type=int, default=63, help="the number of mutants (default: 63)")
    parser.add_argument("-j", "--jobs", type=int, default=2, help="the number that run at the same time (default: 2)")
    parser.add_argument(
        "--timeout",
        type=float,
        default=300,
        help="seconds for the tests of a mutant; after that, it counts as not noticed (default: 300)",
    )
    parser.add_argument("--json", type=Path, help="a file for the results")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
