"""What passes as the same computation, and what does not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from autofuse.verify.calls import FunctionCall
from autofuse.verify.functions import FunctionReference, Inexact, Wrong

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def _norm(x: Tensor, w: Tensor, eps: float = 1e-6) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], w, eps)


def _spelled_out(x: Tensor, w: Tensor, eps: float = 1e-6) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * w.float()).to(x.dtype)


def _call(dtype: torch.dtype = torch.float32, backward: bool = True) -> FunctionCall:
    draws = torch.Generator().manual_seed(0)
    x, w = torch.randn(64, 48, generator=draws), torch.rand(48, generator=draws) + 0.5
    return FunctionCall.of((x.to(dtype).requires_grad_(backward), w.to(dtype).requires_grad_(backward)), {}, backward)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("backward", [True, False])
def test_the_same_formula_rounded_elsewhere_passes(dtype: torch.dtype, backward: bool) -> None:
    gap = FunctionReference(_norm, _call(dtype, backward)).compare(_spelled_out)
    assert gap.error <= gap.bound


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_another_epsilon_does_not(dtype: torch.dtype) -> None:
    with pytest.raises(Inexact, match="the result is off by"):
        FunctionReference(_norm, _call(dtype)).compare(lambda x, w: _spelled_out(x, w, 0.05))


def test_a_wrong_gradient_of_the_weight_alone_does_not() -> None:
    def wrong(x: Tensor, w: Tensor, eps: float = 1e-6) -> Tensor:
        return _norm(x, w.detach() + 1.01 * (w - w.detach()), eps)

    with pytest.raises(Inexact, match="gradient 2"):
        FunctionReference(_norm, _call()).compare(wrong)


def test_a_gradient_that_is_missing_does_not() -> None:
    with pytest.raises(Wrong, match="does not compute gradient 2"):
        FunctionReference(_norm, _call()).compare(lambda x, w: _norm(x, w.detach()))


def test_half_precision_inside_of_single_does_not() -> None:
    with pytest.raises(Inexact):
        FunctionReference(_norm, _call()).compare(lambda x, w: _norm(x.bfloat16(), w.bfloat16()).float())


@pytest.mark.parametrize(
    ("candidate", "what"),
    [
        (lambda x, w: _norm(x, w).double(), r"has dtype torch\.float64 instead of torch\.float32"),
        (lambda x, w: _norm(x, w)[:1], r"has shape \(1, 48\) instead of \(64, 48\)"),
        (lambda x, w: (_norm(x, w), x), "2 results instead of 1"),
        (lambda x, w: _norm(x.data.mul_(1.0001), w), "writes into what it is given"),
    ],
)
def test_another_form_does_not(candidate: Callable[..., object], what: str) -> None:
    with pytest.raises(Wrong, match=what):
        FunctionReference(_norm, _call(backward=False)).compare(candidate)


def test_what_overflows_only_in_the_candidate_does_not() -> None:
    call = FunctionCall.of(
        (torch.full((4, 8), 300.0, dtype=torch.float16), torch.ones(8, dtype=torch.float16)), {}, False
    )
    with pytest.raises(Inexact):
        FunctionReference(_norm, call).compare(
            lambda x, w: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * w
        )


def _dropped(x: Tensor, dropout_p: float = 0.0, training: bool = True) -> Tensor:
    return F.dropout(x, dropout_p, training)


def _drop_otherwise(rate: float, scale: float) -> Callable[..., Tensor]:
    def dropped(x: Tensor, dropout_p: float = 0.0, training: bool = True) -> Tensor:
        if not dropout_p or not training:
            return x.clone()
        draws = torch.rand(x.shape, generator=torch.Generator().manual_seed(5))
        return torch.where(draws >= rate, x * scale, 0.0)

    return dropped


def test_dropout_with_other_draws_of_the_same_rate_passes_and_with_another_rate_or_scale_does_not() -> None:
    call = FunctionCall.of((torch.randn(4000, 5, requires_grad=True),), {"dropout_p": 0.2}, backward=True)
    reference = FunctionReference(_dropped, call)
    reference.compare(_drop_otherwise(0.2, 1 / 0.8))
    for wrong in (_drop_otherwise(0.3, 1 / 0.7), _drop_otherwise(0.2, 1.0), _drop_otherwise(0.0, 1.0)):
        with pytest.raises(Wrong, match="dropout is another: the result changes"):
            reference.compare(wrong)


def test_bits_that_change_from_call_to_call_are_seen() -> None:
    reference, calls = FunctionReference(_norm, _call()), list[int]()

    def wandering(x: Tensor, w: Tensor) -> Tensor:
        calls.append(1)
        return _norm(x, w) * (1 + len(calls) * 2**-23)

    assert reference.repeats(_norm)
    assert not reference.repeats(wandering)


def test_integers_have_to_be_equal() -> None:
    reference = FunctionReference(lambda x: x.argmax(-1), FunctionCall.of((torch.eye(4),), {}, backward=False))
    assert reference.compare(lambda x: x.max(-1).indices).error == 0
    with pytest.raises(Wrong):
        reference.compare(lambda x: x.argmin(-1))


def test_complex_results_are_compared_by_their_numbers() -> None:
    call = FunctionCall.of((torch.randn(64, dtype=torch.complex64, requires_grad=True),), {}, backward=True)
    reference = FunctionReference(lambda x: x * x, call)
    assert 0 < reference.compare(lambda x: x * x).bound < 1e-5
    with pytest.raises(Inexact) as caught:
        reference.compare(lambda x: x * x.conj())
    assert caught.value.gap.error > caught.value.gap.bound and not caught.value.gap.within


def test_what_torchs_code_does_not_compute_is_not_compared_and_zeros_need_not_be() -> None:
    call = FunctionCall.of((torch.randn(8, requires_grad=True), torch.randn(8, requires_grad=True)), {}, backward=True)
    FunctionReference(lambda x, y: x * 2, call).compare(lambda x, y: x * 2 + y * 0)
    FunctionReference(lambda x, y: x * 2 + y * 0, call).compare(lambda x, y: x * 2)


def test_beside_dropout_whole_numbers_and_gradients_that_are_not_there_are_passed_over() -> None:
    def dropped(x: Tensor, y: Tensor, dropout_p: float = 0.0) -> tuple[Tensor, Tensor]:
        return F.dropout(x, dropout_p), x.argmax(-1)

    x, y = torch.randn(4000, 5, requires_grad=True), torch.randn(3, requires_grad=True)
    reference = FunctionReference(dropped, FunctionCall.of((x, y), {"dropout_p": 0.2}, backward=True))
    reference.compare(dropped)
    reference.compare(lambda x, y, dropout_p=0.0: (F.dropout(x, dropout_p) + 0 * y.sum(), x.argmax(-1)))
    with pytest.raises(Wrong, match="dropout is another"):
        reference.compare(lambda x, y, dropout_p=0.0: (F.dropout(x, 2 * dropout_p), x.argmax(-1)))


def test_rounding_of_the_arguments_explains_as_much_of_the_result() -> None:
    """1,000 + x - 1,000: what torch's code loses is little by luck, and much is explained by a unit of 1,000."""
    x = torch.arange(1.0, 9.0)
    reference = FunctionReference(
        lambda x, y: (x + y) - 1000.0, FunctionCall.of((x, torch.full((8,), 1000.0)), {}, False)
    )
    reference.compare(lambda x, y: (x + y) - 1000.0 + 2.0**-15)
    with pytest.raises(Inexact):
        reference.compare(lambda x, y: (x + y) - 1000.0 + 2.0**-5)
