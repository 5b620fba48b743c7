"""Writes docs/kernel-targets.md, the page about versions of Triton and targets."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tools.ahead.matrix import TRITON_OF_TORCH, VERSIONS, matrix
from tools.ahead.resources import Resources
from tools.ahead.targets import TARGETS, Arch

Rows = Sequence[Mapping[str, Any]]


def main(options: argparse.Namespace) -> int:
    """Compile changed kernels, write the page, and print failures. Return 1 if there are any."""
    targets = options.arch or tuple(TARGETS)
    versions = options.triton or VERSIONS
    found = matrix(options.home, versions, targets)
    text = page(found, targets)
    if options.output:
        options.output.write_text(text)
    else:
        print(text, end="")
    troubles = [
        f"Triton {version}, {_target(row)}, {row['file']}.{row['launch']['kernel']}, {row['label']}: {row['trouble']}"
        for version, rows in found.items()
        for row in rows
        if row["trouble"]
    ]
    print(f"{sum(map(len, found.values()))} kernels compiled, {len(troubles)} in trouble", file=sys.stderr)
    for sentence in troubles:
        print(sentence, file=sys.stderr)
    return 1 if troubles else 0


def page(found: Mapping[str, Rows], targets: Sequence[Arch]) -> str:
    """Return the page: versions by targets, and the kernels of the newest version with registers and blocks."""
    newest = list(found)[-1]
    return "".join(
        [
            "# Kernels by version of Triton and by GPU\n\n",
            "Written by `python -m tools.ahead --matrix --output docs/kernel-targets.md`, without a GPU: what ",
            "compilers say of every declared call of every kernel. None of these numbers was measured on a device.\n\n",
            "## Versions\n\n",
            "Kernels compiled, the most registers that a thread of one of them takes, and how many are in trouble ",
            "(spills, too many threads or too much shared memory, a lower occupancy than was promised).\n\n",
            *_table(("torch", "Triton", *(TARGETS[t].name for t in targets)), _versions(found, targets)),
            f"\n## Registers and blocks with Triton {newest}\n\n",
            "Registers of a thread / blocks that a multiprocessor holds at once.\n\n",
            *_table(("file", "call", "kernel", *(TARGETS[t].name for t in targets)), _kernels(found[newest], targets)),
        ]
    )


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> Iterable[str]:
    yield from (f"| {' | '.join(line)} |\n" for line in (head, ["---"] * len(head), *lines))


def _versions(found: Mapping[str, Rows], targets: Sequence[Arch]) -> Iterable[Sequence[str]]:
    for version, rows in found.items():
        torchs = ", ".join(torch for torch, triton in TRITON_OF_TORCH.items() if triton == version)
        yield torchs, version, *(_summary(target, rows) for target in targets)


def _summary(target: Arch, rows: Rows) -> str:
    own = [row for row in rows if row["arch"] == target]
    registers = max((row["launch"]["resources"]["registers"] for row in own), default=0)
    troubled = sum(bool(row["trouble"]) for row in own)
    return f"{len(own)}, {registers} registers" + (f", {troubled} in trouble" if troubled else "")


def _kernels(rows: Rows, targets: Sequence[Arch]) -> Iterable[Sequence[str]]:
    by_target = {target: [row for row in rows if row["arch"] == target] for target in targets}
    for line in zip(*by_target.values(), strict=True):
        first = line[0]
        yield first["file"], first["label"], first["launch"]["kernel"], *map(_cell, line)


def _cell(row: Mapping[str, Any]) -> str:
    used = Resources(**row["launch"]["resources"])
    return f"{used.registers} / {used.blocks(row['arch'])}" + (" (!)" if row["trouble"] else "")


def _target(row: Mapping[str, Any]) -> str:
    return TARGETS[row["arch"]].name
