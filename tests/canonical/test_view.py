"""One form per meaning: which reads of an attribute are the same value, and which are two."""

from __future__ import annotations

import pytest

from tests.canonical.recognise.test_rotary import canonical

SAME = {
    "the dtype of a tensor and of the same made contiguous": "x.dtype, x.contiguous().dtype",
    "the device of a tensor and of the same made contiguous": "x.device, x.contiguous().device",
    "a number read twice": "(x.ndim, x.ndim)",
}
APART = {
    "the dtypes of two tensors": "x.dtype, cos.dtype",
    "the dtype and the device of one": "x.dtype, x.device",
    "the dtype of a tensor and of the same cast": "x.dtype, x.float().dtype",
}


@pytest.mark.parametrize("pair", SAME.values(), ids=SAME)
def test_reads_that_give_the_same_are_one_value(pair: str) -> None:
    _, both = canonical(f"return {pair}")
    assert both.inputs[0] is both.inputs[1]


@pytest.mark.parametrize("pair", APART.values(), ids=APART)
def test_reads_that_may_differ_are_two(pair: str) -> None:
    _, both = canonical(f"return {pair}")
    assert both.inputs[0] is not both.inputs[1]


def test_an_attribute_that_a_call_may_change_is_read_anew_behind_it() -> None:
    _, both = canonical("a = z.scale\nz.update()\nreturn a, z.scale")
    assert both.inputs[0] is not both.inputs[1]


def test_an_attribute_is_one_value_where_nothing_stands_between_its_reads() -> None:
    _, both = canonical("a = z.scale\nb = x * cos\nreturn a, z.scale")
    assert both.inputs[0] is both.inputs[1]
