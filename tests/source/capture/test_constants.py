"""Named numbers of a file are constants."""

from __future__ import annotations

import ast
import math

import pytest

from autofuse.source.capture.constants import named_constants

IMPORTED = {"math": "math", "np": "numpy"}


def constants(text: str) -> dict[str, float]:
    return named_constants(ast.parse(text), IMPORTED)


def test_arithmetic_on_literals_and_on_earlier_names_is_a_number() -> None:
    found = constants("TWO: int = 2\nROOT = math.sqrt(TWO / math.pi)\nHALF = -(-TWO ** -1)\n")
    assert found == {"TWO": 2, "ROOT": math.sqrt(2 / math.pi), "HALF": 0.5}


@pytest.mark.parametrize(
    "text",
    [
        "C = 1.0\nC = 2.0",
        "C = 1.0\ndef f():\n    global C\n    C = 2.0",
        "C = random()",
        "C = 1 / 0",
        "C = math.sqrt(-1)",
        "C = True",
        "for C in range(3): pass",
        "if flag:\n    C = 1.0",
        "C += 1",
    ],
)
def test_a_name_with_an_unclear_value_is_not_a_constant(text: str) -> None:
    assert "C" not in constants(text)
