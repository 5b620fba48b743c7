"""Tests autofuse under several versions of Python and torch, and writes docs/versions.md.

    python -m tools.matrix CACHE                              every row of cells.toml; environments are kept in CACHE
    python -m tools.matrix CACHE --ci                         the rows that CI runs
    python -m tools.matrix CACHE --only 3.11/2.9.1            one row
    python -m tools.matrix CACHE --output docs/versions.md --json benchmarks/results/versions.json

An environment takes several gigabytes where torch is a build for CUDA. It exits with 1 if a test fails or a training
differs. A row whose environment cannot be made here is named with the reason, and does not fail.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from tools.matrix.cells import Cell, Result, read_cells, results_as_json
from tools.matrix.page import as_markdown
from tools.matrix.running import run_cell


def main(argv: list[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    try:
        cells = _chosen(options)
    except ValueError as problem:
        print(f"tools.matrix: {problem}", file=sys.stderr)
        return 2
    results: list[Result] = []
    with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty()) as progress:
        for cell in progress.track(cells, description="environments"):
            results.append(run_cell(cell, options.cache.resolve()))
            if options.json:  # a run takes long, so each row is kept at once
                options.json.write_text(results_as_json(results))
    if options.output:
        options.output.write_text(as_markdown(results))
    else:
        print(as_markdown(results))
    return 0 if all(r.holds or r.absent for r in results) else 1


def _chosen(options: argparse.Namespace) -> tuple[Cell, ...]:
    """The rows to run. Raises ValueError for a row that is not in the table."""
    cells = tuple(c for c in read_cells() if c.ci or not options.ci)
    if not options.only:
        return cells
    known = {f"{c.python}/{c.torch}": c for c in cells}
    if unknown := set(options.only) - set(known):
        raise ValueError(f"No row is called {', '.join(sorted(unknown))}. Rows: {', '.join(known)}.")
    return tuple(known[name] for name in options.only)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tools.matrix", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cache", type=Path, help="the folder of the environments")
    parser.add_argument("--ci", action="store_true", help="only the rows that CI runs")
    parser.add_argument("--only", nargs="+", metavar="PYTHON/TORCH", help="only these rows")
    parser.add_argument("--output", type=Path, help="the page to write, instead of standard output")
    parser.add_argument("--json", type=Path, help="a JSON file for the results")
    return parser


if __name__ == "__main__":
    sys.exit(main())
