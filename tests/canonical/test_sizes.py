"""Sizes: which numbers of a program are sizes of tensors, and which tensor has a given shape."""

from __future__ import annotations

import pytest

from autofuse.canonical import View
from autofuse.canonical.sizes import Sizes, dimensions, is_half, is_size, lengths, same_shape, size_query, whole_shape
from autofuse.canonical.view import LEAF
from autofuse.ir.facts import Facts, Known
from autofuse.ir.graph import CONST, PARAMETER, Graph, Value
from tests.canonical.recognise.test_rotary import canonical

_RANK_3 = "a, b, c = x.shape\n"


def values(body: str) -> tuple[View, tuple[Value, ...]]:
    """The canonical values of the elements of the tuple that a function returns."""
    view, returned = canonical(body)
    return view, returned.inputs


# The arguments of a view, and the sizes that they stand for, in words: `x[-1]` are the sizes of x except the last one.
NAMED = {
    "one by one": ("2, 3", ["2", "3"]),
    "in a tuple": ("(2, 3)", ["2", "3"]),
    "one": ("-1", ["-1"]),
    "a shape": ("x.shape", ["x[0]"]),
    "size()": ("x.size()", ["x[0]"]),
    "a starred shape": ("*x.shape, 2", ["x[0]", "2"]),
    "a starred size()": ("*x.size(), 2", ["x[0]", "2"]),
    "all but the last": ("*x.shape[:-1], -1, 2", ["x[1]", "-1", "2"]),
    "all but the last two": ("*x.shape[:-2], 4", ["x[2]", "4"]),
    "all but the last, from the first": ("*x.shape[0:-1], 4", ["x[1]", "4"]),
    "joined": ("x.shape[:-1] + (2, 3)", ["x[1]", "2", "3"]),
    "joined with a shape": ("(2, 3) + x.shape", ["2", "3", "x[0]"]),
    "joined, starred": ("*(x.shape[:-1] + (2,)), 5", ["x[1]", "2", "5"]),
    "a number that a function gives": ("z.rows(), 2", ["a value", "2"]),
    "one size": ("x.size(0)", ["None"]),
    "another attribute": ("z.sizes", ["sizes"]),
    "another attribute, starred": ("*z.sizes, 2", ["sizes", "2"]),
    "from the second": ("*x.shape[1:-1], 2", None),
    "every second": ("*x.shape[:-1:2], 2", None),
    "the first two": ("*x.shape[:2], 2", None),
    "up to a value": ("*x.shape[:z], 2", None),
    "none of them": ("*x.shape[:0], 2", None),
    "all of them": ("*x.shape[:], 2", None),
    "a part of a part": ("*x.shape[:-1][:-1], 2", None),
    "a part of a tuple": ("*(2, 3)[:-1], 2", None),
    "a part of what is not known": ("*z[:-1], 2", None),
    "what a function gives": ("*z.shapes(), 2", None),
    "joined with what a function gives": ("x.shape + z.shapes()", None),
    "what a function gives, joined": ("z.shapes() + x.shape", None),
}


def description(part: Value | Sizes) -> str:
    if isinstance(part, Sizes):
        return f"{part.of.data}[{part.less}]"
    return "a value" if part.op == LEAF else str(part.data)


@pytest.mark.parametrize(("arguments", "wanted"), NAMED.values(), ids=NAMED)
def test_the_arguments_of_a_view_are_listed_one_by_one(arguments: str, wanted: list[str] | None) -> None:
    view, viewed = canonical(f"return cos.view({arguments})")
    found = dimensions(view, viewed.inputs[1])
    assert (None if found is None else list(map(description, found))) == wanted


# Two values, and whether they have the same shape.
SHAPES = {
    "one": ("x, x", True),
    "one, cast": ("x, x.float()", True),
    "one, turned and cast": ("x.mT, x.float().mT", True),
    "one, turned": ("x, x.mT", False),
    "two": ("x, cos", False),
    "two, turned": ("x.mT, cos.mT", False),
    "one, turned otherwise": ("x.mT, x.permute(2, 1, 0)", False),
}


