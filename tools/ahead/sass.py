"""Counts loads and stores of global memory by width, and instructions, in the machine code of a kernel.

It reads the SASS of a cubin with NVIDIA's nvdisasm. Counts are of the hot part: the loop that accesses the most global
memory, or the whole kernel if no loop does. "Per entry" means per entry of a program's tile, whose size is the product
of its block sizes. This file reads machine code, and does not depend on what a kernel computes.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)([^;]*);")
_LABEL = re.compile(r"^\s*(\.L_x_\d+|\.L_\d+):", re.MULTILINE)
_TARGET = re.compile(r"\((\.L_x_\d+|\.L_\d+)\)")
_DIVISION = re.compile(r"_(div|rem)_[su]64")  # others wait for threads of a warp
_WIDTHS = {"128": 16, "64": 8, "U16": 2, "S16": 2, "U8": 1, "S8": 1}


@dataclass(frozen=True)
class Instruction:
    """One instruction. opcode: with its modifiers, such as "LDG.E.128"; target: the target of a branch, else -1.

    LDGSTS loads from global into shared memory.

    divides: whether it calls the function that 64-bit integer division compiles to.
    """

    opcode: str
    target: int = -1
    divides: bool = False

    @property
    def width(self) -> int:
        """The bytes of global memory that a thread reads or writes; 0 for other instructions."""
        name, *modifiers = self.opcode.split(".")
        if name not in ("LDG", "STG", "LDGSTS"):
            return 0
        return next((_WIDTHS[m] for m in modifiers if m in _WIDTHS), 4)


@dataclass(frozen=True)
class MachineCode:
    """Counts of the hot part of a kernel, for one thread and one iteration.

    loads, stores: instructions by the bytes that each moves. instructions: all instructions. total: all instructions of
    the whole kernel. divisions: its calls of a function for 64-bit division.
    """

    loads: dict[int, int]
    stores: dict[int, int]
    instructions: int
    total: int
    divisions: int

    @property
    def bytes(self) -> int:
        return sum(width * n for counts in (self.loads, self.stores) for width, n in counts.items())

    @property
    def bytes_per_access(self) -> float:
        """The mean width of a load or store in bytes, at most 16; 0 if there are none."""
        accesses = sum(self.loads.values()) + sum(self.stores.values())
        return self.bytes / accesses if accesses else 0.0


def machine_code(cubin: bytes, nvdisasm: Path) -> MachineCode:
    """Return the counts of a cubin. Raises RuntimeError if nvdisasm's output cannot be parsed."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([nvdisasm, "-c", file.name], capture_output=True, text=True)
    code = instructions(done.stdout)
    if not code:
        raise RuntimeError(f"{nvdisasm} gave no machine code for a kernel: {done.stderr[:500]}")
    return counted(code)


def instructions(text: str) -> list[Instruction]:
    """Parse the instructions in nvdisasm's output, without padding."""
    found: list[tuple[str, str, bool]] = []
    places: dict[str, int] = {}
    for line in text.splitlines():
        if label := _LABEL.match(line):
            places[label.group(1)] = len(found)
        if match := _INSTRUCTION.search(line):
            branch = _TARGET.search(match.group(4)) if match.group(3).startswith("BRA") else None
            divides = match.group(3).startswith("CALL") and _DIVISION.search(match.group(4)) is not None
            found.append((match.group(3), branch.group(1) if branch else "", divides))
    while found and found[-1][0] == "NOP":
        found.pop()
    return [Instruction(opcode, places.get(label, -1), divides) for opcode, label, divides in found]


def counted(code: Sequence[Instruction]) -> MachineCode:
    hot = _hot_loop(code)
    loads = Counter(i.width for i in hot if i.opcode.startswith("LDG"))
    stores = Counter(i.width for i in hot if i.opcode.startswith("STG"))
    divisions = sum(i.divides for i in code)
    return MachineCode(dict(sorted(loads.items())), dict(sorted(stores.items())), len(hot), len(code), divisions)


def _hot_loop(code: Sequence[Instruction]) -> Sequence[Instruction]:
    """The innermost loop with the most bytes of global memory; the whole kernel if no loop accesses any."""
    loops = [code[i.target : place + 1] for place, i in enumerate(code) if 0 <= i.target < place]
    moved = lambda part: sum(i.width for i in part)
    worth = [loop for loop in loops if moved(loop)]
    if not worth:
        return code
    most = max(map(moved, worth))
    best = min((loop for loop in worth if moved(loop) == most), key=len)
    return best if 2 * most >= moved(code) - most else code
