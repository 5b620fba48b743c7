"""Checks the machine code of every declared kernel: wide loads, few instructions, no byte twice.

There are two bounds. The mean width of loads and stores must reach the promise of the kernel's `Ahead` entry. And the
code must not be much worse than the record in sass_bounds.json, which `python -m tools.ahead --sass --record` writes.
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
WORSE = 1.05  # relative to the record: compiler versions schedule instructions a little differently
MULTIPROCESSORS = 132  # an H100's
COLUMNS = (
    "file", "call", "kernel", "loads", "stores", "bytes an access", "bytes an entry", "ideal", "instructions an entry",
    "registers", "blocks per SM", "waves on 132 SMs",
)  # fmt: skip


@dataclass(frozen=True)
class Judged:
    """The machine code of one launch. name: unique in the table; trouble: what is wrong, or "".

    entries: of a thread, in one pass through the hot part.
    """

    row: Row
    name: str
    code: MachineCode
    entries: float
    trouble: str = ""

    @property
    def numbers(self) -> dict[str, float]:
        """The recorded numbers. The bound is a little more than each number (for access: less)."""
        blocks = self.row.launch.resources.blocks(self.row.arch)
        return {
            "access": round(self.code.bytes_per_access, 2),
            "bytes": round(self.code.bytes / self.entries, 2),
            "instructions": round(self.code.instructions / self.entries, 2),
            "blocks": blocks,
        }


def judge_rows(rows: Iterable[Row], recorded: Mapping[str, Mapping[str, float]]) -> list[Judged]:
    """Return the machine code of NVIDIA kernels, with what is wrong with each."""
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
    """The problems of a kernel's machine code, in sentences; "" if there are none."""
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
    """Return the record, by names of launches; empty if there is no such file."""
    found: dict[str, dict[str, float]] = json.loads(file.read_text()) if file.exists() else {}
    return found


def write(found: Iterable[Judged], file: Path = RECORD) -> None:
    """Write the record. It replaces the entries of the same files and targets, and keeps the others."""
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
