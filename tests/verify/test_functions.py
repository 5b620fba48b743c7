"""autofuse.verify.functions: which candidates count as the same computation."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from autofuse.verify.calls import FunctionCall
from autofuse.verify.functions import FunctionReference, InexactResult, WrongResult

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
def test_the_same_formula_with_other_rounding_passes(dtype: torch.dtype, backward: bool) -> None:
    gap = FunctionReference(_norm, _call(dtype, backward)).compare(_spelled_out)
    assert gap.error <= gap.bound


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_another_epsilon_fails(dtype: torch.dtype) -> None:
    with pytest.raises(InexactResult, match="the result is off by"):
        FunctionReference(_norm, _call(dtype)).compare(lambda x, w: _spelled_out(x, w, 0.05))


def test_a_wrong_gradient_of_only_the_weight_fails() -> None:
    def wrong(x: Tensor, w: Tensor, eps: float = 1e-6) -> Tensor:
        return _norm(x, w.detach() + 1.01 * (w - w.detach()), eps)

    with pytest.raises(InexactResult, match="gradient 2"):
        FunctionReference(_norm, _call()).compare(wrong)


def test_a_missing_gradient_fails() -> None:
    with pytest.raises(WrongResult, match="does not compute gradient 2"):
        FunctionReference(_norm, _call()).compare(lambda x, w: _norm(x, w.detach()))


def test_half_precision_inside_single_precision_fails() -> None:
    with pytest.raises(InexactResult):
        FunctionReference(_norm, _call()).compare(lambda x, w: _norm(x.bfloat16(), w.bfloat16()).float())


@pytest.mark.parametrize(
    ("candidate", "what"),
    [
        (lambda x, w: _norm(x, w).double(), r"has dtype torch\.float64 instead of torch\.float32"),
        (lambda x, w: _norm(x, w)[:1], r"has shape \(1, 48\) instead of \(64, 48\)"),
        (lambda x, w: (_norm(x, w), x), "2 results instead of 1"),
        (lambda x, w: _norm(x.data.mul_(1.0001), w), "writes into its arguments"),
    ],
)
def test_a_difference_in_kind_fails(candidate: Callable[..., object], what: str) -> None:
    with pytest.raises(WrongResult, match=what):
        FunctionReference(_norm, _call(backward=False)).compare(candidate)


def test_an_overflow_of_only_the_candidate_fails() -> None:
    call = FunctionCall.of(
        (torch.full((4, 8), 300.0, dtype=torch.float16), torch.ones(8, dtype=torch.float16)), {}, False
    )
    with pytest.raises(InexactResult):
        FunctionReference(_norm, call).compare(
            lambda x, w: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * w
        )


def _dropped(x: Tensor, dropout_p: float = 0.0, training: bool = True) -> Tensor:
    return F.dropout(x, dropout_p, training)


def _other_dropout(rate: float, scale: float) -> Callable[..., Tensor]:
    def dropped(x: Tensor, dropout_p: float = 0.0, training: bool = True) -> Tensor:
        if not dropout_p or not training:
            return x.clone()
        draws = torch.rand(x.shape, generator=torch.Generator().manual_seed(5))
        return torch.where(draws >= rate, x * scale, 0.0)

    return dropped


def test_dropout_with_other_random_numbers_passes_and_with_another_rate_or_scale_fails() -> None:
    call = FunctionCall.of((torch.randn(4000, 5, requires_grad=True),), {"dropout_p": 0.2}, backward=True)
    reference = FunctionReference(_dropped, call)
    reference.compare(_other_dropout(0.2, 1 / 0.8))
    for wrong in (_other_dropout(0.3, 1 / 0.7), _other_dropout(0.2, 1.0), _other_dropout(0.0, 1.0)):
        with pytest.raises(WrongResult, match="dropout differs: the result changes"):
            reference.compare(wrong)


def test_a_nondeterministic_candidate_is_detected() -> None:
    reference, calls = FunctionReference(_norm, _call()), list[int]()

    def wandering(x: Tensor, w: Tensor) -> Tensor:
        calls.append(1)
        return _norm(x, w) * (1 + len(calls) * 2**-23)

    assert reference.is_deterministic(_norm)
    assert not reference.is_deterministic(wandering)


def test_integers_must_be_equal() -> None:
    reference = FunctionReference(lambda x: x.argmax(-1), FunctionCall.of((torch.eye(4),), {}, backward=False))
    assert reference.compare(lambda x: x.max(-1).indices).error == 0
    with pytest.raises(WrongResult):
        reference.compare(lambda x: x.argmin(-1))


def test_complex_results_are_compared() -> None:
    call = FunctionCall.of((torch.randn(64, dtype=torch.complex64, requires_grad=True),), {}, backward=True)
    reference = FunctionReference(lambda x: x * x, call)
    assert 0 < reference.compare(lambda x: x * x).bound < 1e-5
    with pytest.raises(InexactResult) as caught:
        reference.compare(lambda x: x * x.conj())
    assert caught.value.gap.error > caught.value.gap.bound and not caught.value.gap.within


def test_missing_and_zero_gradients_of_torchs_code_need_no_counterpart() -> None:
    call = FunctionCall.of((torch.randn(8, requires_grad=True), torch.randn(8, requires_grad=True)), {}, backward=True)
    FunctionReference(lambda x, y: x * 2, call).compare(lambda x, y: x * 2 + y * 0)
    FunctionReference(lambda x, y: x * 2 + y * 0, call).compare(lambda x, y: x * 2)


def test_the_dropout_check_skips_integers_and_missing_gradients() -> None:
    def dropped(x: Tensor, y: Tensor, dropout_p: float = 0.0) -> tuple[Tensor, Tensor]:
        return F.dropout(x, dropout_p), x.argmax(-1)

    x, y = torch.randn(4000, 5, requires_grad=True), torch.randn(3, requires_grad=True)
    reference = FunctionReference(dropped, FunctionCall.of((x, y), {"dropout_p": 0.2}, backward=True))
    reference.compare(dropped)
    reference.compare(lambda x, y, dropout_p=0.0: (F.dropout(x, dropout_p) + 0 * y.sum(), x.argmax(-1)))
    with pytest.raises(WrongResult, match="dropout differs"):
        reference.compare(lambda x, y, dropout_p=0.0: (F.dropout(x, 2 * dropout_p), x.argmax(-1)))


def test_rounding_of_the_arguments_explains_as_much_of_the_result() -> None:
    """1,000 + x - 1,000: torch's code happens to lose little, but one unit of 1,000 explains a large error."""
    x = torch.arange(1.0, 9.0)
    reference = FunctionReference(
        lambda x, y: (x + y) - 1000.0, FunctionCall.of((x, torch.full((8,), 1000.0)), {}, False)
    )
    reference.compare(lambda x, y: (x + y) - 1000.0 + 2.0**-15)
    with pytest.raises(InexactResult):
        reference.compare(lambda x, y: (x + y) - 1000.0 + 2.0**-5)
