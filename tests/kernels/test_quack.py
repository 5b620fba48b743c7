"""quack's kernels as providers: which calls they support, on stand-ins with the recorded signatures."""

from __future__ import annotations

import pytest
import torch

from autofuse.kernels.quack import PROVIDERS
from tests.kernels.agreement import assert_agrees, assert_has_second_derivatives, assert_refuses_second_derivatives
from tests.kernels.operands import classes, scattered_tensor, tensor

BY_NAME = {provider.operation: provider for provider in PROVIDERS}
pytestmark = pytest.mark.usefixtures("others")
_MLP = (tensor(16, 8), tensor(16, seed=2), tensor(24, 16), tensor(24, seed=3))


@pytest.mark.parametrize("x", [tensor(5, 24), scattered_tensor(3, 4, 24)], ids=["rows", "strides"])
def test_norms_agree(x: torch.Tensor) -> None:
    assert_agrees(BY_NAME["rms_norm"], x, tensor(24), 1e-3)
    assert_agrees(BY_NAME["rms_norm"], x, None, 1e-3)
    assert_agrees(BY_NAME["layer_norm"], x, tensor(24), tensor(24, seed=3), 1e-3)
    assert_agrees(BY_NAME["layer_norm"], x, tensor(24), None, 1e-3)


@pytest.mark.parametrize("prenorm", [False, True])
@pytest.mark.parametrize("bias", [None, tensor(24, seed=5)], ids=["plain", "bias"])
def test_add_and_rms_norm_agree(prenorm: bool, bias: torch.Tensor | None) -> None:
    operands = (scattered_tensor(3, 4, 24), tensor(3, 4, 24), tensor(24), bias)
    assert_agrees(BY_NAME["dropout_add_norm"], *operands, eps=1e-3, norm="rms", prenorm=prenorm)


def test_softmax_agrees() -> None:
    assert_agrees(BY_NAME["masked_softmax"], scattered_tensor(3, 4, 7))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropy_agrees(reduction: str) -> None:
    assert_agrees(BY_NAME["cross_entropy"], scattered_tensor(6, 9), classes(6, count=9), reduction=reduction)
    assert_agrees(BY_NAME["cross_entropy"], tensor(2, 9, 5), classes(2, 5, count=9, ignored=1), reduction=reduction,
                  ignore_index=1)  # fmt: skip


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_linear_and_cross_entropy_agree(reduction: str) -> None:
    operands = (scattered_tensor(2, 4, 8), scattered_tensor(16, 8), classes(2, 4, count=16))
    assert_agrees(BY_NAME["linear_cross_entropy"], *operands, reduction=reduction)


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary_embeddings_agree(interleaved: bool) -> None:
    angles = (tensor(5, 4, grad=False), tensor(5, 4, grad=False, seed=1))
    assert_agrees(BY_NAME["rotary"], scattered_tensor(2, 3, 5, 8), *angles, interleaved)


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu", "relu_squared", "silu"])
def test_two_projections_agree(activation: str) -> None:
    assert_agrees(BY_NAME["mlp"], scattered_tensor(2, 3, 8), *_MLP, activation=activation)
    assert_agrees(BY_NAME["mlp"], tensor(3, 8), _MLP[0], None, _MLP[2], None, activation=activation)


def test_second_derivatives_are_those_of_the_formula_or_an_error() -> None:
    assert_has_second_derivatives(BY_NAME["layer_norm"], tensor(5, 24), tensor(24), tensor(24, seed=1), 1e-3)
    assert_has_second_derivatives(BY_NAME["mlp"], tensor(3, 8), *_MLP, activation="silu")
    assert_refuses_second_derivatives(BY_NAME["masked_softmax"], tensor(6, 9))
    assert_refuses_second_derivatives(BY_NAME["linear_cross_entropy"], tensor(8, 8), tensor(16, 8), classes(8, count=9))


@pytest.mark.parametrize(
    ("operation", "args", "kwargs", "said"),
    [
        ("layer_norm", (tensor(2, 8), None), {}, "It needs a weight."),
        (
            "dropout_add_norm", (tensor(2, 8, grad=False), tensor(2, 8), tensor(8, grad=False)), {"norm": "rms"},
            "no gradient for the residual alone",
        ),
        ("masked_softmax", (tensor(2, 8),), {"scale": 0.5}, "It has no scale."),
        ("cross_entropy", (tensor(2, 8), classes(2, count=8)), {"label_smoothing": 0.1}, "has no label smoothing"),
        ("linear_cross_entropy", (tensor(3, 8), tensor(16, 8), classes(3, count=9)), {}, "multiples of 8"),
        (
            "linear_cross_entropy", (tensor(8, 8), tensor(16, 8), classes(8, count=9)), {"bias": tensor(16)},
            "It does not support a bias.",
        ),
        ("rotary", (tensor(1, 2, 3, 6), tensor(3, 3, grad=False), tensor(3, 3, grad=False)), {}, "multiples of 8"),
        ("mlp", (tensor(2, 8), *_MLP), {"activation": "mish"}, "supports the activations"),
        ("mlp", (tensor(2, 8), *_MLP), {"activation": torch.sin}, "supports the activations"),
        ("mlp", (tensor(2, 8), *_MLP), {"dropout_p": 0.1, "training": True}, "It has no dropout."),
        ("mlp", (tensor(2, 8).double(), *_MLP), {}, "of one dtype"),
    ],
)  # fmt: skip
def test_unsupported_calls_are_refused_beforehand(operation, args, kwargs, said) -> None:  # type: ignore[no-untyped-def]
    assert said in BY_NAME[operation].check(*args, **kwargs)
