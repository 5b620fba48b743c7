"""Optimizes small models of public packages, measures the results, and writes the table in docs/models.md.

    python -m tools.models                          every model of every installed library
    python -m tools.models --only BertModel GPT2    some models
    python -m tools.models --output docs/models.md --json models.json

Exits with 1 if a promise is broken: a crash, a different result, a rule that should fuse something and did not, fused
code that did not run.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tools.models.row import Row
from tools.models.running import SECONDS, run_row
from tools.models.summary import as_json, as_markdown

# The rows of each package are in files NAME_models.py with these names.
PACKAGES = {
    "transformers": ("transformers", "transformers_decoders", "transformers_others"),
    "timm": ("timm",),
    "vit_pytorch": ("vit_pytorch",),
    "x_transformers": ("x_transformers",),
    "diffusers": ("diffusers",),
}


def main(argv: list[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    rows, absent = all_rows()
    if options.only and (unknown := set(options.only) - {r.name for r in rows}):
        print(f"No row is called {', '.join(sorted(unknown))}. Rows: {', '.join(r.name for r in rows)}.")
        return 2
    chosen = [row for row in rows if not options.only or row.name in options.only]
    results = []
    with ThreadPoolExecutor(options.jobs) as pool:  # each row runs in its own process
        for result in pool.map(lambda row: run_row(row, options.seconds), chosen):
            results.append(result)
            for sentence in result.broken():
                print(f"{result.name}: {sentence}", file=sys.stderr)
    text = as_markdown(results, absent)
    if options.output:
        options.output.write_text(text)
    else:
        print(text)
    if options.json:
        options.json.write_text(as_json(results, absent))
    return 1 if any(True for r in results for _ in r.broken()) else 0


def all_rows() -> tuple[list[Row], list[str]]:
    """Return the rows whose library is installed, and the names of libraries that are not."""
    rows: list[Row] = []
    absent: list[str] = []
    for package, names in PACKAGES.items():
        try:
            for name in names:
                rows += importlib.import_module(f"tools.models.{name}_models").ROWS
        except (ImportError, RuntimeError):  # libraries raise either if a dependency is missing
            absent.append(package)
    return rows, absent


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m tools.models", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="only these rows")
    parser.add_argument("--jobs", type=int, default=1, help="the number of rows that run at the same time")
    parser.add_argument("--seconds", type=int, default=SECONDS, help="the time limit of a row")
    parser.add_argument("--output", type=Path, help="write the table to this file, such as docs/models.md")
    parser.add_argument("--json", type=Path, help="write all measurements to this file, as JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
