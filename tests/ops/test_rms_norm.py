"""autofuse.ops.rms_norm for sizes that our loop computes. test_layer_norm.py tests small ones."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from autofuse import ops
from autofuse.ops import reference

LARGE = (2, 128, 1024)
Agree = Callable[..., None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_large_calls_agree(assert_agree: Agree, dtype: torch.dtype) -> None:
    given = torch.randn(LARGE, dtype=dtype), torch.rand(LARGE[-1], dtype=dtype)
    assert_agree(ops.rms_norm, reference.rms_norm, *given, terms=LARGE[-1] * 256)


VIEWS: dict[str, Callable[[], Tensor]] = {
    "transposed": lambda: torch.randn(128, 2, 1024).transpose(0, 1),
    "the last two dimensions exchanged": lambda: torch.randn(2, 1024, 128).mT,
    "half of each row": lambda: torch.randn(2, 128, 2048)[..., 1024:],
    "one row for all": lambda: torch.randn(1, 1, 1024).expand(2, 128, 1024),
    "an odd width": lambda: torch.randn(257, 1023),
    "one row": lambda: torch.randn(2**18),
}


@pytest.mark.parametrize("made", VIEWS.values(), ids=VIEWS)
def test_any_strides_and_shapes(assert_agree: Agree, made: Callable[[], Tensor]) -> None:
    x = made()
    assert_agree(ops.rms_norm, reference.rms_norm, x, torch.rand(x.shape[-1]), terms=x.numel())


def test_the_gradient_of_a_weight_has_the_weights_dtype(assert_agree: Agree) -> None:
    x, weight = torch.randn(LARGE).bfloat16(), torch.rand(LARGE[-1], requires_grad=True)
    result = ops.rms_norm(x, weight)
    assert result.dtype is torch.float32
    assert torch.autograd.grad(result.sum(), weight)[0].dtype is torch.float32
    assert_agree(ops.rms_norm, reference.rms_norm, x, weight.detach(), terms=LARGE[-1] * 256)


def test_the_gradient_of_a_gradient_is_that_of_the_formula() -> None:
    given = torch.randn(LARGE, requires_grad=True), torch.rand(LARGE[-1], requires_grad=True)

    def penalty(norm: Callable[..., Tensor], x: Tensor, weight: Tensor) -> list[Tensor]:
        first = torch.autograd.grad(norm(x, weight).square().sum(), (x, weight), create_graph=True)
        return list(torch.autograd.grad(first[0].square().sum() + first[1].mean(), (x, weight)))

    doubles = [t.detach().double().requires_grad_() for t in given]
    for found, truth in zip(penalty(ops.rms_norm, *given), penalty(reference.rms_norm, *doubles), strict=True):
        assert (found - truth).abs().max() <= 1e-4 * truth.abs().max()


def test_transforms_of_torch_func_work() -> None:
    x, weight = torch.randn(LARGE), torch.rand(LARGE[-1])
    expected = ops.rms_norm(x, weight)
    torch.testing.assert_close(torch.vmap(ops.rms_norm, in_dims=(0, None))(x, weight), expected)
    torch.testing.assert_close(torch.func.jvp(lambda x: ops.rms_norm(x, weight), (x,), (x,))[0], expected)
    gradient = torch.func.grad(lambda w: ops.rms_norm(x, w).sum())(weight)
    torch.testing.assert_close(gradient, (expected / weight).sum((0, 1)), rtol=1e-4, atol=1e-3)


def test_threads_share_a_loop_and_modules_are_copied() -> None:
    class Norm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.rand(LARGE[-1]))

        def forward(self, x: Tensor) -> Tensor:
            return ops.rms_norm(x, self.weight)

    model, x = Norm(), torch.randn(LARGE)
    expected, found = model(x), list[Tensor]()
    copied = copy.deepcopy(model)
    threads = [threading.Thread(target=lambda: found.append(copied(x))) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(found) == 4 and all(torch.equal(f, expected) for f in found)


def test_linearize_replays_a_norm_of_what_does_not_depend_on_its_argument() -> None:
    fixed, x = torch.randn(3, 8, dtype=torch.float64), torch.randn(3, 8, dtype=torch.float64)
    weight = torch.randn(8, dtype=torch.float64, requires_grad=True)
    for function in (lambda x: ops.rms_norm(fixed * weight, weight, 1e-5) * x, lambda x: ops.rms_norm(x, weight, 1e-5)):
        expected, tangent = torch.func.linearize(function, x)[0], torch.func.jvp(function, (x,), (x,))[1]
        found, along = torch.func.linearize(function, x)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(along(x), tangent)