@pytest.mark.parametrize(("pair", "alike"), SHAPES.values(), ids=SHAPES)
def test_casts_do_not_change_a_shape(pair: str, alike: bool) -> None:
    view, (a, b) = values(f"return {pair}")
    assert same_shape(view, a, b) is alike


# A number and a tensor, the dimension, and whether the number is the size of it.
SIZED = {
    "size of the last": ("return x.size(-1), x", -1, True),
    "shape of the last": ("return x.shape[-1], x", -1, True),
    "an element of size()": ("return x.size()[-1], x", -1, True),
    "size of the last but one": ("return x.size(-2), x", -1, False),
    "the last but one of the last but one": ("return x.shape[-2], x", -2, True),
    "of a cast": ("return x.float().size(-1), x", -1, True),
    "of another": ("return cos.size(-1), x", -1, False),
    "of the last by the rank": ("return x.size(x.dim() - 1), x", -1, True),
    "of the last from the front": (_RANK_3 + "return x.size(2), x", -1, True),
    "of the first from the front": (_RANK_3 + "return x.size(0), x", -1, False),
    "from the front of any rank": ("return x.size(1), x", -1, False),
    "what the shape was unpacked to": (_RANK_3 + "return c, x", -1, True),
    "another that it was unpacked to": (_RANK_3 + "return b, x", -1, False),
    "of what was turned": (_RANK_3 + "return x.mT.size(-2), x", -1, True),
    "of what was turned, the same place": (_RANK_3 + "return x.mT.size(-1), x", -1, False),
    "of a view that names it": (_RANK_3 + "return c, x.view(a * b, c)", -1, True),
    "a number that a view names": ("return 8, x.view(-1, 8)", -1, True),
    "another number": ("return 9, x.view(-1, 8)", -1, False),
    "a number that is no whole one": ("return 8.0, x.view(-1, 8)", -1, False),
    "true": ("return True, x.view(-1, 1)", -1, False),
    "of two tensors that are viewed alike": ("return x.view(-1, 8).size(-1), cos.view(-1, 8)", -1, True),
    "of two tensors that are not": ("return x.view(-1, 8).size(-1), cos.view(-1, 9)", -1, False),
    "of two that are not known": ("return x.view(3, -1).size(-1), cos.view(3, -1)", -1, False),
    "a dimension that it has not": ("return x.view(8, 8).size(-1), cos.view(-1)", -2, False),
    "the first that it has": ("return 8, x.view(8, 3)", -2, True),
    "an element of no shape": ("return z[-1], z", -1, False),
    "a product": ("return x.size(-1) * 2, x", -1, False),
}


@pytest.mark.parametrize(("body", "dim", "wanted"), SIZED.values(), ids=SIZED)
def test_a_number_is_the_size_of_a_dimension_if_that_is_known(body: str, dim: int, wanted: bool) -> None:
    view, (number, tensor) = values(body)
    assert is_size(view, number, tensor, dim) is wanted


HALVES = {
    "half of the size": ("return x.size(-1) // 2, x", True),
    "a third of it": ("return x.size(-1) // 3, x", False),
    "half of another": ("return x.size(-2) // 2, x", False),
    "the size": ("return x.size(-1), x", False),
    "half of the number": ("return 4, x.view(-1, 8)", True),
    "the number": ("return 8, x.view(-1, 8)", False),
    "a third of the number": ("return 4, x.view(-1, 12)", False),
    "twice the number": ("return 16, x.view(-1, 8)", False),
    "a number of what is not known": ("return 4, x", False),
    "a number that is no whole one": ("return 4.0, x.view(-1, 8)", False),
    "a number for a value": ("return 4, x.view(-1, z)", False),
    "of the first only": ("return 4, x.view(8, 10)", False),
    "a value": ("return z, x.view(-1, 8)", False),
}


@pytest.mark.parametrize(("body", "wanted"), HALVES.values(), ids=HALVES)
def test_half_of_the_last_size_is_known(body: str, wanted: bool) -> None:
    view, (number, tensor) = values(body)
    assert is_half(view, number, tensor) is wanted


