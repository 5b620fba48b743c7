"""The target `apex`: the printed call computes the same, and an unsupported call is left with a reason."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.source.rewriting import assert_same, findings, rewritten
from tests.source.targets.programs import HALF_AFFINE, IGNORING, LOSS, NORMS, stand_in

TARGET = "apex"
X = torch.randn(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


class SoftmaxCrossEntropyLoss:
    """A loss for each row; a row of the class `padding_idx` has loss 0."""

    @staticmethod
    def apply(
        logits: Tensor, labels: Tensor, smoothing: float = 0.0, padding_idx: int = 0, half_to_float: bool = False
    ) -> Tensor:
        losses = F.cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing)
        return losses.masked_fill(labels == padding_idx, 0.0)


def layer(x: Tensor, shape: Sequence[int], eps: float = 1e-6, memory_efficient: bool = False) -> Tensor:
    return F.layer_norm(x, shape, eps=eps)


def layer_affine(
    x: Tensor, w: Tensor, b: Tensor, shape: Sequence[int], eps: float = 1e-6, memory_efficient: bool = False
) -> Tensor:
    return F.layer_norm(x, shape, w, b, eps)


def rms_affine(x: Tensor, w: Tensor, shape: Sequence[int], eps: float = 1e-6, memory_efficient: bool = False) -> Tensor:
    return F.rms_norm(x, list(shape), w, eps)


@pytest.fixture(autouse=True)
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(
        monkeypatch, "apex.normalization.fused_layer_norm",
        fused_layer_norm=layer, fused_layer_norm_affine=layer_affine, fused_rms_norm_affine=rms_affine,
    )  # fmt: skip
    stand_in(monkeypatch, "apex.contrib.xentropy", SoftmaxCrossEntropyLoss=SoftmaxCrossEntropyLoss)


def test_norms_are_called_with_or_without_weights() -> None:
    text = rewritten(NORMS, target=TARGET)
    for call in (
        "fused_layer_norm_affine(x, self.weight, self.bias, x.shape[-1:], eps=1e-5)  # over the channels",
        "fused_layer_norm(x, x.shape[-1:], eps=1e-5)",
        "fused_rms_norm_affine(x, self.weight, x.shape[-1:], eps=1e-6)",
    ):
        assert call.replace(" ", "") in "".join(text.split())
    assert text.count("import fused_layer_norm_affine\n") == 1
    assert rewritten(text, target=TARGET) == text


@pytest.mark.parametrize("name, arguments", [("LayerNorm", (6,)), ("Centred", ()), ("RmsNorm", (6,))])
def test_norms_compute_the_same(name: str, arguments: tuple[int, ...]) -> None:
    assert_same(NORMS, rewritten(NORMS, target=TARGET), name, [X], *arguments)


def test_a_weight_without_a_bias_is_applied_after_the_norm() -> None:
    text = rewritten(HALF_AFFINE, target=TARGET)
    assert "fused_layer_norm(x, x.shape[-1:], eps=1e-5) * self.weight" in text
    assert_same(HALF_AFFINE, text, "LayerNorm", [X], 6)


def test_class_0_is_not_used_as_padding() -> None:
    text = rewritten(LOSS, target=TARGET)
    assert ".mean()" in text and "-100" in text
    assert_same(LOSS, text, "Loss", [X])


def test_every_edit_is_unsafe_and_states_its_requirements() -> None:
    for text in (NORMS, LOSS):
        found = findings(text, target=TARGET)
        assert found and all(f.status == "unsafe" and "NVIDIA apex" in f.reason for f in found)
        assert not any("pip install" in f.reason for f in found)
        assert rewritten(text, unsafe=False, target=TARGET) == text


def test_a_loss_that_may_ignore_targets_is_left_with_a_reason() -> None:
    assert rewritten(IGNORING, target=TARGET) == IGNORING
    (found,) = findings(IGNORING, target=TARGET)
    assert found.status == "report" and "counts ignored targets in the mean" in found.reason
