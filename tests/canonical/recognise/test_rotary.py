"""Rotary embeddings: every spelling is one rotation, and other formulas are not."""

from __future__ import annotations

import ast
import textwrap

import pytest

from autofuse.canonical import View
from autofuse.canonical.recognise.rotary import ROTATION
from autofuse.ir.facts import Facts
from autofuse.ir.graph import Value
from autofuse.source.capture.function_capture import capture
from autofuse.source.capture.scope import file_scope, functions
from autofuse.source.capture.symbolic_lengths import record_lengths

HEAD = """
import torch
from einops import rearrange

def f(x, cos, sin, z):
"""


def canonical(body: str) -> tuple[View, Value]:
    """The canonical result of a function of x, cos, sin and z."""
    (defined,) = functions(file_scope(ast.parse(HEAD + textwrap.indent(textwrap.dedent(body).strip(), "    "))))
    captured = capture(defined.function, defined.scope)
    record_lengths(captured)
    view = View(Facts(captured.known))
    for v in captured.graph.values:
        view.of(v)
    assert captured.returned is not None
    return view, view.of(captured.returned)


def written(v: Value) -> str:
    """A canonical value as text, without serials."""
    parts = ", ".join(map(written, v.inputs))
    return f"{v.op}{'' if v.data is None else f'[{v.data}]'}" + (f"({parts})" if parts else "")


HALVES = {
    "chunked": "a, b = x.chunk(2, -1)\nreturn x * cos + torch.cat((-b, a), -1) * sin",
    "split": "a, b = x.split(x.shape[-1] // 2, dim=-1)\nreturn cos * x + sin * torch.cat([-b, a], dim=-1)",
    "sliced": "d = x.size(-1) // 2\nreturn torch.cat((-x[..., d:], x[..., :d]), -1) * sin + x * cos",
    "einops": (
        "a, b = rearrange(x, '... (j d) -> ... j d', j=2).unbind(-2)\nreturn x * cos + torch.cat((-b, a), -1) * sin"
    ),
    "selected": (
        "y = x.unflatten(-1, (2, -1))\nreturn x * cos + torch.cat((-y.select(-2, 1), y.select(-2, 0)), -1) * sin"
    ),
    "part by part": "a, b = x.chunk(2, -1)\nreturn torch.cat((a * cos - b * sin, a * sin + b * cos), -1)",
    "minus the opposite": "a, b = x.chunk(2, -1)\nreturn x * cos - torch.cat((b, -a), -1) * sin",
}
PAIRS = {
    "every second": "r = torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)\nreturn x * cos + r * sin",
    "as the shape": "r = torch.stack((-x[..., 1::2], x[..., 0::2]), -1).view_as(x)\nreturn x * cos + r * sin",
    "einops": (
        "a, b = rearrange(x, 'b n (d j) -> b n d j', j=2).unbind(-1)\n"
        "r = rearrange(torch.stack((-b, a), -1), 'b n d j -> b n (d j)')\nreturn x * cos + r * sin"
    ),
    "reshaped": (
        "y = x.reshape(*x.shape[:-1], -1, 2)\nr = torch.stack((-y[..., 1], y[..., 0]), -1).reshape(x.shape)\n"
        "return x * cos + r * sin"
    ),
    "part by part": (
        "a, b = x.unflatten(-1, (-1, 2)).unbind(-1)\n"
        "return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)"
    ),
}


@pytest.mark.parametrize(
    ("layout", "body"),
    [pytest.param("halves", b, id=f"halves {n}") for n, b in HALVES.items()]
    + [pytest.param("pairs", b, id=f"pairs {n}") for n, b in PAIRS.items()],
)
def test_every_spelling_is_one_rotation(layout: str, body: str) -> None:
    view, found = canonical(body)
    assert written(found) == f"rotation[{layout}](parameter[x], parameter[cos], parameter[sin])"
    assert view.assumption(found) == ""


@pytest.mark.parametrize(
    "numbers",
    [
        "torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))",
        "torch.view_as_complex(x.reshape(x.shape[:-1] + (-1, 2)))",
        "torch.complex(x[..., ::2], x[..., 1::2])",
    ],
)
def test_a_product_of_complex_numbers_rotates_pairs(numbers: str) -> None:
    view, found = canonical(f"return torch.view_as_real({numbers} * z).flatten(-2)")
    assert written(found) == "rotation[pairs](parameter[x], real(parameter[z]), imag(parameter[z]))"
    assert view.assumption(found) == "assumes that the factor is complex"


def test_dimensions_counted_from_the_front_are_an_assumption() -> None:
    view, found = canonical("r = torch.stack((-x[:, :, 1::2], x[:, :, ::2]), -1).flatten(2)\nreturn x * cos + r * sin")
    assert found.op == ROTATION
    assert view.assumption(found) == "assumes that the rotated tensor has 3 dimensions"


@pytest.mark.parametrize("known", ["assert x.ndim == 3", "assert 3 == x.dim()", "b, n, d = x.shape"])
def test_there_is_no_assumption_if_the_rank_is_known(known: str) -> None:
    view, found = canonical(f"{known}\na, b_ = x.chunk(2, 2)\nreturn x * cos + torch.cat((-b_, a), 2) * sin")
    assert found.op == ROTATION and view.assumption(found) == ""


@pytest.mark.parametrize(
    "body",
    [
        "a, b = x.chunk(2, -1)\nreturn x * cos + torch.cat((b, a), -1) * sin",
        "a, b = x.chunk(2, -2)\nreturn x * cos + torch.cat((-b, a), -2) * sin",
        "a, b = x.split(x.shape[-1] // 4, -1)\nreturn x * cos + torch.cat((-b, a), -1) * sin",
        "a, b = x.chunk(2, -1)\nreturn z * cos + torch.cat((-b, a), -1) * sin",
        "a, b = x.chunk(2, -1)\nreturn torch.cat((a * cos - b * sin, b * cos - a * sin), -1)",
        "a, b = x.chunk(2, -1)\nreturn torch.cat((a * cos - b * sin, b * cos + a * z), -1)",
        "a, b = x[..., ::2], x[..., 1::2]\nreturn torch.cat((a * cos - b * sin, b * cos + a * sin), -1)",
        "y = x.reshape(*z.shape[:-1], -1, 2)\nr = torch.stack((-y[..., 1], y[..., 0]), -1).reshape(x.shape)\n"
        "return x * cos + r * sin",
        "r = torch.stack((-x[..., 1::2], x[..., ::2]), -1).reshape(z.shape)\nreturn x * cos + r * sin",
        "p = torch.view_as_complex(x.reshape((-1, 2) + x.shape[:-1]))\nreturn torch.view_as_real(p * z).flatten(-2)",
    ],
)
def test_another_formula_is_not_a_rotation(body: str) -> None:
    assert canonical(body)[1].op != ROTATION
