"""Compiles every Triton kernel of autofuse for GPUs from sm_80 to gfx942, and prints its resources. It needs no GPU.

    python -m tools.ahead                    every declared call of every file
    python -m tools.ahead --quick            the calls that CI compiles
    python -m tools.ahead --only norm --arch 90 gfx942
    python -m tools.ahead --output ahead.md --json ahead.json
    python -m tools.ahead --sass             the machine code for sm_90: widths of loads, instructions, blocks
    python -m tools.ahead --sass --record    record it as the bound for later code (sass_bounds.json)
    python -m tools.ahead --predict docs/predictions.md
    python -m tools.ahead --matrix           with the Triton of every supported torch, for every target

Exits with 1 if a kernel spills, does not fit, has less than its promised occupancy, is launched on the current device
instead of its tensors' device, or is not declared.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import triton

from tools.ahead import matrix_page, sass_gate
from tools.ahead.gate import ARCHITECTURES, KERNELS, Row, files, rows, stem, undeclared
from tools.ahead.matrix import HOME
from tools.ahead.predict import write as write_predictions
from tools.ahead.sass_gate import judge_rows, record, write
from tools.ahead.targets import TARGETS, arch_of

SASS = 90
COLUMNS = ("file", "call", "kernel", "constants", "arch", "warps", "registers", "local", "shared", "occupancy")


def main(argv: list[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    if os.environ.get("TRITON_INTERPRET", "0") == "1":
        print("TRITON_INTERPRET=1 is set, and what is interpreted is not compiled: unset it.", file=sys.stderr)
        return 2
    if options.predict is not None:
        return write_predictions(options.predict or None)
    if options.matrix:
        return matrix_page.main(options)
    options.arch = options.arch or ((SASS,) if options.sass else ARCHITECTURES)
    modules = files(options.folder)
    chosen = [m for m in modules if not options.only or stem(m) in options.only]
    found = [row for module in chosen for row in rows(module, options.arch, options.quick)]
    troubles = [
        f"{r.file}.{r.launch.kernel}, {r.label}, {TARGETS[r.arch].name}: {r.trouble}" for r in found if r.trouble
    ]
    if not options.only:
        troubles += undeclared(modules, {(r.launch.file, r.launch.kernel) for r in found})
    if options.sass:
        read = judge_rows(found, {} if options.record else record())
        troubles += [f"{made.name}: {made.trouble}" for made in read if made.trouble]
        if options.record:
            write(read)
    _write(options, found, sass_gate.as_markdown(read) if options.sass else as_markdown(found))
    print(
        f"{len(found)} kernels compiled with Triton {triton.__version__}, {len(troubles)} in trouble", file=sys.stderr
    )
    for sentence in troubles:
        print(sentence, file=sys.stderr)
    return 1 if troubles else 0


def _row_name(row: Row) -> str:
    return f"{row.file}.{row.launch.kernel}, {row.label}, {TARGETS[row.arch].name}"


def as_markdown(found: Sequence[Row]) -> str:
    """Return a table with one line for each kernel and architecture."""
    cells = [COLUMNS, tuple("---" for _ in COLUMNS), *(_cells(row) for row in found)]
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def _cells(row: Row) -> tuple[str, ...]:
    used = row.launch.resources
    numbers = (used.warps, used.registers, used.local, used.shared)
    named = (row.file, row.label, row.launch.kernel, row.launch.constants, TARGETS[row.arch].name)
    return (*named, *(str(n) for n in numbers), f"{used.occupancy(row.arch):.2f}")


def _write(options: argparse.Namespace, found: Sequence[Row], table: str) -> None:
    if options.output:
        options.output.write_text(table)
    else:
        print(table, end="")
    if options.json:
        data = [_as_json(r) for r in found]
        options.json.write_text(json.dumps({"version": 1, "triton": triton.__version__, "rows": data}, indent=2) + "\n")


def _as_json(row: Row) -> dict[str, Any]:
    made = asdict(row) | {"occupancy": row.launch.resources.occupancy(row.arch)}
    del made["launch"]["binary"]
    return made


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.ahead", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="only the calls that CI compiles")
    parser.add_argument("--only", nargs="+", metavar="FILE", help="files by name, without .py")
    parser.add_argument("--arch", nargs="+", type=arch_of, metavar="ARCH")
    parser.add_argument("--sass", action="store_true", help="check the machine code, for sm_90 unless --arch is given")
    parser.add_argument("--record", action="store_true", help="with --sass: write tools/ahead/sass_bounds.json")
    parser.add_argument("--matrix", action="store_true", help="all supported versions of Triton, each in a process")
    parser.add_argument("--triton", nargs="+", metavar="VERSION", help="with --matrix: only these versions")
    parser.add_argument("--home", type=Path, default=HOME, help="with --matrix: where versions and results are kept")
    parser.add_argument("--folder", type=Path, default=KERNELS, help="another folder of Triton files")
    parser.add_argument("--output", type=Path, help="a markdown file for the table, instead of stdout")
    parser.add_argument("--json", type=Path, help="a JSON file for the same")
    parser.add_argument(
        "--predict", type=lambda text: Path(text) if text else "", nargs="?", const="", metavar="FILE",
        help="predict the speed of row-wise kernels on six GPUs instead; into a Markdown file if one is named",
    )  # fmt: skip
    return parser


if __name__ == "__main__":
    sys.exit(main())
