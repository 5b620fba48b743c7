"""Finds addresses that a kernel computes in 32 bits although they may need more, in Triton's intermediate code (TTIR).

It looks for 32-bit products of a program id or a loop variable with a stride, a width or a block size that are part of
an address: with 2^31 entries they overflow. Sums do not count. The second and third dimension of a grid do not count
either, because they have at most 65535 programs. A kernel with a constant LONG has separate code for large tensors, and
its launcher chooses. This file reads TTIR, and does not depend on what a kernel computes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_NAME = re.compile(r"%[\w.$-]+")
_RESULT = re.compile(r"^\s*(%[\w.$-]+)(?::\d+)? = (.*)$")
_ARGUMENT = re.compile(r"(%[\w.$-]+): (?:i32|i64)\b")
_FOR = re.compile(r"scf\.for (?:unsigned )?(%[\w.$-]+) = (%[\w.$-]+) to (%[\w.$-]+) step (%[\w.$-]+)")
_CARRIED = re.compile(r"(%[\w.$-]+) = (%[\w.$-]+)")
_NARROW = re.compile(r": (?:tensor<[\dx]*xi32>|tensor<i32>|i32)\s*(?:loc.*)?$")
_PASSES_ON = (
    "arith.addi", "arith.subi", "arith.muli", "arith.extsi", "arith.extui", "arith.select", "arith.maxsi",
    "tt.splat", "tt.broadcast", "tt.expand_dims", "tt.reshape", "ttg.convert_layout",
)  # fmt: skip


@dataclass
class _Flow:
    """The names of values, by how they were computed."""

    numbers: set[str] = field(default_factory=set)  # of programs and rounds of a loop
    narrow: dict[str, str] = field(default_factory=dict)  # products in 32 bits, by the line that made them


def narrow_addresses(ttir: str, has_long_form: bool) -> list[str]:
    """Return the 32-bit products in addresses, as lines of the code; empty if there are none.

    Args:
        ttir: the code.
        has_long_form: whether the kernel has a constant LONG. If it is False, program ids times block sizes fit.
    """
    flow = _Flow()
    found: dict[str, None] = {}
    arguments: set[str] = set()
    for line in ttir.splitlines():
        if "tt.func" in line:
            arguments |= set(_ARGUMENT.findall(line))
        for address in _read(line, flow, arguments, has_long_form):
            found[address] = None
    return list(found)


def _read(line: str, flow: _Flow, arguments: set[str], has_long_form: bool) -> Iterator[str]:
    if loop := _FOR.search(line):
        flow.numbers.add(loop.group(1))
        _carry(line[loop.end() :], flow, arguments)
    made = _RESULT.match(line)
    if made is None:
        return
    name, code = made.groups()
    used = _NAME.findall(code)
    if code.startswith("tt.get_program_id x"):
        flow.numbers.add(name)
    elif code.startswith("tt.addptr"):
        yield from (flow.narrow[n] for n in used if n in flow.narrow)
    elif code.startswith(_PASSES_ON):
        _pass_on(name, code, used, flow, arguments, has_long_form)


def _pass_on(name: str, code: str, used: list[str], flow: _Flow, arguments: set[str], has_long_form: bool) -> None:
    numbered = any(n in flow.numbers for n in used)
    of_argument = any(n in arguments for n in used)
    wide = _NARROW.search(code) is None
    for n in used:
        if n in flow.narrow:
            flow.narrow[name] = flow.narrow[n]
    if code.startswith("arith.muli") and numbered and not wide and (of_argument or not has_long_form):
        flow.narrow[name] = code.split(" loc(")[0]
    if numbered and (not wide or not code.startswith("arith.muli")):
        flow.numbers.add(name)
    if of_argument:
        arguments.add(name)


def _carry(code: str, flow: _Flow, arguments: set[str]) -> None:
    """The initial values of a loop's variables are its operands."""
    for inner, outer in _CARRIED.findall(code):
        if outer in flow.numbers:
            flow.numbers.add(inner)
        if outer in arguments:
            arguments.add(inner)
        if outer in flow.narrow:
            flow.narrow[inner] = flow.narrow[outer]
