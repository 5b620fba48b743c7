"""Conditions: their syntax, and how an interval decides them, compared with calculations by hand."""

from __future__ import annotations

import pytest

from autofuse.results.comparison import Interval
from autofuse.results.conditions import NotACondition, Quantity, Relation, check_condition, condition

SLOWER = Quantity("", 1.10, Interval(1.05, 1.15))
EXACT = Quantity("", 0.5)
UNKNOWN = Quantity("", reason="no step was timed")
KNOWN = {"time_ratio": SLOWER, "peak_memory_ratio": EXACT, "mfu": UNKNOWN}


def holds(text: str) -> bool | None:
    return check_condition(condition(text), KNOWN).holds


@pytest.mark.parametrize(
    "text, expected",
    [
        ("time_ratio>1.02", True),  # 1.05 is above already
        ("time_ratio>1.10", None),  # the threshold lies within
        ("time_ratio>1.20", False),
        ("time_ratio>1.15", False),  # 1.15 is not above 1.15
        ("time_ratio>=1.05", True),
        ("time_ratio<1.05", False),
        ("time_ratio <= 1.2", True),
        ("peak_memory_ratio<0.5", False),
        ("peak_memory_ratio<=5e-1", True),
        ("mfu<0.3", None),
    ],
)
def test_only_the_whole_interval_decides(text: str, expected: bool | None) -> None:
    assert holds(text) is expected


@pytest.mark.parametrize(
    "text, expected",
    [
        ("time_ratio>1.02 and peak_memory_ratio<1", True),
        ("time_ratio>1.02 and peak_memory_ratio>1", False),
        ("time_ratio>1.10 and peak_memory_ratio>1", False),  # undecided and false is false
        ("time_ratio>1.10 and peak_memory_ratio<1", None),
        ("mfu<0.3 and time_ratio>1.02 and peak_memory_ratio<1", None),
    ],
)
def test_and_requires_all_comparisons(text: str, expected: bool | None) -> None:
    assert holds(text) is expected


@pytest.mark.parametrize(
    "text",
    [
        "", "time_ratio", "time_ratio>", ">1", "time_ratio==1", "time_ratio!=1", "1<time_ratio", "a>1 or b<1",
        "time_ratio>one", "time_ratio>1 and", "time_ratio>1>2", "time_ratio>__import__('os')", "time_ratio>nan",
    ],
)  # fmt: skip
def test_an_invalid_condition_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(NotACondition, match=r"time_ratio>1\.02"):
        condition(text)


def test_the_error_for_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(NotACondition, match=r"no quantity time_ration\. Did you mean time_ratio\? There are: time_rat"):
        check_condition(condition("time_ration>1"), KNOWN)


def test_an_unknown_name_is_refused_even_after_a_false_comparison() -> None:
    with pytest.raises(NotACondition, match="no quantity nothing"):
        check_condition(condition("time_ratio>9 and nothing>1"), KNOWN)


def test_the_sentence_has_value_interval_and_the_reason_for_unknown_values() -> None:
    assert check_condition(condition("time_ratio>1.1 and mfu<1"), KNOWN).sentence == (
        "time_ratio>1.1 and mfu<1 is undecided: time_ratio is 1.1 (1.05 to 1.15); "
        "mfu is not known, because no step was timed."
    )


def test_a_condition_is_its_comparisons_in_order() -> None:
    assert condition("a<1 and  b>=-.5e1").comparisons == (Relation("a", "<", 1.0), Relation("b", ">=", -5.0))


def test_a_name_may_have_layers_in_brackets_even_one_named_and() -> None:
    asked = condition("layer_share[and.and]>0.5 and layer_seconds[h.*.attn]<1e-3")
    assert [(c.name, c.operator, c.threshold) for c in asked.comparisons] == [
        ("layer_share[and.and]", ">", 0.5), ("layer_seconds[h.*.attn]", "<", 1e-3),
    ]  # fmt: skip
