"""Layers of two profiles, matched by name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autofuse.display.changes import changes, changes_table, kernel_changes, kernel_changes_table
from autofuse.results.comparison import Interval
from autofuse.results.kernel_totals import KernelTotal
from autofuse.results.profile import Profile
from autofuse.results.profile_parts import Layer, Timing, Work


def profile(**seconds: float) -> Profile:
    layers = tuple(
        Layer(name, "Linear", 1, Work(s / 2), Work(s / 2), Work(s / 2), Work(s / 2)) for name, s in seconds.items()
    )
    return Profile("m", Timing((1.0,), Interval(1.0, 1.0)), (), layers)


def test_layers_are_faster_slower_new_or_gone_the_greatest_difference_first() -> None:
    found = changes(profile(a=0.4, b=0.2, c=0.3, d=0.1), profile(a=0.2, b=0.3, c=0.31, e=0.15))
    assert [(c.fqn, c.kind) for c in found] == [
        ("a", "faster"), ("e", "new"), ("d", "gone"), ("b", "slower"), ("c", "about the same"),
    ]  # fmt: skip
    assert (found[1].before, found[1].after) == (None, 0.15)


def test_a_difference_below_a_hundredth_of_the_step_is_not_a_change() -> None:
    assert changes(profile(a=0.001), profile(a=0.009))[0].kind == "about the same"


def test_the_table_contains_only_changes() -> None:
    found = changes(profile(a=0.4, b=0.2), profile(a=0.2, b=0.2))
    assert [row[0].text for row in changes_table(found).rows] == ["a"]
    many = tuple(replace(found[0], fqn=str(i)) for i in range(12))
    assert "and 2 more" in changes_table(many, most=10).caption


def test_kernels_are_matched_by_name_over_their_categories() -> None:
    before = replace(
        profile(), kernels=(KernelTotal("mm", "matmul", 10, 0.4), KernelTotal("softmax", "softmax", 4, 0.2))
    )
    products = KernelTotal("mm", "matmul", 8, 0.3), KernelTotal("mm", "optimizer", 2, 0.1)
    after = replace(profile(), kernels=(*products, KernelTotal("flash", "attention", 4, 0.1)))
    found = kernel_changes(before, after)
    assert [(c.name, c.kind) for c in found] == [("softmax", "gone"), ("flash", "new"), ("mm", "about the same")]
    assert (found[2].before, found[2].after, found[2].count_after) == (0.4, pytest.approx(0.4), 10)
    table = kernel_changes_table(found)
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["softmax", "200 ms", "", "4", "0", "gone"], ["flash", "", "100 ms", "0", "4", "new"],
    ]  # fmt: skip
