"""Tests autofuse under several versions of Python and torch, and writes docs/versions.md.

    python -m tools.matrix CACHE                              every row of cells.toml; environments are kept in CACHE
    python -m tools.matrix CACHE --ci                         the rows that CI runs
    python -m tools.matrix CACHE --only 3.11/2.9.1            one row
    python -m tools.matrix CACHE --json benchmarks/results/versions.json --output docs/versions.md
    python -m tools.matrix --json benchmarks/results/versions.json --output docs/versions.md     only write the page

An environment takes several gigabytes where torch is a build for CUDA; `--remove` deletes each one after its row. Rows
that do not run keep their results in the JSON file. It exits with 1 if a test fails or a training
differs. A row whose environment cannot be made here is named with the reason, and does not fail.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from tools.matrix.cells import Cell, Result, merge, read_cells, results_as_json, results_from_json
from tools.matrix.page import as_markdown
from tools.matrix.running import run_cell


def main(argv: list[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    try:
        cells = _chosen_cells(options)
    except ValueError as problem:
        print(f"tools.matrix: {problem}", file=sys.stderr)
        return 2
    results = _run(cells, options)
    page = as_markdown(results)
    if options.output:
        options.output.write_text(page)
    else:
        print(page)
    return 0 if all(r.holds or r.absent for r in results) else 1


def _run(cells: Sequence[Cell], options: argparse.Namespace) -> list[Result]:
    """The results of these rows and, if there is a JSON file, of the others that it has."""
    kept = results_from_json(options.json.read_text()) if options.json and options.json.exists() else []
    if options.cache is None:
        return merge(kept, (), read_cells())
    with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty()) as progress:
        for cell in progress.track(cells, description="environments"):
            kept = merge(kept, [run_cell(cell, options.cache.resolve())], read_cells())
            if options.json:  # a run takes long, so each row is kept at once
                options.json.write_text(results_as_json(kept))
            if options.remove:
                shutil.rmtree(options.cache / cell.name, ignore_errors=True)
    return kept


def _chosen_cells(options: argparse.Namespace) -> tuple[Cell, ...]:
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
    parser.add_argument("cache", type=Path, nargs="?", help="the folder of the environments; without it, nothing runs")
    parser.add_argument("--ci", action="store_true", help="only the rows that CI runs")
    parser.add_argument("--only", nargs="+", metavar="PYTHON/TORCH", help="only these rows")
    parser.add_argument("--remove", action="store_true", help="delete each environment after its row")
    parser.add_argument("--output", type=Path, help="the page to write, instead of standard output")
    parser.add_argument("--json", type=Path, help="a JSON file for the results, which keeps those of other rows")
    return parser


if __name__ == "__main__":
    sys.exit(main())
