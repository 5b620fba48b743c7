"""Tests of the exit codes of --fail-if."""

from __future__ import annotations

import pytest

from autofuse.cli.gate import Gate
from autofuse.results.comparison import Interval
from autofuse.results.conditions import Quantity, condition

KNOWN = {"time_ratio": Quantity("", 1.1, Interval(1.05, 1.15))}


@pytest.mark.parametrize(
    "texts, code, strict",
    [
        ([], 0, 0),
        (["time_ratio>1.02"], 1, 1),
        (["time_ratio>1.10"], 0, 1),
        (["time_ratio>1.20"], 0, 0),
        (["time_ratio>1.20", "time_ratio>1.02"], 1, 1),
    ],
)
def test_a_true_condition_fails_and_an_undecided_one_only_with_strict(texts: list[str], code: int, strict: int) -> None:
    for is_strict, expected in ((False, code), (True, strict)):
        sentences: list[str] = []
        gate = Gate(tuple(map(condition, texts)), is_strict)
        assert gate.exit_code(gate.outcomes(KNOWN), sentences.append) == expected
        assert len(sentences) == len(texts)
        assert any("--strict" in sentence for sentence in sentences) == any(
            "undecided" in sentence for sentence in sentences
        )
