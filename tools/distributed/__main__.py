"""Trains a small model plain and optimized in every distributed wrapping, and writes the table in docs/distributed.md.

    python -m tools.distributed                               every row, on CPU with gloo
    python -m tools.distributed --device cuda                 the same with nccl, if there are enough GPUs
    python -m tools.distributed --only FSDP2 "DDP, midway"    the rows whose name contains one of these
    python -m tools.distributed --list                        list the rows

Starts torchrun for each number of ranks, and again if a row ended its processes. Exits with 1 if a row failed that is
not expected to fail.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tools.distributed.launch import Result, run_rows
from tools.distributed.matrix import RANKS, rows_of
from tools.distributed.table import as_json, as_markdown

DOCS = Path(__file__).parents[2] / "docs" / "distributed.md"


def main(argv: list[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    if options.list:
        for ranks in RANKS:
            for way, order in rows_of(ranks, options.only):
                print(f"{ranks} ranks: {way.name}, {order}")
        return 0
    results: list[Result] = []
    for ranks in RANKS:
        results += run_rows(ranks, options.only, options.device)
    for result in results:
        print(f"{result.verdict:10} {result.name}, {result.order}: {result.reason or 'equal'}")
    if options.output:
        options.output.write_text(as_markdown(results))
    if options.json:
        options.json.write_text(as_json(results))
    return 1 if any(r.verdict in ("failed", "ended") for r in results) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m tools.distributed", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="WORDS", help="rows whose name has one of these")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cpu with gloo, or cuda with nccl")
    parser.add_argument("--output", type=Path, help=f"the table; {DOCS.name} in docs/ is kept by this")
    parser.add_argument("--json", type=Path, help="every row, as JSON")
    parser.add_argument("--list", action="store_true", help="name the rows and run none")
    return parser


if __name__ == "__main__":
    sys.exit(main())
