"""A rewritten norm keeps the dtype of its result for all dtypes of input and weight, and gives no new warnings.

Each form runs before and after its safe edits, with every dtype of the input and of the weight, with and without
autocast. A call that ran before runs afterwards, with the same dtype and numbers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.source.evidence.mixed_dtypes import difference, narrowest, outcome
from tests.source.rewriting import findings, rewritten, source

HEAD = """
import torch
from torch import nn


class Norm(nn.Module):
    def __init__(self, dim=8, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(dim))
        self.bias = nn.Parameter(torch.randn(dim))
        self.eps = eps

    def forward(self, x):
"""

WIDE = "x.float()"
RMS = "torch.rsqrt({0}.pow(2).mean(-1, keepdim=True) + self.eps)"
SAFE = {
    "llama": f"dt = x.dtype\nx = x.to(torch.float32)\nx = x * {RMS.format('x')}\nreturn self.weight * x.to(dt)",
    "llama, cast last": f"dt = x.dtype\nx = x.float()\nx = x * {RMS.format('x')}\nreturn (self.weight * x).to(dt)",
    "gemma": f"y = x.float()\ny = y * {RMS.format('y')}\nreturn (y * (1.0 + self.weight.float())).type_as(x)",
    "gemma in one expression": f"return (x.float() * {RMS.format(WIDE)} * (1.0 + self.weight.float())).type_as(x)",
    "weight in float32": f"y = x.float()\nreturn (self.weight.float() * (y * {RMS.format('y')})).to(x.dtype)",
    "cast before the weight, by type_as": f"return (x.float() * {RMS.format(WIDE)}).type_as(x) * self.weight",
    "no cast": f"return x * {RMS.format('x')} * self.weight",
    "no weight": f"return x * {RMS.format('x')}",
    "statistics in float32 alone": f"return x * {RMS.format(WIDE)}.to(x.dtype)",
    "result in float32": f"y = x.float()\nreturn y * {RMS.format('y')}",
    "result in float64": f"y = x.double()\nreturn y * {RMS.format('y')} * self.weight",
    "divided by the root": "return x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight",
    "layer norm": (
        "m = x.mean(-1, keepdim=True)\nv = x.var(-1, keepdim=True, unbiased=False)\n"
        "return (x - m) / torch.sqrt(v + self.eps) * self.weight + self.bias"
    ),
    "layer norm, float32 inside": (
        "y = x.float()\nm = y.mean(-1, keepdim=True)\nv = (y - m).pow(2).mean(-1, keepdim=True)\n"
        "y = (y - m) * torch.rsqrt(v + self.eps)\nreturn (self.weight.float() * y + self.bias.float()).to(x.dtype)"
    ),
    "layer norm, weight outside of float32": (
        "y = x.float()\nm = y.mean(-1, keepdim=True)\nv = (y - m).pow(2).mean(-1, keepdim=True)\n"
        "y = (y - m) * torch.rsqrt(v + self.eps)\nreturn self.weight * y.to(x.dtype) + self.bias"
    ),
    "layer norm, cast last": (
        "y = x.float()\nm = y.mean(-1, keepdim=True)\nv = y.var(-1, keepdim=True, unbiased=False)\n"
        "y = (y - m) / torch.sqrt(v + self.eps)\ny = self.weight * y + self.bias\nreturn y.to(dtype=x.dtype)"
    ),
}  # fmt: skip
UNSAFE = {
    "the weight comes before the root": (
        "m = x.mean(-1, keepdim=True)\nv = x.var(-1, keepdim=True, unbiased=False)\n"
        "return self.weight * (x - m) / torch.sqrt(v + self.eps) + self.bias",
        "assumes that `x` and the weight and the bias have one dtype",
    ),
    "the weight times the input": (
        f"return self.weight * x * {RMS.format('x')}", "assumes that `x` and the weight have one dtype"
    ),
    "float32 unless the input is wider": (
        f"return x * {RMS.format(WIDE)}", "assumes that `x` is not float64"
    ),
}  # fmt: skip
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def module(body: str) -> str:
    return source(HEAD).rstrip("\n") + "\n" + "".join(f"        {line}\n" for line in body.splitlines())


def run_on(x: Tensor, dtype: torch.dtype) -> Callable[[dict[str, object]], Tensor]:
    def run(names: dict[str, object]) -> Tensor:
        torch.manual_seed(0)
        norm: nn.Module = names["Norm"]()  # type: ignore[operator]
        result: Tensor = norm.to(dtype)(x)
        return result

    return run


@pytest.mark.parametrize("form", SAFE)
def test_a_safe_norm_keeps_dtype_and_numbers_for_all_dtypes(form: str) -> None:
    before = module(SAFE[form])
    after = rewritten(before, unsafe=False)
    assert "_norm(" in after, after
    for input_dtype, dtype, autocast in itertools.product(DTYPES, DTYPES, (False, True)):
        x = torch.randn(3, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(input_dtype)
        run = run_on(x, dtype)
        computed_in = narrowest((input_dtype, dtype, torch.float32))
        difference_found = difference(outcome(before, run, autocast), outcome(after, run, autocast), computed_in)
        assert not difference_found, (input_dtype, dtype, autocast, difference_found, after)


@pytest.mark.parametrize("form", UNSAFE)
def test_a_norm_whose_dtypes_may_differ_is_unsafe_with_a_message(form: str) -> None:
    body, why = UNSAFE[form]
    (finding,) = findings(module(body))
    assert (finding.status, why in finding.message) == ("unsafe", True), finding.message


@pytest.mark.parametrize("form", UNSAFE)
def test_an_unsafe_norm_is_correct_under_its_assumption(form: str) -> None:
    before = module(UNSAFE[form][0])
    after = rewritten(before)
    for dtype in (torch.float32, torch.bfloat16):
        run = run_on(torch.randn(3, 8).to(dtype), dtype)
        assert not difference(outcome(before, run), outcome(after, run), torch.bfloat16), dtype


@pytest.mark.parametrize("form", UNSAFE)
def test_the_assumption_of_an_unsafe_norm_is_necessary(form: str) -> None:
    before = module(UNSAFE[form][0])
    after = rewritten(before)
    mixtures = itertools.product(DTYPES, DTYPES)
    runs = [run_on(torch.randn(3, 8, dtype=torch.float64).to(input_dtype), dtype) for input_dtype, dtype in mixtures]
    assert any(difference(outcome(before, run), outcome(after, run), torch.bfloat16) for run in runs)


def test_a_weight_that_provably_has_the_dtype_of_the_input_is_passed_to_the_norm() -> None:
    assert "weight=1.0 + self.weight.float()" in rewritten(module(SAFE["gemma"]), unsafe=False)
    assert "weight=" not in rewritten(module(SAFE["llama"]), unsafe=False)
