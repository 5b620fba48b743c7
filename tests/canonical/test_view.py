"""The canonical view: which reads of an attribute are the same value, and which are two."""

from __future__ import annotations

import math

import pytest

from autofuse.canonical.view import literal
from autofuse.ir.graph import Graph
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
def test_reads_with_equal_results_are_one_value(pair: str) -> None:
    _, both = canonical(f"return {pair}")
    assert both.inputs[0] is both.inputs[1]


@pytest.mark.parametrize("pair", APART.values(), ids=APART)
def test_reads_that_may_differ_are_two(pair: str) -> None:
    _, both = canonical(f"return {pair}")
    assert both.inputs[0] is not both.inputs[1]


def test_an_attribute_that_a_call_may_change_is_a_new_value_after_it() -> None:
    _, both = canonical("a = z.scale\nz.update()\nreturn a, z.scale")
    assert both.inputs[0] is not both.inputs[1]


def test_an_attribute_is_one_value_if_nothing_is_between_its_reads() -> None:
    _, both = canonical("a = z.scale\nb = x * cos\nreturn a, z.scale")
    assert both.inputs[0] is both.inputs[1]


# An expression of x, a tensor of three dimensions, and of n, a number: whether it is a number, and its rank.
KINDS = {
    "a tensor": ("x", False, 3),
    "a number": ("n", True, None),
    "what is not known": ("z", None, None),
    "a literal": ("2", True, None),
    "a fraction": ("0.5", True, None),
    "true": ("True", False, None),
    "a text": ("'a'", False, None),
    "a product of numbers": ("n * n", True, 0),
    "a product with a tensor": ("n * x", False, 3),
    "a product with what is not known": ("n * z", None, None),
    "a sum of tensors": ("x + x.mT", False, 3),
    "a sum with what is not known": ("x + z", False, None),
    "a power": ("n ** 3", True, 0),
    "a turned tensor": ("x.mT", False, 3),
    "a cast tensor": ("x.float()", False, 3),
    "a choice of numbers": ("(n if z else 2)", True, None),
    "a choice of a number or a tensor": ("(n if z else x)", None, None),
    "an unknown call": ("z.f()", None, None),
}


_READ = "a, b, c = x.shape\nn = x.size(0)\n"


@pytest.mark.parametrize(("expression", "number", "rank"), KINDS.values(), ids=KINDS)
def test_facts_about_a_program_hold_for_its_canonical_form(
    expression: str, number: bool | None, rank: int | None
) -> None:
    view, both = canonical(f"{_READ}return {expression}, 1")
    v = both.inputs[0]
    assert (view.number(v), view.rank(v)) == (number, rank)


@pytest.mark.parametrize("kind", [name for name in KINDS if name.startswith(("a product", "a sum", "a choice"))])
def test_facts_about_values_of_the_view_are_inferred(kind: str) -> None:
    expression, number, rank = KINDS[kind]
    view, both = canonical(f"{_READ}return {expression}, 1")
    made = view.fresh(both.inputs[0].op, *both.inputs[0].inputs)
    assert not view.originals(made)
    assert (view.number(made), view.rank(made)) == (number, rank)


LIKE = {
    "a product": ("(x * cos).dtype", "x"),
    "a matrix product": ("(x @ cos).dtype", "x"),
    "a softmax": ("x.mT.softmax(-1).device", "x"),
    "a choice": ("(x if z else cos).dtype", "x"),
}


@pytest.mark.parametrize(("read", "wanted"), LIKE.values(), ids=LIKE)
def test_a_dtype_is_that_of_the_earliest_value_with_it(read: str, wanted: str) -> None:
    _, v = canonical(f"return {read}")
    assert v.op == "attribute" and v.inputs[0].data == wanted


CONSTANTS = {"math.pi": math.pi, "torch.inf": math.inf, "math.e": math.e, "z.pi": None, "math.tau": None, "x.e": None}


@pytest.mark.parametrize(("name", "number"), CONSTANTS.items())
def test_constants_of_modules_are_numbers(name: str, number: float | None) -> None:
    _, v = canonical(f"import math\nreturn {name}")
    assert (v.data if v.op == "const" else None) == number


@pytest.mark.parametrize(
    ("data", "number"),
    [
        (2, 2),
        (0.5, 0.5),
        (True, None),
        (None, None),
        ("2", None),
        (10**300, 10**300),
        (-(10**301), None),
        (1e301, 1e301),
    ],
)
def test_a_literal_is_a_number_in_the_range_of_a_float(data: object, number: float | None) -> None:
    assert literal(Graph().const(data)) == number  # type: ignore[arg-type]


def test_an_assumption_belongs_to_a_separate_value() -> None:
    view, x = canonical("return x")
    assert view.with_assumption(x, "") is x and view.assumption(x) == ""
    own = view.with_assumption(x, "why")
    assert own is not x and (own.op, own.data, own.inputs) == (x.op, x.data, x.inputs)
    assert view.assumption(own) == "why" and view.assumption(x) == ""


def test_a_replacement_of_a_step_has_its_originals() -> None:
    view, both = canonical("return x, cos")
    x, cos = both.inputs
    before = [*view.originals(x), *view.originals(cos)]
    assert view.replace_step(cos, x) is x
    assert view.originals(x) == before


def test_the_identity_order_is_not_a_permutation() -> None:
    view, x = canonical("return x")
    turned = view.permuted(x, (-1, -2))
    assert (turned.op, turned.data) == ("permute", (-1, -2))
    assert view.permuted(x, ()) is x and view.permuted(turned, (-1, -2)) is x