ASKED = {
    "the shape": ("x.shape", ("x", None)),
    "size()": ("x.size()", ("x", None)),
    "one of the shape": ("x.shape[1]", ("x", 1)),
    "one of size()": ("x.size()[1]", ("x", 1)),
    "size(0)": ("x.size(0)", ("x", 0)),
    "size(-1)": ("x.size(-1)", ("x", -1)),
    "size of a value": ("x.size(z)", None),
    "one of the shape by a value": ("x.shape[z]", None),
    "a part of the shape": ("x.shape[:-1]", None),
    "another attribute": ("x.ndim", None),
    "an element": ("x[0]", None),
    "the tensor": ("x", None),
    "a number": ("2", None),
}


@pytest.mark.parametrize(("size", "wanted"), ASKED.values(), ids=ASKED)
def test_the_program_shows_the_tensor_of_a_size(size: str, wanted: tuple[str, int | None] | None) -> None:
    _, (v, _) = values(f"return {size}, cos")
    found = size_query(v)
    assert (found and (found[0].data, found[1])) == wanted


WHOLE = {
    "the shape": ("return (x.shape,)", "x"),
    "every size": (_RANK_3 + "return a, b, c", "x"),
    "every size by its number": (_RANK_3 + "return x.size(0), x.size(1), x.size(2)", "x"),
    "all but the last": (_RANK_3 + "return a, b", None),
    "all but the first": (_RANK_3 + "return b, c", None),
    "in another order": (_RANK_3 + "return a, c, b", None),
    "one twice": (_RANK_3 + "return a, a, c", None),
    "of two tensors": (_RANK_3 + "return a, b, cos.size(2)", None),
    "of a rank that is not known": ("return x.size(0), x.size(1)", None),
    "with a number": (_RANK_3 + "return a, b, 2", None),
    "the shape twice": ("return x.shape, x.shape", None),
    "the shapes of two": ("return x.shape, cos.shape", None),
    "none": ("return ()", None),
}


@pytest.mark.parametrize(("body", "wanted"), WHOLE.values(), ids=WHOLE)
def test_sizes_are_a_shape_only_if_complete_and_in_order(body: str, wanted: str | None) -> None:
    view, sizes = values(body)
    found = whole_shape(view, sizes)
    assert (found and found.data) == wanted


LENGTHS = {
    "as they are": ("x", ("a", "b", "c", "d")),
    "turned": ("x.mT", ("a", "b", "d", "c")),
    "three turned": ("x.permute(0, 2, 3, 1)", ("a", "c", "d", "b")),
    "cast": ("x.float()", ("a", "b", "c", "d")),
    "turned and cast": ("x.mT.float()", ("a", "b", "d", "c")),
    "computed": ("x + 1", None),
    "another, turned": ("z.mT", None),
}


@pytest.mark.parametrize(("program", "wanted"), LENGTHS.values(), ids=LENGTHS)
def test_lengths_follow_permutations_and_casts(program: str, wanted: tuple[str, ...] | None) -> None:
    known, (v, x) = values(f"return {program}, x")
    (parameter,) = known.originals(x)
    known.facts = Facts({parameter: Known(lengths=("a", "b", "c", "d"))})
    assert lengths(known, v) == wanted


@pytest.mark.parametrize(("number", "wanted"), [("c", True), ("b", False), (None, False)])
def test_a_number_that_is_known_to_be_a_length_is_the_size(number: str | None, wanted: bool) -> None:
    graph = Graph()
    x, n = (graph.value(PARAMETER, data=name) for name in "xn")
    view = View(Facts({x: Known(lengths=("b", None if number is None else "c")), n: Known(size=number)}))
    assert is_size(view, view.of(n), view.of(x), -1) is wanted


def test_an_unknown_length_is_not_a_number() -> None:
    graph = Graph()
    x, none = graph.value(PARAMETER, data="x"), graph.value(CONST, data=None)
    view = View(Facts({x: Known(lengths=("b", None))}))
    assert not is_size(view, view.of(none), view.of(x), -1)
    assert not is_half(view, view.of(graph.const(0)), view.of(x))
