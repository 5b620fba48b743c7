"""Calls that differ from the example, and the errors that only they show."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autofuse.verify.modules import ModuleReference
from autofuse.verify.other_calls import MASKS, other_calls
from autofuse.verify.runs import ModuleCall


class Filled(nn.Module):
    def __init__(self, fill: float = -1e9) -> None:
        super().__init__()
        self.fill = fill

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        return (-x @ x.mT).masked_fill(keep == 0, self.fill).softmax(-1) @ x


class Kernel(nn.Module):
    """Like `Filled`, except that a row without kept entries gives 0."""

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(-x, x, x, keep != 0, scale=1.0)


class Even(nn.Module):
    """Like `Filled`, except for scores close to the fill."""

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        keep = keep != 0
        return (-x @ x.mT * keep.any(-1, keepdim=True)).masked_fill(~keep, -1e30).softmax(-1) @ x


class Picked(nn.Module):
    def __init__(self, most: int = 1000) -> None:
        super().__init__()
        self.most = most

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x[torch.arange(len(y)), y.clamp(max=self.most)]


X = torch.randn(2, 6, 8)
CAUSAL = torch.ones(2, 6, 6, dtype=torch.bool).tril()


def reason(original: nn.Module, rewritten: nn.Module, *args: Tensor) -> str:
    reference = ModuleReference(original, args)
    assert reference.check(rewritten).ok
    return reference.check(rewritten, other_inputs=True).reason


@pytest.mark.parametrize("keep", [CAUSAL, CAUSAL.float(), CAUSAL.long()], ids=["boolean", "float", "integer"])
def test_masks_drop_rows_that_the_example_keeps(keep: Tensor) -> None:
    assert "masks that keep nothing" in reason(Filled(), Kernel(), X, keep)
    assert reason(Filled(-math.inf), Kernel(), X, keep) == "", "there the original gives nan"
    assert reason(Filled(), Filled(), X, keep) == ""


class Queries(nn.Module):
    def forward(self, q: Tensor, x: Tensor, keep: Tensor) -> Tensor:
        return (q @ x.mT).masked_fill(~keep, -math.inf).softmax(-1) @ x


class WrongGradients(Queries):
    """Like `Queries`, except for gradients where a row keeps nothing."""

    def forward(self, q: Tensor, x: Tensor, keep: Tensor) -> Tensor:
        return super().forward(q * keep.any(-1).all() + q.detach() * ~keep.any(-1).all(), x, keep)


def test_gradients_of_rows_next_to_a_nan_row_are_compared() -> None:
    keep = CAUSAL.clone()
    assert reason(Queries(), Queries(), X.flip(0), X, keep) == ""
    assert "masks that drop every other row" in reason(Queries(), WrongGradients(), X.flip(0), X, keep)


def test_scores_close_to_the_fill_are_tried() -> None:
    assert "larger activations" in reason(Filled(-1e3), Even(), X, CAUSAL)
    assert reason(Filled(-1e9), Even(), X, CAUSAL) == ""


def test_the_smallest_and_the_largest_integers_are_tried() -> None:
    x, y = torch.randn(3, 9), torch.tensor([0, 4, 8])
    assert reason(Picked(), Picked(), x, y) == ""
    calls = {what: call.args[1].tolist() for what, call in other_calls(ModuleCall((x, y), {}))}
    assert calls["integers that are all the lowest of the example"] == [0, 0, 0]
    assert calls["integers that are all the highest of the example"] == [8, 8, 8]


def test_an_added_mask_keeps_its_fill() -> None:
    mask = torch.zeros(1, 1, 4, 4).masked_fill(torch.ones(4, 4).triu(1) == 1, -1e4)
    calls = dict(other_calls(ModuleCall((), {"mask": [mask]})))
    dropped = calls["masks that drop every other row"].kwargs["mask"][0]
    assert dropped[0, 0, :, 0].tolist() == [0.0, -1e4, 0.0, -1e4] and MASKS.keys() <= calls.keys()


def test_repeated_arguments_stay_one_object_and_other_values_stay_unchanged() -> None:
    x, given = torch.randn(2, 3), object()
    ((_, call),) = other_calls(ModuleCall((x, (x, given)), {"n": 3}))
    assert call.args[0] is call.args[1][0] and call.args[1][1] is given and call.kwargs == {"n": 3}
    assert torch.equal(call.args[0], x * 30)


def test_an_error_in_only_one_module_is_a_difference() -> None:
    class Refusing(Filled):
        def forward(self, x: Tensor, keep: Tensor) -> Tensor:
            if not bool((keep != 0).any()):
                raise ValueError("A mask that keeps nothing was given.")
            return super().forward(x, keep)

    assert "raises an error" in reason(Filled(), Refusing(), X, CAUSAL)
    assert "raises no error" in reason(Refusing(), Filled(), X, CAUSAL)
    assert reason(Refusing(), Refusing(), X, CAUSAL) == ""
