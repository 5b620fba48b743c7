"""Liger's own kernels in Triton's interpreter, where liger-kernel is installed: what its adapters really call.

The interpreter passes numbers as Python's, where compiled kernels get scalars of Triton, and has none of libdevice's
functions: both are given here.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy
import pytest
import torch

from autofuse.kernels.liger import PROVIDERS
from tests.kernels.agreement import assert_agrees
from tests.kernels.operands import classes, scattered_tensor, tensor

pytest.importorskip("liger_kernel")
tl = pytest.importorskip("triton.language")
BY_NAME = {provider.operation: provider for provider in PROVIDERS}


EPS = 1e-3


@pytest.fixture(autouse=True)
def as_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the interpreter lacks of what the kernels use."""
    interpreter: Any = pytest.importorskip("triton.runtime.interpreter")
    usual = interpreter._implicit_cvt

    def convert(arg: object) -> Any:
        if not isinstance(arg, float):
            return usual(arg)
        return tl.tensor(interpreter.TensorHandle(numpy.array([arg], dtype=numpy.float32), tl.float32), tl.float32)

    monkeypatch.setattr(interpreter, "_implicit_cvt", convert)
    for name in ("rms_norm", "layer_norm", "fused_add_rms_norm"):
        monkeypatch.setattr(importlib.import_module(f"liger_kernel.ops.{name}"), "rsqrt", lambda x: tl.rsqrt(x))
    geglu = importlib.import_module("liger_kernel.ops.geglu")
    monkeypatch.setattr(geglu, "tanh", lambda x: 2 * tl.sigmoid(2 * x) - 1)


def test_norms_agree() -> None:
    assert_agrees(BY_NAME["rms_norm"], scattered_tensor(3, 2, 20), tensor(20), EPS)
    assert_agrees(BY_NAME["layer_norm"], tensor(5, 20), tensor(20), tensor(20, seed=3), EPS)
    operands = (scattered_tensor(3, 2, 20), tensor(3, 2, 20), tensor(20))
    for prenorm in (True, False):
        assert_agrees(BY_NAME["dropout_add_norm"], *operands, eps=EPS, norm="rms", prenorm=prenorm)


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_gated_activations_agree(activation: str) -> None:
    assert_agrees(BY_NAME["gated_product"], tensor(3, 4, 10), scattered_tensor(3, 4, 10), activation=activation)
    assert_agrees(BY_NAME["gated_activation"], tensor(2, 3, 10), activation=activation)


def test_rotary_embeddings_agree() -> None:
    angles = (tensor(5, 4, grad=False), tensor(5, 4, grad=False, seed=1))
    assert_agrees(BY_NAME["rotary"], scattered_tensor(2, 3, 5, 8), *angles)
    assert_agrees(BY_NAME["rotary"], tensor(2, 5, 3, 8), *(t.unsqueeze(1) for t in angles))


def test_softmax_agrees() -> None:
    assert_agrees(BY_NAME["masked_softmax"], tensor(3, 20), scale=0.5)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropies_agree(reduction: str) -> None:
    options: dict[str, Any] = {"reduction": reduction, "label_smoothing": 0.1}
    assert_agrees(BY_NAME["cross_entropy"], tensor(6, 9), classes(6, count=9), **options)
    if reduction != "none":
        operands = (scattered_tensor(2, 3, 8), tensor(9, 8), classes(2, 3, count=9))
        assert_agrees(BY_NAME["linear_cross_entropy"], *operands, bias=tensor(9, seed=4), **options)


def test_the_mean_over_no_rows_is_nan() -> None:
    nothing = torch.full((4,), -100)
    assert BY_NAME["cross_entropy"].run(tensor(4, 9), nothing).isnan()
    assert BY_NAME["linear_cross_entropy"].run(tensor(4, 8), tensor(9, 8), nothing).isnan()
