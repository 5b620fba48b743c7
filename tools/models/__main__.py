"""Optimizes small models of public packages, measures what became of them, and keeps the table in docs/models.md.

    python -m tools.models                          every model of every library that is installed
    python -m tools.models --only BertModel GPT2    some of them
    python -m tools.models --output docs/models.md --json models.json

Exits with 1 where a promise is not kept: a crash, a result that differs, a rule that had to fuse something and did not,
fused code that did not run.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tools.models.row import Row
from tools.models.running import SECONDS, ran
from tools.models.summary import as_json, as_markdown

PACKAGES = (
    "transformers",
    "timm",
    "vit_pytorch",
    "x_transformers",
    "diffusers",
)  # NAME_models.py holds the rows of each


def main(argv: list[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    rows, absent = known()
    if options.only and (unknown := set(options.only) - {r.name for r in rows}):
        print(f"No row is called {', '.join(sorted(unknown))}. Rows: {', '.join(r.name for r in rows)}.")
        return 2
    chosen = [row for row in rows if not options.only or row.name in options.only]
    results = []
    with ThreadPoolExecutor(options.jobs) as pool:  # a row has a process of its own
        for result in pool.map(lambda row: ran(row, options.seconds), chosen):
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


def known() -> tuple[list[Row], list[str]]:
    """All rows whose library is installed, and the libraries that are not."""
    rows: list[Row] = []
    absent: list[str] = []
    for package in PACKAGES:
        try:
            rows += importlib.import_module(f"tools.models.{package}_models").ROWS
        except (ImportError, RuntimeError):  # a library may raise either where it finds not what it needs
            absent.append(package)
    return rows, absent


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m tools.models", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these rows")
    parser.add_argument("--jobs", type=int, default=1, help="how many rows are measured at a time")
    parser.add_argument("--seconds", type=int, default=SECONDS, help="the time limit of a row")
    parser.add_argument("--output", type=Path, help="the table; docs/models.md is kept by this")
    parser.add_argument("--json", type=Path, help="all that was measured, as JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
