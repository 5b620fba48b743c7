"""autofuse.ops.sink_attention against hand-written code: results, gradients, all kinds of masks."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from autofuse import ops
from autofuse.ops import reference
from autofuse.ops.sink_attention import _OP, _with_a_key
from tests.ops.test_known_masks import FILLS, KINDS, additive_mask, causal

B, H, G, T, D = 2, 6, 3, 7, 8
Agree = Callable[..., None]
MODULE = sys.modules["autofuse.ops.sink_attention"]


def operands(dtype: torch.dtype = torch.float64, t: int = T, s: int = T) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    q, k, v = torch.randn(B, H, t, D), torch.randn(B, G, s, D), torch.randn(B, G, s, D)
    sinks = torch.linspace(-2, 3, H).view(H, 1, 1)
    return tuple(x.to(dtype).requires_grad_() for x in (q, k, v, sinks))  # type: ignore[return-value]


@pytest.fixture(params=["flash", "in steps"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With torch's kernel, as for large calls, or in steps, as for small ones."""
    monkeypatch.setattr(MODULE, "SUNK", 0 if request.param == "flash" else 2**30)
    return str(request.param)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fill", ["boolean", "boolean, -1e9", "boolean, -40", *FILLS])
def test_a_mask_of_any_kind_gives_what_the_program_gives(kind: str, fill: str, way: str) -> None:
    kept, number = KINDS[kind](), {"boolean": None, "boolean, -1e9": -1e9, "boolean, -40": -40.0}.get(fill)
    mask = kept if fill.startswith("boolean") else additive_mask(kept, FILLS[fill], torch.float64)
    given = operands()
    run, right = (partial(f.sink_attention, mask=mask, scale=0.3, fill=number, repeats=2) for f in (ops, reference))
    expected = right(*given)
    weight = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, given, weight)
    for _ in range(2):  # when the mask is read, and when it is known
        result = run(*given)
        torch.testing.assert_close(result, expected)
        for one, other in zip(torch.autograd.grad(result, given, weight), wanted, strict=True):
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("is_causal", [False, True])
def test_agrees_in_every_dtype(assert_agree: Agree, dtype: torch.dtype, is_causal: bool, way: str) -> None:
    given = [x.detach() for x in operands(dtype)]
    run, right = (partial(f.sink_attention, scale=0.3, is_causal=is_causal, repeats=2) for f in (ops, reference))
    assert_agree(run, right, *given, terms=8 * T)


@pytest.mark.parametrize("t", [3, 9])
@pytest.mark.parametrize("is_causal", [False, True])
def test_other_lengths_of_queries_agree(t: int, is_causal: bool, way: str) -> None:
    given = operands(t=t)
    expected = reference.sink_attention(*given, is_causal=is_causal, repeats=2)
    torch.testing.assert_close(ops.sink_attention(*given, is_causal=is_causal, repeats=2), expected)


SINKS: dict[str, Callable[[], Tensor]] = {
    "one for all": lambda: torch.tensor([1.5]),
    "of each head": lambda: torch.randn(H, 1, 1),
    "of each query": lambda: torch.randn(B, H, T, 1),
    "nearly nothing": lambda: torch.full((H, 1, 1), -1e30),
    "nearly all": lambda: torch.full((H, 1, 1), 80.0),
}


@pytest.mark.parametrize("sinks", SINKS)
@pytest.mark.parametrize("fill", [None, -1e9])
def test_sinks_of_any_shape_and_size(sinks: str, fill: float | None, way: str) -> None:
    *given, _ = operands()
    given.append(SINKS[sinks]().double().requires_grad_())
    mask = KINDS["padded on the left"]()
    run, right = (partial(f.sink_attention, mask=mask, fill=fill, repeats=2) for f in (ops, reference))
    expected, result = right(*given), run(*given)
    torch.testing.assert_close(result, expected)
    weight = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, given, weight)
    for one, other in zip(torch.autograd.grad(result, given, weight), wanted, strict=True):
        torch.testing.assert_close(one, other)


def test_of_two_columns_of_sinks_only_the_last_is_dropped(way: str) -> None:
    q, k = operands()[:2]
    given = (q, k, torch.randn(B, G, T + 1, D).double(), torch.randn(H, 1, 2).double())
    expected = reference.sink_attention(*given, repeats=2)
    torch.testing.assert_close(ops.sink_attention(*given, repeats=2), expected)


def test_a_large_call_uses_torchs_kernel() -> None:
    before = _OP.counts.get("flash", 0)
    given = [x.detach() for x in operands(torch.float32, 128, 128)]
    result = ops.sink_attention(*given, mask=additive_mask(causal(128), None), scale=0.3, repeats=2)  # type: ignore[arg-type]
    assert _OP.counts["flash"] == before + 1
    expected = reference.sink_attention(*given, is_causal=True, scale=0.3, repeats=2)  # type: ignore[arg-type]
    torch.testing.assert_close(result, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("mask", [None, "causal", "window", "padding alone"])
@pytest.mark.parametrize("boolean", [True, False])
def test_attention_with_one_more_key_gives_the_same(mask: str | None, boolean: bool) -> None:
    """The way on a GPU, and with dropout."""
    given = operands()
    kept: Any = None if mask in (None, "causal") else KINDS[mask]()
    if kept is not None and not boolean:
        kept = additive_mask(kept, -math.inf, torch.float64)
    named = {"mask": kept, "scale": 0.3, "is_causal": mask == "causal"}
    expected = reference.sink_attention(*given, **named, repeats=2)
    result = _with_a_key(*given, **named, dropout_p=1e-12, training=True)
    torch.testing.assert_close(result, expected)
    weight = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, given, weight)
    for one, other in zip(torch.autograd.grad(result, given, weight), wanted, strict=True):
        torch.testing.assert_close(one, other)


def test_it_has_second_derivatives(way: str) -> None:
    q, k, v, sinks = (x[..., :2].detach() if x.ndim == 4 else x.detach() for x in operands(t=2, s=3))
    given = [x[:1, :2].requires_grad_() if x.ndim == 4 else x[:2].requires_grad_() for x in (q, k, v, sinks)]
    given[1], given[2] = (x[:, :1].detach().requires_grad_() for x in given[1:3])
    torch.autograd.gradgradcheck(lambda *x: ops.sink_attention(*x, scale=0.5, repeats=2), given)


def test_it_compiles_into_one_graph_and_works_under_vmap() -> None:
    run = partial(ops.sink_attention, repeats=2)
    given = [x.detach() for x in operands(torch.float32, 128, 128)]
    expected = run(*given)
    torch.testing.assert_close(torch.compile(run, fullgraph=True, backend="aot_eager")(*given), expected)
    mapped = torch.vmap(run, in_dims=(0, 0, 0, None))(*(x[None] if x.ndim == 4 else x for x in given))
    torch.testing.assert_close(mapped[0], expected)


def test_weights_are_dropped() -> None:
    given = [x.detach() for x in operands()]
    assert not ops.sink_attention(*given, dropout_p=1.0, training=True, repeats=2).any()  # type: ignore[arg-type]
