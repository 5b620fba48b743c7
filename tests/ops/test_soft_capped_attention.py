"""autofuse.ops.soft_capped_attention by each of its providers, against its reference."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from autofuse import ops
from autofuse.ops import reference
from autofuse.ops.soft_capped_attention import _OP
from tests.ops.test_known_masks import FILLS, KINDS, additive_mask

B, H, T, S, D = 2, 3, 5, 7, 8
Agree = Callable[..., None]


def operands(dtype: torch.dtype, t: int = T, s: int = S) -> list[Tensor]:
    return [torch.randn(B, H, n, D, dtype=dtype) for n in (t, s, s)]


def boolean_mask(*shape: int) -> Tensor:
    return (torch.rand(shape) > 0.3) | (torch.arange(shape[-1]) == 0)


@pytest.mark.parametrize("provider", ["torch", "blocks"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("fill", [None, -1e9])
def test_results_and_gradients_agree(
    assert_agree: Agree, provider: str, dtype: torch.dtype, fill: float | None
) -> None:
    given = {"cap": 2.0, "scale": 0.2, "mask": boolean_mask(T, S), "fill": fill}
    run = _OP.provider(provider).run
    assert_agree(
        partial(run, **given), partial(reference.soft_capped_attention, **given), *operands(dtype), terms=8 * S
    )


def test_a_large_call_runs_in_blocks_with_gradients_of_scale_and_bias(
    assert_agree: Agree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[_OP.torch.run.__module__], "CAPPED", 2**16)
    before = _OP.counts.get("blocks", 0)
    given = {"scale": torch.rand(H, 1, 1), "mask": torch.randn(H, 128, 128)}
    run, right = (partial(f.soft_capped_attention, cap=5.0) for f in (ops, reference))
    assert_agree(run, right, *operands(torch.float32, 128, 128), **given, terms=B * H * 128)
    assert _OP.counts["blocks"] == before + 1


def test_a_row_without_keys_is_nan_and_with_a_fill_attends_evenly() -> None:
    query, key, value = operands(torch.float32)
    mask = torch.ones(T, S, dtype=torch.bool)
    mask[1] = False
    for provider in ("torch", "blocks"):
        run = _OP.provider(provider).run
        assert run(query, key, value, cap=2.0, mask=mask)[:, :, 1].isnan().all()
        even = run(query, key, value, cap=2.0, mask=mask, fill=-1e9)[:, :, 1]
        torch.testing.assert_close(even, value.mean(-2))


def test_it_compiles_into_one_graph_and_works_under_vmap() -> None:
    run = partial(ops.soft_capped_attention, cap=2.0)
    query, key, value = operands(torch.float32, 128, 128)
    expected = run(query, key, value)
    torch.testing.assert_close(torch.compile(run, fullgraph=True, backend="aot_eager")(query, key, value), expected)
    torch.testing.assert_close(torch.vmap(run)(query, key, value), expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fill", ["boolean", "boolean, -1e9", "boolean, -60", *FILLS])
@pytest.mark.parametrize("blocks", [False, True])
def test_a_mask_of_any_kind_gives_what_the_program_gives(
    kind: str, fill: str, blocks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[_OP.torch.run.__module__], "CAPPED", 0 if blocks else 2**17)
    boolean_mask, number = KINDS[kind](), {"boolean": None, "boolean, -1e9": -1e9, "boolean, -60": -60.0}.get(fill)
    mask = boolean_mask if fill.startswith("boolean") else additive_mask(boolean_mask, FILLS[fill])
    t = boolean_mask.shape[-1]
    if not boolean_mask.any(-1).all() and (fill in ("boolean", "-inf")):
        return  # nan, in either
    query = torch.randn(2, 6, t, D, requires_grad=True)
    key, value = (torch.randn(2, 3, t, D, requires_grad=True) for _ in range(2))
    scores = torch.tanh(query @ key.repeat_interleave(2, 1).mT * 0.1) * 3.0
    scores = (
        scores.masked_fill(~mask, -math.inf if number is None else number)
        if mask.dtype is torch.bool
        else (scores + mask)
    )
    expected = torch.softmax(scores, -1) @ value.repeat_interleave(2, 1)
    weight = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, (query, key, value), weight)
    result = ops.soft_capped_attention(query, key, value, cap=3.0, scale=0.1, mask=mask, fill=number, repeats=2)
    torch.testing.assert_close(result, expected, atol=1e-5, rtol=1e-4)
    for one, other in zip(torch.autograd.grad(result, (query, key, value), weight), wanted, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)
