"""Counts the instructions that a warp of a compiled kernel executes, from NVIDIA's machine code.

A loop is a backward branch. The caller supplies the number of iterations. This file knows disassembly, not kernels.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

_LINE = re.compile(r"/\*([0-9a-f]{4,6})\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)([^;]*);")
_TARGET = re.compile(r"0x([0-9a-f]+)")
_NOT_ISSUED = ("NOP",)


@dataclass(frozen=True)
class Counted:
    """The instructions of one warp: outside of loops, and in loops (for one iteration)."""

    straight: int
    looped: int
    loads: int
    looped_loads: int

    def total(self, turns: float) -> float:
        """The instructions of a warp whose loops run `turns` iterations in total."""
        return self.straight + self.looped * turns


def counted(cubin: bytes, cuobjdump: Path) -> Counted:
    """Count the instructions of `cubin`, with NVIDIA's cuobjdump. Raises RuntimeError if that prints none."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([cuobjdump, "-sass", file.name], capture_output=True, text=True)
    return counted_in(done.stdout)


def counted_in(text: str) -> Counted:
    """Count the instructions of a disassembly."""
    lines = [(int(at, 16), name, rest) for at, name, rest in _LINE.findall(text)]
    if not lines:
        raise RuntimeError("The disassembly holds no instructions.")
    loops = list(_loops(lines))
    inside = [any(first <= at <= last for first, last in loops) for at, _, _ in lines]
    real = [not name.startswith(_NOT_ISSUED) for _, name, _ in lines]
    loads = [name.startswith("LDG") for _, name, _ in lines]
    return Counted(
        sum(r and not i for r, i in zip(real, inside, strict=True)),
        sum(r and i for r, i in zip(real, inside, strict=True)),
        sum(a and not i for a, i in zip(loads, inside, strict=True)),
        sum(a and i for a, i in zip(loads, inside, strict=True)),
    )


def _loops(lines: list[tuple[int, str, str]]) -> list[tuple[int, int]]:
    """The first and last address of each loop. The branch to itself at the end of a kernel is not a loop."""
    found = []
    for at, name, rest in lines:
        target = _TARGET.search(rest) if name.split(".")[0] == "BRA" else None
        if target is not None and int(target[1], 16) < at:
            found.append((int(target[1], 16), at))
    return found
