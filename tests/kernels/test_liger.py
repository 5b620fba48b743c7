"""Liger's kernels as providers, on stand-ins with the recorded signatures, and how operands are protected from them."""

from __future__ import annotations

import pytest
import torch

from autofuse.kernels.liger import PROVIDERS
from tests.kernels.agreement import assert_agrees, assert_has_second_derivatives, assert_refuses_second_derivatives
from tests.kernels.operands import classes, scattered_tensor, tensor

BY_NAME = {provider.operation: provider for provider in PROVIDERS}
pytestmark = pytest.mark.usefixtures("others")


@pytest.mark.parametrize(
    "x", [tensor(5, 24), tensor(2, 3, 24), scattered_tensor(3, 4, 24)], ids=["rows", "batch", "strides"]
)
def test_norms_agree(x: torch.Tensor) -> None:
    assert_agrees(BY_NAME["rms_norm"], x, tensor(24), 1e-3)
    assert_agrees(BY_NAME["layer_norm"], x, tensor(24), tensor(24, seed=3), 1e-3)
    assert_agrees(BY_NAME["layer_norm"], x, tensor(24), None, 1e-3)


@pytest.mark.parametrize("prenorm", [False, True])
def test_add_and_rms_norm_agree(prenorm: bool) -> None:
    operands = (scattered_tensor(3, 4, 24), tensor(3, 4, 24), tensor(24))
    assert_agrees(BY_NAME["dropout_add_norm"], *operands, eps=1e-3, norm="rms", prenorm=prenorm)


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_gated_activations_agree(activation: str) -> None:
    assert_agrees(BY_NAME["gated_product"], tensor(3, 4, 10), scattered_tensor(3, 4, 10), activation=activation)
    for first in (True, False):
        assert_agrees(BY_NAME["gated_activation"], tensor(3, 4, 10), activation=activation, gate_first=first)


@pytest.mark.parametrize(
    ("x", "angles"),
    [
        (tensor(2, 3, 5, 8), (5, 4)),
        (scattered_tensor(2, 3, 5, 8), (1, 1, 5, 4)),
        (tensor(2, 5, 3, 8), (5, 1, 4)),
        (tensor(2, 5, 3, 8).detach().transpose(1, 2).requires_grad_(), (5, 4)),
    ],
)
def test_rotary_embeddings_agree_and_rotate_a_copy(x: torch.Tensor, angles: tuple[int, ...]) -> None:
    assert_agrees(BY_NAME["rotary"], x, tensor(*angles, grad=False), tensor(*angles, grad=False, seed=1))


def test_softmax_agrees() -> None:
    assert_agrees(BY_NAME["masked_softmax"], scattered_tensor(3, 4, 7), scale=0.5)
    assert_agrees(BY_NAME["masked_softmax"], tensor(3, 4, 7))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("ignore_index", [None, 3])
def test_cross_entropy_agrees_and_keeps_the_logits(reduction: str, ignore_index: int | None) -> None:
    options = {"reduction": reduction, "ignore_index": ignore_index, "label_smoothing": 0.1}
    ignored = -100 if ignore_index is None else ignore_index
    assert_agrees(BY_NAME["cross_entropy"], tensor(6, 9), classes(6, count=9, ignored=ignored), **options)
    assert_agrees(BY_NAME["cross_entropy"], tensor(2, 9, 5), classes(2, 5, count=9, ignored=ignored), **options)
    assert_agrees(BY_NAME["cross_entropy"], tensor(2, 5, 9), classes(2, 5, count=9, ignored=ignored), dim=-1, **options)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("bias", [None, tensor(9, seed=4)], ids=["plain", "bias"])
def test_linear_and_cross_entropy_agree(reduction: str, bias: torch.Tensor | None) -> None:
    operands = (scattered_tensor(2, 3, 8), tensor(9, 8), classes(2, 3, count=9))
    assert_agrees(BY_NAME["linear_cross_entropy"], *operands, bias=bias, reduction=reduction, label_smoothing=0.1)


def test_the_mean_over_no_rows_is_nan() -> None:
    nothing = torch.full((4,), -100)
    assert BY_NAME["cross_entropy"].run(tensor(4, 9), nothing).isnan()
    assert BY_NAME["linear_cross_entropy"].run(tensor(4, 8), tensor(9, 8), nothing).isnan()


