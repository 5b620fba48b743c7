"""The regions of Linear-activation-Linear against the formula in double."""

from __future__ import annotations

from itertools import compress

import pytest
import torch
from torch import Tensor

from autofuse.kernels.compiled import mlp as kernel
from autofuse.ops import reference

ROWS, IN, HIDDEN, OUT = 20, 6, 9, 5


def operands(dtype: torch.dtype) -> list[Tensor]:
    torch.manual_seed(0)
    shapes = (ROWS, IN), (HIDDEN, IN), (HIDDEN,), (OUT, HIDDEN), (OUT,)
    return [(torch.randn(shape) / shape[-1] ** 0.5).to(dtype) for shape in shapes]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("wanted", [(True,) * 5, (True, False, False, True, False), (False, False, True, False, True)])
def test_results_and_requested_gradients_agree(wanted: tuple[bool, ...], dtype: torch.dtype) -> None:
    """As it is written; the compiler's part is tested below. The hidden layer before its bias is rounded once more."""
    x, up, up_bias, down, _ = given = operands(dtype)
    grad = torch.randn(ROWS, OUT).to(dtype)
    result, projected = kernel.forward.function(*given, "gelu")
    doubles = [t.double().requires_grad_() for t in given]
    truth = reference.mlp(*doubles)
    expected = torch.autograd.grad(truth, list(compress(doubles, wanted)), grad.double())
    found = kernel.backward.function(grad, x, projected, up, up_bias, down, "gelu", wanted)
    for ours, theirs in zip((result, *found), (truth, *expected), strict=True):
        bound = 8 * (ROWS + HIDDEN) ** 0.5 * torch.finfo(dtype).eps * theirs.abs().max().clamp(min=1.0)
        assert ours.shape == theirs.shape and ours.dtype is dtype and (ours.double() - theirs).abs().max() <= bound


def test_the_compiled_region_gives_the_same() -> None:
    x, up, up_bias, down, _ = given = operands(torch.float32)
    grad, wanted = torch.randn(ROWS, OUT), (True,) * 5
    result, projected = kernel.forward(*given, "gelu")
    assert torch.allclose(result, kernel.forward.function(*given, "gelu")[0], atol=1e-6)
    saved = grad, x, projected, up, up_bias, down, "gelu", wanted
    for ours, theirs in zip(kernel.backward(*saved), kernel.backward.function(*saved), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5)
