"""An edit of a norm with the variance E[x^2] - E[x]^2 is unsafe in any spelling, because torch's norm is more exact."""

from __future__ import annotations

import pytest
import torch

from tests.source.rewriting import findings, module_of, rewritten

DIFFERENCES = (
    "x.pow(2).mean(-1, keepdim=True) - m ** 2",
    "(x ** 2).mean(-1, keepdim=True) - m * m",
    "(x * x).mean(-1, keepdim=True) - m.square()",
    "x.square().mean(-1, keepdim=True) - m.pow(2)",
    "x.square().mean(-1, keepdim=True) + -m ** 2",
    "x.square().mean(-1, keepdim=True) + -(m * m)",
    "x.square().mean(-1, keepdim=True) + m ** 2 * -1",
    "-m ** 2 + x.square().mean(-1, keepdim=True)",
    "-(m ** 2 - x.square().mean(-1, keepdim=True))",
    "torch.sub(x.square().mean(-1, keepdim=True), m ** 2)",
    "torch.add(x.square().mean(-1, keepdim=True), m ** 2, alpha=-1)",
    "x.square().sum(-1, keepdim=True) / x.size(-1) - m ** 2",
    "(x.square().mean(-1, keepdim=True) - m ** 2).clamp(min=0)",
)
CENTRED = (
    "(x - m).pow(2).mean(-1, keepdim=True)",
    "((x - m) * (x - m)).mean(-1, keepdim=True)",
    "x.var(-1, keepdim=True, unbiased=False)",
    "(x - m).square().sum(-1, keepdim=True) / x.size(-1)",
)


def program(variance: str) -> str:
    return (
        "import torch\nfrom torch import nn\n\n\nclass L(nn.Module):\n    def forward(self, x):\n"
        f"        m = x.mean(-1, keepdim=True)\n        v = {variance}\n"
        "        return (x - m) * torch.rsqrt(v + 1e-5)\n"
    )


def differs(text: str, mean: float) -> bool:
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(0)) + mean
    before, after = (vars(module_of(t))["L"]()(x) for t in (text, rewritten(text)))
    return not torch.allclose(before, after, atol=1e-2)


@pytest.mark.parametrize("variance", DIFFERENCES)
def test_a_difference_of_squares_is_unsafe_as_a_variance(variance: str) -> None:
    text = program(variance)
    edits = [f for f in findings(text) if f.status in ("safe", "unsafe")]
    assert all(f.status == "unsafe" and "loses digits" in f.message for f in edits)
    assert not differs(text, 0.0)
    assert not edits or differs(text, 3000.0)


def test_most_spellings_of_the_difference_are_found() -> None:
    unsafe = [v for v in DIFFERENCES if any(f.status == "unsafe" for f in findings(program(v)))]
    assert len(unsafe) >= len(DIFFERENCES) - 2


@pytest.mark.parametrize("variance", CENTRED)
def test_a_mean_of_squared_deviations_is_safe(variance: str) -> None:
    text = program(variance)
    assert [f.status for f in findings(text)] == ["safe"]
    assert not differs(text, 0.0) and not differs(text, 3000.0)
