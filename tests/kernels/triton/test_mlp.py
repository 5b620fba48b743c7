"""Linear-activation-Linear around Triton's interpreter against the formula in double."""

from __future__ import annotations

from itertools import compress
from types import ModuleType

import pytest
import torch

from autofuse.ops import reference


@pytest.fixture(scope="module")
def kernel() -> ModuleType:
    return pytest.importorskip("autofuse.kernels.triton.mlp")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("with_bias", [True, False])
def test_results_and_requested_gradients_agree(kernel: ModuleType, with_bias: bool, dtype: torch.dtype) -> None:
    shapes = (20, 6), (9, 6), (9,), (5, 9), (5,)
    x, up, up_bias, down, down_bias = ((torch.randn(s) / s[-1] ** 0.5).to(dtype) for s in shapes)
    given = x, up, up_bias if with_bias else None, down, down_bias if with_bias else None
    grad = torch.randn(20, 5).to(dtype)
    result, projected = kernel.forward(*given, "gelu")
    assert torch.equal(kernel.forward_alone(*given, "gelu"), result)
    doubles = [None if t is None else t.double().requires_grad_() for t in given]
    truth = reference.mlp(*doubles)  # type: ignore[arg-type]
    for wanted in ((True, True, with_bias, True, with_bias), (True, False, False, False, False)):
        found = kernel.backward(grad, x, projected, *given[1:4], "gelu", wanted)
        leaves = [t for t in compress(doubles, wanted) if t is not None]
        expected = torch.autograd.grad(truth, leaves, grad.double(), retain_graph=True)
        for ours, theirs in zip((result, *found), (truth, *expected), strict=True):
            bound = 8 * 29**0.5 * torch.finfo(dtype).eps * theirs.abs().max().clamp(min=1.0)
            assert ours.shape == theirs.shape and (ours.double() - theirs).abs().max() <= bound
