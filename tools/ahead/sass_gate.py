"""Holds the machine code of every declared kernel to bounds: wide loads, few instructions, no bytes twice.

Two bounds. A rule for all: the mean width of loads and stores must reach what the kernel's `Ahead` entry promises. And
a record, sass_bounds.json, of what each kernel's code was when it was last looked at: what is plainly worse fails.
`python -m tools.ahead --sass --record` writes the record anew.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tools.ahead.gate import Row
from tools.ahead.launches import NVDISASM
from tools.ahead.sass import MachineCode, machine_code
from tools.ahead.targets import TARGETS

RECORD = Path(__file__).with_name("sass_bounds.json")
WORSE = 1.05  # of what is recorded: compilers schedule a little differently from one version to the next
MULTIPROCESSORS = 132  # an H100's
COLUMNS = (
    "file", "call", "kernel", "loads", "stores", "bytes an access", "bytes an entry", "ideal", "instructions an entry",
    "registers", "blocks per SM", "waves on 132 SMs",
)  # fmt: skip


@dataclass(frozen=True)
class Judged:
    """The machine code of one launch. name: what tells it from the others of the table; trouble: "" where it holds.

    entries: of a thread, in one pass through the hot part.
    """

    row: Row
    name: str
    code: MachineCode
    entries: float
    trouble: str = ""

    @property
    def numbers(self) -> dict[str, float]:
        """What is recorded: for each the bound is this number, or a little more (access: less)."""
        blocks = self.row.launch.resources.blocks(self.row.arch)
        return {
            "access": round(self.code.bytes_per_access, 2),
            "bytes": round(self.code.bytes / self.entries, 2),
            "instructions": round(self.code.instructions / self.entries, 2),
            "blocks": blocks,
        }


def judged(rows: Iterable[Row], recorded: Mapping[str, Mapping[str, float]]) -> list[Judged]:
    """The machine code of NVIDIA kernels, each with what stands against it."""
    seen = Counter[str]()
    found = []
    for row in rows:
        if TARGETS[row.arch].gpu.backend != "cuda":
            continue
        launch = row.launch
        name = f"{row.file}, {row.label}, {launch.kernel}, {TARGETS[row.arch].name}"
        seen[name] += 1
        code = machine_code(launch.binary, NVDISASM)
        entries = max(launch.tile / launch.resources.threads(row.arch), 1.0)
        made = Judged(row, f"{name}, {seen[name]}", code, entries)
        found.append(Judged(row, made.name, code, entries, trouble(made, recorded.get(made.name, {}))))
    return found


def trouble(made: Judged, bounds: Mapping[str, float]) -> str:
    """Why a kernel's machine code may not stay as it is, in sentences; "" where it may."""
    numbers, found = made.numbers, []
    if made.code.bytes and numbers["access"] < made.row.access:
        found.append(
            f"Its loads and stores move {numbers['access']} bytes at a time, in the mean, and {made.row.access} were "
            "promised. Give widths and strides in units (triton/launch.py)."
        )
    if made.code.divisions:
        found.append(f"It divides numbers of 64 bits in {made.code.divisions} places. Use 32 bits where they do.")
    for name, words in (("bytes", "bytes for an entry"), ("instructions", "instructions for an entry")):
        if numbers[name] > bounds.get(name, numbers[name]) * WORSE:
            found.append(f"It takes {numbers[name]} {words}, and {bounds[name]} are recorded.")
    for name, words in (("access", "bytes an access"), ("blocks", "blocks on a multiprocessor")):
        if numbers[name] * WORSE < bounds.get(name, 0.0):
            found.append(f"It has {numbers[name]} {words}, and {bounds[name]} are recorded.")
    return " ".join(found)


def record(file: Path = RECORD) -> dict[str, dict[str, float]]:
    """What is recorded, by the names of launches; nothing where there is no such file."""
    found: dict[str, dict[str, float]] = json.loads(file.read_text()) if file.exists() else {}
    return found


def write(found: Iterable[Judged], file: Path = RECORD) -> None:
    """Record what was found, in place of what was recorded of the same files and targets; the rest stays."""
    made = {judged.name: judged.numbers for judged in found}
    anew = {_file_and_target(name) for name in made}
    kept = {name: numbers for name, numbers in record(file).items() if _file_and_target(name) not in anew}
    lines = (f"  {json.dumps(name)}: {json.dumps(numbers)}" for name, numbers in sorted((kept | made).items()))
    file.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def _file_and_target(name: str) -> tuple[str, str]:
    parts = name.split(", ")
    return parts[0], parts[-2]


def as_markdown(found: Iterable[Judged]) -> str:
    cells = [COLUMNS, tuple("---" for _ in COLUMNS), *map(_cells, found)]
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def _cells(made: Judged) -> tuple[str, ...]:
    row, launch, numbers = made.row, made.row.launch, made.numbers
    waves = launch.programs / (numbers["blocks"] * MULTIPROCESSORS) if numbers["blocks"] else 0.0
    counted = [
        ", ".join(f"{n} x {width}" for width, n in counts.items()) for counts in (made.code.loads, made.code.stores)
    ]
    shown = (numbers["access"], numbers["bytes"], round(launch.ideal, 1), numbers["instructions"])
    rest = (launch.resources.registers, int(numbers["blocks"]), round(waves, 1))
    return (row.file, row.label, launch.kernel, *counted, *(f"{n:g}" for n in (*shown, *rest)))
