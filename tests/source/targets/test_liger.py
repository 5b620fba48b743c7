"""The target `liger`: the printed call computes the same, and an unsupported call is left with a reason."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.source.rewriting import assert_same, findings, rewritten, source
from tests.source.targets.programs import HALF_AFFINE, HEAD, IGNORING, LOSS, NORMS, stand_in

TARGET = "liger"
X = torch.randn(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
MLPS = HEAD + source("""
    class Swiglu(nn.Module):
        def __init__(self, dim):
            super().__init__()
            self.gate, self.up = nn.Linear(dim, dim), nn.Linear(dim, dim, bias=False)

        def forward(self, x):
            return F.silu(self.gate(x)) * self.up(x)


    class Branch(nn.Module):
        def __init__(self, dim):
            super().__init__()
            self.inner = nn.Linear(dim, dim)

        def forward(self, x):
            return self.inner(x).sin()


    class Geglu(nn.Module):
        def __init__(self, dim):
            super().__init__()
            self.gate, self.up = Branch(dim), Branch(dim)

        def forward(self, x):
            return F.gelu(self.gate(x), approximate="tanh") * self.up(x)


    class Halves(nn.Module):
        def forward(self, x):
            up, gate = x.chunk(2, -1)
            return F.silu(gate) * up
""")
HEADED = HEAD + source("""
    class Headed(nn.Module):
        def __init__(self, dim, classes):
            super().__init__()
            self.head = nn.Linear(dim, classes)

        def forward(self, x):
            target = torch.arange(x.shape[0]) % 3
            return F.cross_entropy(self.head(x), target, label_smoothing=0.1)
""")
ERF = MLPS.replace(', approximate="tanh"', "").replace("silu", "gelu")
ROTARY = HEAD + source("""
    def rotate(x, cos, sin):
        x1, x2 = x.chunk(2, dim=-1)
        return x * cos + torch.cat((-x2, x1), dim=-1) * sin
""")


def rms_norm(X: Tensor, W: Tensor, eps: float, offset: float = 0.0, casting_mode: str = "llama", in_place: bool = True) -> Tensor:  # fmt: skip  # noqa: E501
    assert not in_place, "it would write into the gradient that it is given"
    return F.rms_norm(X, list(X.shape[-1:]), W + offset, eps)


def cross_entropy(input: Tensor, target: Tensor, weight: Any = None, size_average: Any = None, ignore_index: int = -100, reduce: Any = None, reduction: str = "mean", label_smoothing: float = 0.0) -> Tensor:  # fmt: skip  # noqa: E501
    loss = F.cross_entropy(input.clone(), target, None, None, ignore_index, None, reduction, label_smoothing)
    with torch.no_grad():
        input.data.zero_()  # its gradient, in Liger
    return loss


def linear_cross_entropy(input: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None = None, ce_weight: Any = None, ignore_index: int = -100, lse_square_scale: float = 0.0, label_smoothing: float = 0.0, reduction: str = "mean") -> Tensor:  # fmt: skip  # noqa: E501
    logits = F.linear(input, weight, bias)
    return F.cross_entropy(logits, target, None, None, ignore_index, None, reduction, label_smoothing)


@pytest.fixture(autouse=True)
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(
        monkeypatch,
        "liger_kernel.transformers.functional",
        liger_rms_norm=rms_norm,
        liger_layer_norm=lambda X, W, B, eps: F.layer_norm(X, X.shape[-1:], W, B, eps),
        liger_swiglu=lambda a, b: F.silu(a) * b,
        liger_geglu=lambda a, b: F.gelu(a, approximate="tanh") * b,  # their backward passes overwrite a and b
        liger_cross_entropy=cross_entropy,
        liger_fused_linear_cross_entropy=linear_cross_entropy,
    )


CASES = [
    (NORMS, "LayerNorm", (6,), "liger_layer_norm(x, self.weight, self.bias, 1e-5)  # over the channels"),
    (NORMS, "RmsNorm", (6,), "liger_rms_norm(x, self.weight, eps=1e-6, in_place=False)"),
    (MLPS, "Swiglu", (6,), "liger_swiglu("),
    (MLPS, "Geglu", (6,), "liger_geglu(self.gate(x).clone(), self.up(x).clone())"),
    (MLPS, "Halves", (), "liger_swiglu(*x.chunk(2, -1)[::-1])"),
    (LOSS, "Loss", (), ".clone()"),
    (IGNORING, "Loss", (), "liger_cross_entropy(logits.clone(), target)"),
    (HEADED, "Headed", (6, 5), "liger_fused_linear_cross_entropy("),
]


@pytest.mark.parametrize("text, name, arguments, call", CASES, ids=[f"{c[1]}-{i}" for i, c in enumerate(CASES)])
def test_the_printed_call_computes_the_same(text: str, name: str, arguments: tuple[int, ...], call: str) -> None:
    after = rewritten(text, target=TARGET)
    assert call in after
    assert rewritten(after, target=TARGET) == after
    assert_same(text, after, name, [X], *arguments)


def test_every_edit_is_unsafe_and_states_its_requirements() -> None:
    for text in (NORMS, MLPS, LOSS, HEADED):
        found = [f for f in findings(text, target=TARGET) if f.status != "report"]
        assert found and all(f.status == "unsafe" and "liger-kernel" in f.reason for f in found)
        assert rewritten(text, unsafe=False, target=TARGET) == text


@pytest.mark.parametrize(
    "text, why",
    [
        (HALF_AFFINE, "needs a tensor as bias"),
        (ERF, "not with gelu"),
        (ROTARY, "rotates a query and a key in one call"),
    ],
)
def test_an_unsupported_call_is_left_with_a_reason(text: str, why: str) -> None:
    assert rewritten(text, target=TARGET) == text
    assert any(f.status == "report" and why in f.reason for f in findings(text, target=TARGET))
