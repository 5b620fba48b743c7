"""A call that is made again and again: copies keep their form, equal random states, and nothing is written unseen."""

from __future__ import annotations

import torch
from torch import Tensor

from autofuse.verify.calls import FunctionCall, drawn
from autofuse.verify.differences import same_bits


def _product(x: Tensor, w: Tensor, *, scale: float = 1.0) -> Tensor:
    return x * w * scale


def test_a_copy_keeps_sizes_strides_and_wishes_for_gradients() -> None:
    wide = torch.randn(4, 6, 10)
    given = (
        wide[:, :, :5],
        wide.transpose(1, 2),
        torch.randn(1, 6, 1).expand(4, 6, 5),
        torch.randn(5, requires_grad=True),
    )
    call = FunctionCall.of(given, {"mask": torch.ones(3, dtype=torch.bool), "p": 0.1}, backward=True)
    for copy, original in zip(call.args, given, strict=True):
        assert copy.stride() == original.stride()
        assert torch.equal(copy, original)
        assert copy.requires_grad == original.requires_grad
        assert copy.data_ptr() != original.data_ptr()
    assert call.kwargs["p"] == 0.1
    assert [t.shape for t in call.leaves] == [(5,)]


def test_an_intermediate_result_becomes_a_leaf() -> None:
    w = torch.randn(3, requires_grad=True)
    call = FunctionCall.of((w * 2,), {}, backward=True)
    assert call.leaves[0].is_leaf
    call.outcome(torch.sin)
    assert w.grad is None


def test_no_gradient_is_asked_for_where_nothing_requires_one() -> None:
    assert not FunctionCall.of((torch.ones(2),), {}, backward=True).backward
    assert not FunctionCall.of((torch.ones(2, requires_grad=True),), {}, backward=False).made(torch.sin).requires_grad


def test_doubling_turns_numbers_and_dtypes_and_leaves_the_rest() -> None:
    given = (
        torch.ones(2, dtype=torch.bfloat16),
        torch.ones(2, dtype=torch.int64),
        torch.ones(2, dtype=torch.complex64),
    )
    call = FunctionCall.of(given, {"dtype": torch.float32, "eps": 1e-5}, backward=False).doubled()
    assert [t.dtype for t in call.tensors] == [torch.float64, torch.int64, torch.complex128]
    assert call.kwargs == {"dtype": torch.float64, "eps": 1e-5}


def test_an_outcome_has_outputs_and_every_gradient() -> None:
    x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, requires_grad=True)
    found = FunctionCall.of((x, w), {"scale": 2.0}, backward=True).outcome(_product)
    assert torch.equal(found.outputs[0], (x * w * 2).detach())
    assert [None if g is None else g.shape for g in found.gradients] == [(3, 4), (4,)]
    assert found.untouched
    assert [found.name(i) for i in range(3)] == ["the result", "gradient 1", "gradient 2"]
    assert x.grad is None and w.grad is None


def test_every_outcome_starts_from_the_same_random_state() -> None:
    call = FunctionCall.of((torch.ones(1000),), {}, backward=False)
    first, second = (call.outcome(lambda x: x * torch.rand_like(x)) for _ in range(2))
    assert same_bits(first.outputs[0], second.outputs[0])


def test_writing_into_an_argument_is_seen() -> None:
    call = FunctionCall.of((torch.ones(4),), {}, backward=False)
    assert not call.outcome(lambda x: x.add_(1)).untouched
    assert torch.equal(call.tensors[0], torch.ones(4))


def test_dropout_is_found_by_name_and_switched_off() -> None:
    def dropped(x: Tensor, dropout_p: float = 0.0, training: bool = True) -> Tensor:
        return torch.nn.functional.dropout(x, dropout_p, training)

    call = FunctionCall.of((torch.ones(4), 0.5), {}, backward=False)
    assert call.dropout_rate(dropped) == 0.5
    assert call.undropped(dropped).dropout_rate(dropped) == 0.0
    assert FunctionCall.of((torch.ones(4), 0.5, False), {}, backward=False).dropout_rate(dropped) == 0.0
    assert FunctionCall.of((torch.ones(4), torch.ones(4)), {}, backward=False).dropout_rate(_product) == 0.0


def test_many_numbers_are_drawn_quickly_and_no_two_rows_are_alike() -> None:
    few, many = (drawn((n, 512), torch.device("cpu"), seed=1) for n in (8, 8192))
    assert torch.equal(few, drawn((8, 512), torch.device("cpu"), seed=1))
    assert many.unique(dim=0).shape == many.shape
    assert abs(many.mean().item()) < 0.01 and abs(many.std().item() - 1) < 0.01
    assert drawn((), torch.device("cpu"), seed=1).shape == ()


def test_rough_arguments_are_off_by_no_more_than_rounding() -> None:
    x = torch.randn(100, dtype=torch.bfloat16)
    (rough,) = FunctionCall.of((x,), {}, backward=False).roughened().tensors
    assert rough.dtype is torch.float64
    share = ((rough - x.double()) / x.double()).abs()
    assert 0 < share.max().item() <= 2**-8
