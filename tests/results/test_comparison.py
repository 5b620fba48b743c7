"""A comparison as data, and its forms."""

from __future__ import annotations

import copy
import json
import pickle
from dataclasses import fields, replace

import pytest

from autofuse.display import terminal
from autofuse.results.comparison import Category, Comparison, Estimate, Interval, milliseconds, size

MIB = 2**20
COMPARISON = Comparison(
    ratio=1.5,
    interval=Interval(1.4, 1.625),
    control=Estimate(1.01, Interval(0.98, 1.03)),
    verdict="confirmed",
    reason="The interval lies above 1, by more than identical runs differ.",
    before_seconds=(0.030, 0.031, 0.029),
    after_seconds=(0.020, 0.021, 0.019),
    before_peak_bytes=408 * MIB,
    after_peak_bytes=26 * MIB,
    memory_source="torch.profiler",
    operators_before={
        "softmax": Category(2, 0.001, {"aten::_softmax": 2}),
        "matmul": Category(4, 0.010, {"aten::bmm": 4}),
    },
    operators_after={
        "attention": Category(1, 0.005, {"aten::_flash": 1}),
        "matmul": Category(2, 0.004, {"aten::bmm": 2}),
    },
    environment={"torch": "2.13.0"},
)


def test_medians_and_pairs_follow_from_the_times() -> None:
    assert (COMPARISON.before_median, COMPARISON.after_median, COMPARISON.pairs) == (0.030, 0.020, 3)


def test_the_text_states_ratio_interval_control_verdict_reason_and_memory() -> None:
    text = terminal.text(COMPARISON, width=120)
    for part in ("1.50x (1.40 to 1.62)", "1.01x (0.98 to 1.03)", "confirmed", COMPARISON.reason, "408.0 MiB", "30 ms"):
        assert part in text


def test_the_summary_is_one_line() -> None:
    assert COMPARISON.summary == "confirmed: 1.50x (1.40 to 1.62)"


def test_unmeasured_memory_is_omitted() -> None:
    assert "memory" not in str(replace(COMPARISON, before_peak_bytes=None, after_peak_bytes=None))


def test_operators_are_sorted_by_cost_and_new_ones_are_named() -> None:
    rows = [[cell.text for cell in row] for row in COMPARISON.operators_table().rows]
    assert [row[0] for row in rows] == ["matmul", "attention", "softmax"]
    assert rows[1][1:3] == ["0", "1"]
    assert [row[-1] for row in rows] == ["", "aten::_flash x1", ""]


def test_without_operators_only_the_step_is_shown() -> None:
    bare = replace(COMPARISON, operators_before={}, operators_after={})
    assert "operators" not in str(bare)


def test_operators_that_only_run_afterwards_are_shown_too() -> None:
    assert "aten::_flash x1" in terminal.text(replace(COMPARISON, operators_before={}), width=120)


def test_the_notebook_form_has_both_tables() -> None:
    assert COMPARISON._repr_html_().count("<table") == 2


def test_the_dict_has_every_field_and_survives_json() -> None:
    data = COMPARISON.to_dict()
    assert {field.name for field in fields(Comparison)} <= set(data)
    assert json.loads(COMPARISON.to_json()) == data
    assert data["version"] == 1
    assert data["interval"] == [1.4, 1.625]
    assert data["operators_after"]["attention"] == {"count": 1, "seconds": 0.005, "operators": {"aten::_flash": 1}}


def test_a_comparison_can_be_copied_and_pickled() -> None:
    assert copy.deepcopy(COMPARISON) == pickle.loads(pickle.dumps(COMPARISON)) == COMPARISON


def test_an_interval_contains_the_values_between_its_ends() -> None:
    interval = Interval(0.9, 1.1)
    assert all(value in interval for value in (0.9, 1, 1.1))
    assert not any(value in interval for value in (0.89, 1.11, "1", None))
    assert tuple(interval) == (0.9, 1.1)


@pytest.mark.parametrize("seconds, text", [(0.0123, "12.3 ms"), (12.3456, "12,346 ms"), (0.0, "0 ms")])
def test_times_are_in_milliseconds(seconds: float, text: str) -> None:
    assert milliseconds(seconds) == text


@pytest.mark.parametrize("count, text", [(26 * MIB, "26.0 MiB"), (0, "0.0 MiB"), (None, "")])
def test_sizes_are_in_mebibytes(count: int | None, text: str) -> None:
    assert size(count) == text
