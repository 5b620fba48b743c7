"""Calls for whose operands the trace has decided the checks."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autofuse
from autofuse import ops
from autofuse.ops import lowered as plain
from tests.fx.conftest import assert_same, optimized
from tests.spellings.harness import functions_called_by


class Heads(nn.Module):
    def __init__(self, p: float = 0.0) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(16, 16) for _ in range(3))
        self.drop = nn.Dropout(p)

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        B, T, C = x.size(0), x.size(1), x.size(2)
        q, k, v = (layer(x).view(B, T, 2, C // 2).transpose(1, 2) for layer in (self.q, self.k, self.v))
        scores = q @ k.transpose(-2, -1) / math.sqrt(C // 2)
        if keep is not None:
            scores = scores.masked_fill(~keep, float("-inf"))
        return (self.drop(F.softmax(scores, -1)) @ v).transpose(1, 2).reshape(B, T, C)


def runs(module: nn.Module, *inputs: Tensor) -> set[str]:
    """The files of autofuse that compute attention in a call."""
    return {
        file.rsplit("/", 1)[-1] for name, file in functions_called_by(lambda: module(*inputs)) if name == "attention"
    }


def test_operands_of_four_dimensions_go_to_the_kernel() -> None:
    x = torch.randn(2, 8, 16)
    model = Heads()
    fused = optimized(model, x)
    assert runs(fused, x) == {"lowered.py"}
    assert_same(model, fused, x)


def test_a_boolean_mask_is_supported() -> None:
    x, keep = torch.randn(2, 8, 16), torch.ones(8, 8, dtype=torch.bool).tril(2)
    model = Heads()
    fused = optimized(model, x, keep)
    assert runs(fused, x, keep) == {"lowered.py"}
    assert_same(model, fused, x, keep)


def test_dropout_is_read_at_each_call() -> None:
    x, model = torch.randn(2, 8, 16), optimized(Heads(0.5), torch.randn(2, 8, 16))
    assert not torch.equal(model(x), model(x))
    model.drop.p = 0.0
    assert torch.equal(model(x), model(x))


def test_three_dimensions_and_autocast_are_decided_at_run_time() -> None:
    class Flat(nn.Module):
        def forward(self, q: Tensor) -> Tensor:
            return F.softmax(q @ q.mT, -1) @ q

    q = torch.randn(2, 8, 4)
    assert runs(optimized(Flat(), q), q) == {"attention.py"}
    x = torch.randn(2, 8, 16)
    with torch.autocast("cpu", torch.bfloat16):
        fused = optimized(Heads(), x)
        assert "lowered.py" not in runs(fused, x)


def test_a_projection_in_another_dtype_is_computed_as_before() -> None:
    class Upcast(Heads):
        def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
            q, k, v = (layer(x).view(2, 8, 2, 8).transpose(1, 2) for layer in (self.q, self.k, self.v))
            return F.softmax(q @ k.transpose(-2, -1), -1).to(v.dtype) @ v

    class Lower(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.bfloat16()

    x, model = torch.randn(2, 8, 16), Upcast()
    fused = optimized(model, x)
    for m in (model, fused):
        m.v = Lower()
    found, expected = fused(x), model(x)
    assert found.dtype is expected.dtype is torch.bfloat16
    torch.testing.assert_close(found, expected, atol=0.05, rtol=0.05)  # a few roundings to bfloat16 of values up to 4


@pytest.mark.parametrize("dropout", [{}, {"dropout_p": 0.5, "training": False}])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("whole", [False, True])
def test_the_plain_operation_is_the_general_one(whole: bool, is_causal: bool, dropout: dict[str, float]) -> None:
    q, k, v = (torch.randn(2, 2, 8, 4, requires_grad=True) for _ in range(3))
    found = plain.attention(q, k, v, None, 0.5, is_causal, True, whole, whole, **dropout)  # type: ignore[arg-type]
    expected = ops.attention(q, k, v, scale=0.5, is_causal=is_causal)
    torch.testing.assert_close(found, expected)
    for one, other in zip(
        torch.autograd.grad(found.sum(), (q, k, v), create_graph=True),
        torch.autograd.grad(expected.sum(), (q, k, v), create_graph=True),
        strict=True,
    ):
        torch.testing.assert_close(one, other)
        assert one.requires_grad  # gradients have gradients


def test_sizes_are_asked_at_once_unless_they_change() -> None:
    class Resized(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = x.clone()
            first = y.size(0) + y.size(1)
            y.unsqueeze_(0)
            return F.softmax(x @ x.mT, -1) @ x * first + y.size(0) + y.size(1)

    x = torch.randn(2, 3, 4)
    model = Resized()
    fused = autofuse.optimize(copy.deepcopy(model), x, verify=False)
    for size in ((2, 3, 4), (1, 5, 4)):
        y = torch.randn(*size)
        torch.testing.assert_close(fused(y), model(y))


@pytest.mark.parametrize("weight", [None, 2.0, *(torch.rand(s) for s in ((8,), (1, 8), (1,), (1, 1, 8), (3, 8), ()))],
                         ids=lambda w: str(getattr(w, "shape", w)))  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("norm", [ops.layer_norm, *plain.LAYER_NORMS_APART.values()])
def test_a_quiet_norm_is_the_norm(
    norm: Callable[..., Tensor], dtype: torch.dtype, weight: Tensor | float | None
) -> None:
    quiet = plain.settled_layer_norm(norm).quiet  # type: ignore[attr-defined]
    x, scale = torch.randn(2, 3, 8), weight.to(dtype) if isinstance(weight, Tensor) else weight
    for bias in (None, scale, torch.ones(8), torch.ones(8, dtype=dtype)):
        with torch.no_grad():
            assert torch.equal(quiet(x, scale, bias, 1e-5), ops.layer_norm(x, scale, bias, 1e-5))
    leaf = torch.rand(8, requires_grad=True)
    assert quiet(x, leaf, torch.ones(8), 1e-5).requires_grad
