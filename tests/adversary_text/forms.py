"""Hand-written computations, and how they are inserted into the texts of programs.

A form in forms.txt is a list of lines that compute one result. It replaces these placeholders in the text of a program:

    BODY, FIRST, LAST    all of its lines; all but the last; the last
    ARGS, TYPED, CALL    its parameters; the same with annotations; the arguments of a call
    OUT, MIDDLE, OPERAND its result; a value that a fusion removes; another value that its last line reads
    SETUP                creates its parameters and children in `__init__`. Then the lines read `self.weight`, and ARGS
                         contains no weight
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.adversary.program import Section, sections

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Form:
    """One form.

    given: (parameter, the expression of a drive that makes the argument).
    held: (name, the expression that makes it in `__init__`, the expression of a drive) for parameters of a module.
    """

    name: str
    lines: tuple[str, ...]
    given: tuple[tuple[str, str], ...]
    held: tuple[tuple[str, str, str], ...]
    out: str
    middle: str
    operand: str

    def parameters(self, in_module: bool) -> list[tuple[str, str]]:
        """Its parameters with their expressions. In a module, values that the module holds are not parameters."""
        return [*self.given, *([] if in_module else [(n, call) for n, _, call in self.held])]

    def put_into(self, text: str, in_module: bool) -> str:
        """`text` with the placeholders replaced."""
        given = self.parameters(in_module)
        names = {n for n, _, _ in self.held} if in_module else set()
        lines = [_of_self(line, names) for line in self.lines]
        for word, block in {"BODY": lines, "FIRST": lines[:-1], "LAST": lines[-1:], "SETUP": self._setup()}.items():
            text = re.sub(rf"^( *){word}$", lambda m, b=block: "\n".join(m[1] + x for x in b), text, flags=re.MULTILINE)
        words = {
            "ARGS": ", ".join(n for n, _ in given),
            "TYPED": ", ".join(f"{n}: Tensor" for n, _ in given),
            "CALL": ", ".join(call for _, call in given),
            "OUT": self.out,
            "MIDDLE": self.middle,
            "OPERAND": self.operand,
            "RESULT": lines[-1].partition(" = ")[2],
        }
        return re.sub(r"\b[A-Z]+\b", lambda m: words.get(m[0], m[0]), text)

    def _setup(self) -> list[str]:
        return [f"self.{name} = {maker}" for name, maker, _ in self.held] or ["self.made = True"]


def _of_self(line: str, names: set[str]) -> str:
    return re.sub(r"(?<![.\w])\w+", lambda m: f"self.{m[0]}" if m[0] in names else m[0], line)


@cache
def every_form() -> dict[str, Form]:
    return {section.title: _form(section) for section in sections("forms.txt", HERE)}


def form_named(name: str) -> Form:
    return every_form()[name]


def _form(section: Section) -> Form:
    given = [line.partition(" = ") for line in section.all("given")]
    held = [(n, *rest.split(" | ")) for n, _, rest in (line.partition(" = ") for line in section.all("held"))]
    lines = tuple(section.code.splitlines())
    out = lines[-1].partition(" = ")[0]
    return Form(
        section.title,
        lines,
        tuple((n, call) for n, _, call in given),
        tuple((n, maker, call) for n, maker, call in held),
        out,
        section.one("middle", out),
        section.one("operand", given[0][0]),
    )
