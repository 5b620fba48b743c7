"""flash-attn's other kernels as providers, on stand-ins with the recorded signatures."""

from __future__ import annotations

import pytest
import torch

from autofuse.kernels.flash_attn_parts import PROVIDERS
from tests.kernels.agreement import assert_agrees, assert_has_second_derivatives, assert_refuses_second_derivatives
from tests.kernels.operands import classes, scattered_tensor, tensor

BY_NAME = {provider.operation: provider for provider in PROVIDERS}
pytestmark = pytest.mark.usefixtures("others")
_MLP = (tensor(128, 128), tensor(128, seed=2), tensor(128, 128, seed=4), tensor(128, seed=3))


def test_norms_agree() -> None:
    assert_agrees(BY_NAME["rms_norm"], scattered_tensor(3, 4, 24), tensor(24), 1e-3)
    assert_agrees(BY_NAME["layer_norm"], tensor(3, 4, 24), tensor(24), tensor(24, seed=3), 1e-3)
    assert_agrees(BY_NAME["layer_norm"], tensor(5, 24), tensor(24), None, 1e-3)


@pytest.mark.parametrize("prenorm", [False, True])
@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_add_and_norm_agree(prenorm: bool, norm: str) -> None:
    operands = (scattered_tensor(3, 4, 24), tensor(3, 4, 24), tensor(24), tensor(24, seed=6))
    assert_agrees(BY_NAME["dropout_add_norm"], *operands, eps=1e-3, norm=norm, prenorm=prenorm, dropout_p=0.5)


def test_dropout_reaches_the_norm_in_training() -> None:
    torch.manual_seed(0)
    x, residual = torch.ones(64, 64), torch.zeros(64, 64)
    total, _ = BY_NAME["dropout_add_norm"].run(
        x, residual, torch.ones(64), None, dropout_p=0.5, training=True, prenorm=True
    )
    assert set(total.unique().tolist()) == {0.0, 2.0}


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary_embeddings_agree(interleaved: bool) -> None:
    angles = (tensor(5, 4, grad=False), tensor(5, 4, grad=False, seed=1))
    assert_agrees(BY_NAME["rotary"], scattered_tensor(2, 3, 5, 8), *angles, interleaved)


def test_swiglu_agrees() -> None:
    assert_agrees(BY_NAME["gated_product"], tensor(3, 4, 10), scattered_tensor(3, 4, 10), activation="silu")


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropy_agrees(reduction: str) -> None:
    options = {"reduction": reduction, "label_smoothing": 0.1}
    assert_agrees(BY_NAME["cross_entropy"], scattered_tensor(6, 9), classes(6, count=9), **options)
    assert_agrees(BY_NAME["cross_entropy"], tensor(9), torch.tensor(3), **options)


@pytest.mark.parametrize("activation", ["gelu_tanh", "relu"])
def test_two_projections_agree(activation: str) -> None:
    assert_agrees(BY_NAME["mlp"], tensor(3, 128), *_MLP, activation=activation, terms=512)


def test_second_derivatives_are_those_of_the_formula_or_an_error() -> None:
    assert_has_second_derivatives(BY_NAME["layer_norm"], tensor(5, 24), tensor(24), tensor(24, seed=1), 1e-3)
    assert_has_second_derivatives(BY_NAME["gated_product"], tensor(5, 6), tensor(5, 6, seed=2), activation="silu")
    assert_refuses_second_derivatives(BY_NAME["dropout_add_norm"], tensor(5, 6), tensor(5, 6, seed=2), tensor(6))


@pytest.mark.parametrize(
    ("operation", "args", "kwargs", "said"),
    [
        ("layer_norm", (torch.empty(1, 2**15), torch.empty(2**15)), {}, "at most 16384"),
        ("dropout_add_norm", (tensor(2, 8), tensor(8), tensor(8)), {}, "of one shape"),
        ("dropout_add_norm", (tensor(2, 8), tensor(2, 8), None), {}, "It needs a weight."),
        (
            "dropout_add_norm", (tensor(2, 8), tensor(2, 8), tensor(8)), {"dropout_p": 1.0, "training": True},
            "dropout probability below 1",
        ),
        ("gated_product", (tensor(2, 8), tensor(2, 8)), {"activation": "gelu"}, "the activation silu"),
        ("mlp", (tensor(3, 128), *_MLP), {"activation": "gelu"}, "gelu_tanh and relu"),
        ("mlp", (tensor(3, 8), tensor(16, 8), None, tensor(8, 16), None), {"activation": "relu"}, "multiples of 128"),
    ],
)  # fmt: skip
def test_unsupported_calls_are_refused_beforehand(operation, args, kwargs, said) -> None:  # type: ignore[no-untyped-def]
    assert said in BY_NAME[operation].check(*args, **kwargs)