def test_second_derivatives_are_those_of_the_formula_or_an_error() -> None:
    assert_has_second_derivatives(BY_NAME["rms_norm"], tensor(5, 24), tensor(24), 1e-3)
    assert_has_second_derivatives(BY_NAME["gated_product"], tensor(5, 6), tensor(5, 6, seed=2), activation="silu")
    angles = (tensor(5, 4, grad=False), tensor(5, 4, grad=False, seed=1))
    assert_has_second_derivatives(BY_NAME["rotary"], tensor(2, 3, 5, 8), *angles)
    assert_refuses_second_derivatives(BY_NAME["cross_entropy"], tensor(6, 9), classes(6, count=9))
    assert_refuses_second_derivatives(
        BY_NAME["dropout_add_norm"], tensor(5, 6), tensor(5, 6, seed=2), tensor(6), norm="rms", prenorm=True
    )


@pytest.mark.parametrize(
    ("operation", "args", "kwargs", "said"),
    [
        ("rms_norm", (tensor(2, 8), None), {}, "It needs a weight."),
        ("rms_norm", (tensor(2, 8), 2.0), {}, "needs a tensor as weight"),
        ("rms_norm", (tensor(2, 8), tensor(8).double()), {}, "in the dtype of x"),
        ("rms_norm", (torch.empty(1, 2**17), torch.empty(2**17)), {}, "at most 65536"),
        ("dropout_add_norm", (tensor(2, 8), tensor(2, 8), tensor(8)), {}, "RMS norm only"),
        (
            "dropout_add_norm", (tensor(2, 8), tensor(2, 8), tensor(8)),
            {"norm": "rms", "dropout_p": 0.1, "training": True}, "It has no dropout.",
        ),
        ("dropout_add_norm", (tensor(2, 8), tensor(1, 8), tensor(8)), {"norm": "rms"}, "of one shape"),
        ("gated_product", (tensor(2, 8), tensor(2, 8)), {"activation": "gelu"}, "silu and gelu_tanh"),
        ("gated_product", (tensor(2, 8), tensor(2, 1)), {}, "of one shape"),
        ("gated_activation", (tensor(2, 7),), {}, "even last dimension"),
        ("rotary", (tensor(1, 2, 3, 8), tensor(3, 4), tensor(3, 4), True), {}, "not neighbouring pairs"),
        ("rotary", (tensor(1, 2, 3, 8), tensor(3, 8), tensor(3, 8)), {}, "one angle for each pair"),
        ("rotary", (tensor(1, 2, 3, 8), tensor(3, 4), tensor(3, 4)), {}, "no gradient for angles"),
        ("rotary", (tensor(2, 2, 3, 8), tensor(2, 1, 3, 4), tensor(2, 1, 3, 4)), {}, "depend on position only"),
        ("masked_softmax", (tensor(2, 8), torch.ones(2, 8, dtype=torch.bool)), {}, "It does not support a mask."),
        ("cross_entropy", (tensor(2, 8), tensor(2, 8)), {}, "not probabilities"),
        ("cross_entropy", (tensor(2, 8), classes(2, count=8)), {"weight": tensor(8)}, "not support weights of classes"),
        ("cross_entropy", (tensor(2, 8), classes(3, count=8)), {}, "one target for each row"),
        (
            "linear_cross_entropy", (tensor(2, 8), tensor(9, 8), classes(2, count=9)), {"reduction": "none"},
            "reductions mean and sum",
        ),
        (
            "linear_cross_entropy", (tensor(2, 8, grad=False), tensor(9, 8), classes(2, count=9)), {},
            "needs an x that requires a gradient",
        ),
    ],
)  # fmt: skip
def test_unsupported_calls_are_refused_beforehand(operation, args, kwargs, said) -> None:  # type: ignore[no-untyped-def]
    assert said in BY_NAME[operation].check(*args, **kwargs)


def test_under_autocast_torch_computes_half_precision() -> None:
    x, weight = tensor(2, 8, grad=False).bfloat16(), tensor(8, grad=False).bfloat16()
    assert BY_NAME["rms_norm"].check(x, weight) == ""
    with torch.autocast("cpu", torch.bfloat16):
        assert "autocast" in BY_NAME["rms_norm"].check(x, weight)
        assert BY_NAME["rms_norm"].check(x.float(), weight.float()) == ""
