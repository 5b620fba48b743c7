"""Layout: all spellings of one permutation are one value, and another permutation is another value."""

from __future__ import annotations

import pytest

from autofuse.canonical import View
from autofuse.canonical.shapes import from_end, source_dimension
from autofuse.ir.facts import Facts, Known
from autofuse.ir.graph import PARAMETER, Graph
from tests.canonical.recognise.test_rotary import canonical, written

_RANK_2 = "a, b = x.shape\n"
_RANK_3 = "a, b, c = x.shape\n"
_WEIGHTS = "w = cos.softmax(-1)\n"
SAME = {
    "the last two, by name": ("return x.mT", "return x.transpose(-1, -2)"),
    "the last two, the other way round": ("return x.transpose(-2, -1)", "return x.mT"),
    "t of a matrix": (_RANK_2 + "return x.t()", _RANK_2 + "return x.mT"),
    "T of a matrix": (_RANK_2 + "return x.T", _RANK_2 + "return x.mT"),
    "counted from the front": (_RANK_3 + "return x.transpose(0, 2)", _RANK_3 + "return x.transpose(-3, -1)"),
    "the first, counted from the front": (_RANK_3 + "return x.transpose(0, 1)", _RANK_3 + "return x.transpose(-3, -2)"),
    "counted from the rank": ("return x.transpose(x.dim() - 1, -2)", "return x.mT"),
    "permute": ("return x.permute(0, 2, 1)", "return x.mT"),
    "permute from a tuple": ("return x.permute((0, 2, 1))", "return x.mT"),
    "permute that permutes nothing": ("return x.permute(0, 1, 2)", "return x"),
    "twice": ("return x.mT.mT", "return x"),
    "one order and then another": ("return x.permute(0, 2, 1, 3).mT", "return x.permute(0, 2, 3, 1)"),
    "rearrange": ("return rearrange(x, 'b i j -> b j i')", "return x.mT"),
    "rearrange of the first": ("return rearrange(x, 'b i j -> i b j')", "return x.permute(1, 0, 2)"),
    "rearrange by three": ("return rearrange(x, 'a b c d -> a c d b')", "return x.permute(0, 2, 3, 1)"),
    "contiguous": ("return x.mT.contiguous()", "return x.mT"),
    "a copy": ("return x.clone() * cos", "return x * cos"),
    "probabilities on the right": (
        _WEIGHTS + "return x.mT @ w.mT",
        _WEIGHTS + "return (w @ x).mT",
    ),
    "probabilities on the right, not turned": (_WEIGHTS + "return x @ w", _WEIGHTS + "return (w.mT @ x.mT).mT"),
    "probabilities on the right, cast": (
        _WEIGHTS + "return x @ w.half()",
        _WEIGHTS + "return (w.half().mT @ x.mT).mT",
    ),
    "an einsum of scores": ("return torch.einsum('bid,bjd->bij', x, cos)", "return x @ cos.mT"),
    "an einsum of a list": ("return torch.einsum('bid,bjd->bij', [x, cos])", "return x @ cos.mT"),
    "an einsum of values": (
        _WEIGHTS + "return torch.einsum('bij,bjd->bid', w, x)",
        _WEIGHTS + "return w @ x",
    ),
    "an einsum of values, the probabilities second": (
        _WEIGHTS + "return torch.einsum('bjd,bij->bid', x, w)",
        _WEIGHTS + "return w @ x",
    ),
    "an einsum whose result is turned": ("return torch.einsum('bid,bjd->bji', x, cos)", "return (x @ cos.mT).mT"),
    "an einsum of heads in the middle": (
        "return torch.einsum('bihd,bjhd->bhij', x, cos)",
        "return x.permute(0, 2, 1, 3) @ cos.permute(0, 2, 3, 1)",
    ),
    "an einsum of einops": (
        "import einops\nreturn einops.einsum(x, cos, 'b i d, b j d -> b i j')",
        "return x @ cos.mT",
    ),
    "an einsum of heads that share a key": (
        "return torch.einsum('bihd,bjd->bhij', x, cos)",
        "return x.permute(0, 2, 1, 3) @ cos.unsqueeze(-3).mT",
    ),
    "a mean that is put back": ("return x.mean(-1).unsqueeze(-1)", "return x.mean(-1, keepdim=True)"),
    "a mean that is put back by an index": ("return x.mean(-1)[..., None]", "return x.mean(-1, keepdim=True)"),
    "a sum of another dimension that is put back": ("return x.sum(1).unsqueeze(1)", "return x.sum(1, keepdim=True)"),
    "an index that adds the last": ("return x[..., None]", "return x.unsqueeze(-1)"),
    "the first of two": ("return (x, cos)[0]", "return x"),
    "the second of two": ("return (x, cos)[1]", "return cos"),
    "the last of two": ("return (x, cos)[-1]", "return cos"),
    "the first of two, from the end": ("return (x, cos)[-2]", "return x"),
    "halves, counted from the front": (_RANK_3 + "return x.chunk(2, 2)[0]", _RANK_3 + "return x.chunk(2, -1)[0]"),
    "dropout of what is turned": (
        "return torch.dropout(x.mT, 0.1, True)",
        "return torch.dropout(x, 0.1, True).mT",
    ),
}
OTHER = {
    "another pair": ("return x.transpose(-1, -3)", "return x.mT"),
    "a rank that is not known": ("return x.transpose(1, 2)", "return x.transpose(-1, -2)"),
    "a first that is not known": ("return x.transpose(1, -1)", "return x.transpose(-2, -1)"),
    "a second that is not known": ("return x.transpose(-1, 1)", "return x.transpose(-1, -2)"),
    "permute of nothing": ("return x.permute()", "return x"),
    "rearrange of nothing": ("return rearrange(x, '->')", "return x"),
    "rearrange of several that stay": ("return rearrange([x, cos], 'b i j -> b i j')", "return [x, cos]"),
    "products of others": ("return x @ cos", "return (cos.mT @ x.mT).mT"),
    "t of what may be a vector": ("return x.t()", "return x.mT"),
    "T of three dimensions": (_RANK_3 + "return x.T", _RANK_3 + "return x.mT"),
    "one order and its inverse": ("return x.permute(0, 2, 3, 1)", "return x.permute(0, 3, 1, 2)"),
    "a permutation that is a value": ("return x.permute(z)", "return x"),
    "a permutation of which one is a value": ("return x.permute(0, z, 1)", "return x.permute(0, 2, 1)"),
    "no permutation at all": ("return x.permute(*z)", "return x"),
    "rearrange that joins": ("return rearrange(x, 'b i j -> b (i j)')", "return x"),
    "rearrange that adds": ("return rearrange(x, 'b i -> b i 1')", "return x"),
    "rearrange of any rank": ("return rearrange(x, '... i j -> ... j i')", "return x.permute(0, 2, 1)"),
    "rearrange of several": ("return rearrange([x, cos], 'b i j -> b j i')", "return x.mT"),
    "a product the other way round": ("return x @ cos", "return cos @ x"),
    "probabilities on both sides": (
        _WEIGHTS + "return x.softmax(-1) @ w",
        _WEIGHTS + "return (w.mT @ x.softmax(-1).mT).mT",
    ),
    "an einsum of three": ("return torch.einsum('bid,bjd,bjd->bij', x, cos, cos)", "return x @ cos.mT"),
    "an einsum of another sum": ("return torch.einsum('bid,bjd->bid', x, cos)", "return x @ cos.mT"),
    "a mean that is put back elsewhere": ("return x.mean(-1).unsqueeze(-2)", "return x.mean(-1, keepdim=True)"),
    "a mean that was not taken away": (
        "return x.mean(-1, keepdim=True).unsqueeze(-1)",
        "return x.mean(-1, keepdim=True)",
    ),
    "a mean of two that is put back once": ("return x.mean((-1, -2)).unsqueeze(-1)", "return x.mean(-1, keepdim=True)"),
    "a mean that is put back where it is not known": (
        "return x.mean(-1).unsqueeze(2)",
        "return x.mean(-1, keepdim=True)",
    ),
    "a mean that is put back at a value": ("return x.mean(z).unsqueeze(z)", "return x.mean(z, keepdim=True)"),
    "an index that adds two": ("return x[..., None, None]", "return x.unsqueeze(-1)"),
    "an index that adds the first": ("return x[None]", "return x.unsqueeze(-1)"),
    "an index that adds the first of all": ("return x[None, ...]", "return x.unsqueeze(-1)"),
    "an index that adds behind a first": ("return x[:, None]", "return x.unsqueeze(-1)"),
    "halves where the rank is not known": ("return x.chunk(2, 2)[0]", "return x.chunk(2, -1)[0]"),
    "halves of another": (_RANK_3 + "return x.chunk(2, 1)[0]", _RANK_3 + "return x.chunk(2, -1)[0]"),
}


