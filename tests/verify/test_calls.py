"""A call that can be repeated: copies keep their layout, random states are equal, and writes into arguments are
detected.
"""

from __future__ import annotations

import torch
from torch import Tensor

from autofuse.verify.calls import FunctionCall, random_numbers
from autofuse.verify.differences import are_equal_tensors


def _product(x: Tensor, w: Tensor, *, scale: float = 1.0) -> Tensor:
    return x * w * scale


def test_a_copy_keeps_sizes_strides_and_requires_grad() -> None:
    wide = torch.randn(4, 6, 10)
    tensors = (
        wide[:, :, :5],
        wide.transpose(1, 2),
        torch.randn(1, 6, 1).expand(4, 6, 5),
        torch.randn(5, requires_grad=True),
    )
    call = FunctionCall.of(tensors, {"mask": torch.ones(3, dtype=torch.bool), "p": 0.1}, backward=True)
    for copy, original in zip(call.args, tensors, strict=True):
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


def test_no_gradient_is_computed_if_no_tensor_requires_one() -> None:
    assert not FunctionCall.of((torch.ones(2),), {}, backward=True).backward
    assert (
        not FunctionCall.of((torch.ones(2, requires_grad=True),), {}, backward=False).result_of(torch.sin).requires_grad
    )


def test_a_double_copy_converts_tensors_and_dtypes_only() -> None:
    tensors = (
        torch.ones(2, dtype=torch.bfloat16),
        torch.ones(2, dtype=torch.int64),
        torch.ones(2, dtype=torch.complex64),
    )
    call = FunctionCall.of(tensors, {"dtype": torch.float32, "eps": 1e-5}, backward=False).in_double()
    assert [t.dtype for t in call.tensors] == [torch.float64, torch.int64, torch.complex128]
    assert call.kwargs == {"dtype": torch.float64, "eps": 1e-5}


def test_an_outcome_has_outputs_and_every_gradient() -> None:
    x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, requires_grad=True)
    outcome = FunctionCall.of((x, w), {"scale": 2.0}, backward=True).outcome(_product)
    assert torch.equal(outcome.outputs[0], (x * w * 2).detach())
    assert [None if g is None else g.shape for g in outcome.gradients] == [(3, 4), (4,)]
    assert outcome.arguments_unchanged
    assert [outcome.name(i) for i in range(3)] == ["the result", "gradient 1", "gradient 2"]
    assert x.grad is None and w.grad is None


def test_every_outcome_starts_from_the_same_random_state() -> None:
    call = FunctionCall.of((torch.ones(1000),), {}, backward=False)
    first, second = (call.outcome(lambda x: x * torch.rand_like(x)) for _ in range(2))
    assert are_equal_tensors(first.outputs[0], second.outputs[0])


def test_writing_into_an_argument_is_detected() -> None:
    call = FunctionCall.of((torch.ones(4),), {}, backward=False)
    assert not call.outcome(lambda x: x.add_(1)).arguments_unchanged
    assert torch.equal(call.tensors[0], torch.ones(4))


def test_dropout_is_found_by_name_and_switched_off() -> None:
    def dropped(x: Tensor, dropout_p: float = 0.0, training: bool = True) -> Tensor:
        return torch.nn.functional.dropout(x, dropout_p, training)

    call = FunctionCall.of((torch.ones(4), 0.5), {}, backward=False)
    assert call.dropout_rate(dropped) == 0.5
    assert call.without_dropout(dropped).dropout_rate(dropped) == 0.0
    assert FunctionCall.of((torch.ones(4), 0.5, False), {}, backward=False).dropout_rate(dropped) == 0.0
    assert FunctionCall.of((torch.ones(4), torch.ones(4)), {}, backward=False).dropout_rate(_product) == 0.0


def test_many_random_numbers_have_no_equal_rows() -> None:
    few, many = (random_numbers((n, 512), torch.device("cpu"), seed=1) for n in (8, 8192))
    assert torch.equal(few, random_numbers((8, 512), torch.device("cpu"), seed=1))
    assert many.unique(dim=0).shape == many.shape
    assert abs(many.mean().item()) < 0.01 and abs(many.std().item() - 1) < 0.01
    assert random_numbers((), torch.device("cpu"), seed=1).shape == ()


def test_rounding_noise_is_at_most_one_unit() -> None:
    x = torch.randn(100, dtype=torch.bfloat16)
    (noisy,) = FunctionCall.of((x,), {}, backward=False).with_rounding_noise().tensors
    assert noisy.dtype is torch.float64
    share = ((noisy - x.double()) / x.double()).abs()
    assert 0 < share.max().item() <= 2**-8
