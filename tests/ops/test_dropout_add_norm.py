"""autofuse.ops.dropout_add_norm against its reference: small calls with torch's code, large calls with our kernels."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from autofuse import ops
from autofuse.ops import reference

B, T, C = 2, 5, 16
LARGE = (2, 128, 1024)  # elements enough for a compiled loop
Agree = Callable[..., None]


@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("prenorm", [False, True])
@pytest.mark.parametrize("shape", [(B, T, C), (C,)])
def test_dropout_add_norm_agrees(assert_agree: Agree, norm: str, prenorm: bool, shape: tuple[int, ...]) -> None:
    run = lambda f: lambda *a: f(*a, norm=norm, prenorm=prenorm, dropout_p=0.5)
    given = torch.randn(B, T, C), torch.randn(shape), torch.rand(C), torch.randn(C)
    assert_agree(run(ops.dropout_add_norm), run(reference.dropout_add_norm), *given, terms=C + B * T)


def test_dropout_add_norm_drops_only_x_and_only_in_training() -> None:
    x, residual = torch.ones(64, C), torch.randn(64, C)
    total, normed = ops.dropout_add_norm(x, residual, dropout_p=0.5, training=True, prenorm=True)
    dropped = (total - residual).round()
    assert set(dropped.unique().tolist()) == {0.0, 2.0}
    assert torch.allclose(normed, ops.layer_norm(total))
    still, _ = ops.dropout_add_norm(x, residual, dropout_p=0.5, prenorm=True)
    assert torch.equal(still, x + residual)


def test_an_unknown_norm_is_refused() -> None:
    with pytest.raises(ValueError, match='"layer" or "rms"'):
        ops.dropout_add_norm(torch.ones(C), torch.ones(C), norm="batch")


@pytest.mark.parametrize("norm, dtype", [("rms", torch.float32), ("layer", torch.bfloat16), ("rms", torch.float16)])
def test_large_calls_agree(assert_agree: Agree, norm: str, dtype: torch.dtype) -> None:
    run = lambda f: lambda *a: f(*a, norm=norm, prenorm=True)
    given = (torch.randn(s, dtype=dtype) for s in (LARGE, LARGE, LARGE[-1:], LARGE[-1:]))
    assert_agree(run(ops.dropout_add_norm), run(reference.dropout_add_norm), *given, terms=LARGE[-1] * 256)


@pytest.mark.parametrize(
    "norm, residual, shape",
    [
        ("layer", torch.bfloat16, (B, T, C)),
        ("rms", torch.float32, (B, T, C)),
        ("layer", torch.bfloat16, LARGE),
        ("rms", torch.float32, LARGE),
    ],
)
def test_the_sum_is_in_fp32_on_request(norm: str, residual: torch.dtype, shape: tuple[int, ...]) -> None:
    x, r = torch.randn(shape).bfloat16(), torch.randn(shape).to(residual)
    weight = torch.rand(shape[-1]).bfloat16()
    total, normed = ops.dropout_add_norm(x, r, weight, eps=1e-5, norm=norm, prenorm=True, residual_in_fp32=True)
    assert total.dtype is torch.float32 and normed.dtype is torch.bfloat16
    assert torch.equal(total, x.float() + r.float())
    by_hand = ops.layer_norm if norm == "layer" else ops.rms_norm
    expected = by_hand(total.double(), weight.double(), eps=1e-5)
    assert (normed - expected).abs().max() <= torch.finfo(torch.bfloat16).eps * expected.abs().max()
    alone = ops.dropout_add_norm(x, r, weight, eps=1e-5, norm=norm, residual_in_fp32=True)
    assert alone.dtype is torch.bfloat16 and torch.equal(alone, normed)


def test_float64_stays_if_fp32_is_requested() -> None:
    x = torch.randn(3, C, dtype=torch.float64)
    total, normed = ops.dropout_add_norm(x, x.float(), prenorm=True, residual_in_fp32=True)
    assert total.dtype is normed.dtype is torch.float64


@pytest.mark.night
@pytest.mark.parametrize("shape", [(64, 1024), (2, 64, 1)])
def test_large_summands_of_other_shapes_are_broadcast(assert_agree: Agree, shape: tuple[int, ...]) -> None:
    large = (2, 64, 1024)
    run = lambda f: lambda *a: f(*a, norm="rms", prenorm=True)
    given = torch.randn(large), torch.randn(shape), torch.rand(1024)
    assert_agree(run(ops.dropout_add_norm), run(reference.dropout_add_norm), *given, terms=1024 * 128)
    x, residual = torch.ones(large).requires_grad_(), torch.zeros(shape, requires_grad=True)
    total, _ = ops.dropout_add_norm(x, residual, dropout_p=0.5, training=True, prenorm=True)
    assert set(total.unique().tolist()) == {0.0, 2.0}
    dx, dresidual = torch.autograd.grad(total.sum(), (x, residual))
    assert torch.equal(dx, total.detach()) and dresidual.shape == shape
    assert torch.equal(dresidual, torch.full(shape, float(x.numel() // dresidual.numel())))


def test_forward_and_backward_of_large_dropout_keep_the_same_entries() -> None:
    x = torch.ones(LARGE, dtype=torch.bfloat16, requires_grad=True)
    residual = torch.zeros(LARGE, dtype=torch.bfloat16, requires_grad=True)
    total, normed = ops.dropout_add_norm(x, residual, dropout_p=0.25, training=True, prenorm=True)
    share = (total == 0).float().mean().item()
    assert abs(share - 0.25) < 4 * (0.25 * 0.75 / x.numel()) ** 0.5
    dx, dresidual = torch.autograd.grad(total.sum() + 0 * normed.sum(), (x, residual))
    assert torch.equal(dx == 0, total == 0) and torch.equal(dresidual, torch.ones_like(residual))


def test_dropout_follows_the_generator_of_torch() -> None:
    x = torch.randn(LARGE)

    def draw(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return ops.dropout_add_norm(x, x, dropout_p=0.5, training=True)

    assert torch.equal(draw(1), draw(1)) and not torch.equal(draw(1), draw(2))


@pytest.mark.parametrize("p", [1.0, 1.5, -0.5])
def test_other_probabilities_work_as_in_torch(p: float) -> None:
    x = torch.randn(LARGE)
    run = lambda: ops.dropout_add_norm(x, x, dropout_p=p, training=True, prenorm=True)
    if p == 1.0:
        assert torch.equal(run()[0], x)
    else:
        with pytest.raises(ValueError, match="between 0 and 1"):
            run()


@pytest.mark.night
def test_only_some_operands_may_require_gradients() -> None:
    shapes = (LARGE, LARGE, LARGE[-1:], LARGE[-1:])
    given = [torch.randn(s, requires_grad=True) for s in shapes]
    run = lambda a: ops.dropout_add_norm(*a, eps=1e-5, norm="rms", dropout_p=0.1, training=True)
    torch.manual_seed(3)
    cotangent = torch.randn(LARGE)
    torch.manual_seed(4)
    truth = torch.autograd.grad(run(given), given, cotangent)
    for wanted in (1, 2):  # the residual, or the weight alone
        some = [t if i == wanted else t.detach() for i, t in enumerate(given)]
        torch.manual_seed(4)
        (found,) = torch.autograd.grad(run(some), some[wanted], cotangent)
        torch.testing.assert_close(found, truth[wanted], rtol=1e-5, atol=1e-5)


def test_compiles_with_dropout_and_fp32_sum_into_one_graph() -> None:
    torch.compiler.reset()
    x = torch.randn(LARGE).bfloat16()
    run = lambda x: ops.dropout_add_norm(
        x, x, dropout_p=0.5, training=True, norm="rms", prenorm=True, residual_in_fp32=True
    )
    total, normed = torch.compile(run, fullgraph=True, backend="eager")(x)
    assert total.dtype is torch.float32 and normed.dtype is torch.bfloat16