@pytest.mark.parametrize(("one", "other"), SAME.values(), ids=SAME)
def test_one_order_of_dimensions_is_one_value(one: str, other: str) -> None:
    assert written(canonical(one)[1]) == written(canonical(other)[1])


@pytest.mark.parametrize(("one", "other"), OTHER.values(), ids=OTHER)
def test_another_order_is_another_value(one: str, other: str) -> None:
    assert written(canonical(one)[1]) != written(canonical(other)[1])


OPERATIONS = {
    "a product of others": ("return x @ cos", "matmul"),
    "probabilities on the left": (_WEIGHTS + "return w @ x", "matmul"),
    "probabilities on the right": (_WEIGHTS + "return x @ w", "permute"),
    "probabilities on both sides": (_WEIGHTS + "return w @ w.half()", "matmul"),
    "an einsum of one": ("return torch.einsum('ij->ji', x)", "einsum"),
    "an einsum that is a value": ("return torch.einsum(z, x, cos)", "einsum"),
    "an einsum of einops that is a value": ("import einops\nreturn einops.einsum(x, cos, z)", "einops_einsum"),
}


@pytest.mark.parametrize(("body", "op"), OPERATIONS.values(), ids=OPERATIONS)
def test_products_are_transposed_only_if_probabilities_are_on_the_right(body: str, op: str) -> None:
    assert canonical(body)[1].op == op


@pytest.mark.parametrize(("index", "place"), [(0, 0), (1, 1), (-1, 1), (-2, 0), (2, None), (-3, None), ("a", None)])
def test_an_element_of_a_tuple_is_simplified(index: object, place: int | None) -> None:
    graph = Graph()
    both = [graph.value(PARAMETER, data=name) for name in "xy"]
    view = View(Facts())
    made = view.of(graph.value("item", graph.value("tuple", *both), graph.const(index)))  # type: ignore[arg-type]
    assert made.op == "item" if place is None else made is view.of(both[place])


@pytest.mark.parametrize("index", ["2", "-3"])
def test_a_missing_element_of_a_tuple_is_not_simplified(index: str) -> None:
    assert canonical(f"return (x, cos)[{index}]")[1].op == "item"


def test_two_permuted_dropouts_stay_two() -> None:
    _, both = canonical("return torch.dropout(x.mT, 0.1, True), torch.dropout(x.mT, 0.1, True)")
    assert both.inputs[0] is not both.inputs[1]


@pytest.mark.parametrize(
    ("put_back", "rank", "kept"),
    [(2, 2, True), (1, 2, False), (2, None, False), (0, 2, False), (0, 0, True), (-1, 2, True)],
)
def test_unsqueezing_a_reduced_dimension_is_keepdim_if_the_rank_is_known(
    put_back: int, rank: int | None, kept: bool
) -> None:
    graph = Graph()
    x = graph.value(PARAMETER, data="x")
    mean = graph.value("mean", x, graph.const(-1), graph.const(False))
    view = View(Facts({mean: Known(rank=rank)}))
    made = view.of(graph.value("unsqueeze", mean, graph.const(put_back)))
    assert (made.op, made.inputs[-1].data) == (("mean", True) if kept else ("unsqueeze", put_back))


DIMENSIONS = {
    "from the end": ("return x, -2", -2),
    "from the front, of three": (_RANK_3 + "return x, 1", -2),
    "the first of three": (_RANK_3 + "return x, 0", -3),
    "from the front, of any": ("return x, 1", None),
    "the last by the rank": ("return x, x.dim() - 1", -1),
    "one of a vector's that it has not": ("return x, x.dim() + 1", None),
    "the first by the rank": ("return x, x.dim() + 0", None),
    "by another's rank": ("return x, cos.dim() - 1", None),
    "a value": ("return x, z", None),
    "two less a value": ("return x, x.dim() - z", None),
    "true": (_RANK_3 + "return x, True", None),
}


@pytest.mark.parametrize(("body", "place"), DIMENSIONS.values(), ids=DIMENSIONS)
def test_a_dimension_is_counted_from_the_end_if_the_rank_is_known(body: str, place: int | None) -> None:
    view, both = canonical(body)
    x, dim = both.inputs
    assert from_end(view, x, dim) == place


@pytest.mark.parametrize(
    ("order", "dim", "source"),
    [((-1, -2), -1, -2), ((-1, -2), -2, -1), ((-1, -2), -3, -3), ((-2, -1, -3), -3, -2), ((), -1, -1)],
)
def test_a_dimension_of_a_permuted_value_has_its_source(order: tuple[int, ...], dim: int, source: int) -> None:
    assert source_dimension(order, dim) == source
