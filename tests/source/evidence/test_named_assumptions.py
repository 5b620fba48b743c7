"""The message of an unsafe edit states its assumption: the edit is correct if it holds, and wrong if it does not.

Each program is called twice: under its assumption nothing may differ, and without it something does.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from tests.source.rewriting import findings, module_of, rewritten

HEAD = "import torch\nfrom torch import nn\nimport torch.nn.functional as F\n\n\n"


@dataclass(frozen=True)
class AssumptionCase:
    """A program, the clause of its message, a call that fulfills the clause, and one that does not."""

    code: str
    text: str
    clause: str
    holds: str
    fails: str


CASES = (
    AssumptionCase(
        "AF101",
        "def f(q, k, v, scale):\n    return (q @ k.mT * scale).softmax(-1) @ v\n",
        "assumes that the scale is a number",
        "f(*T(2, 3, 5, 4), 0.5)",
        "f(*T(2, 3, 5, 4), torch.linspace(0.1, 1.0, 5, dtype=torch.float64))",
    ),
    AssumptionCase(
        "AF302",
        "from functools import singledispatch as register\n\n@register\ndef f(x: torch.Tensor) -> torch.Tensor:\n"
        "    return x * torch.sigmoid(x)\n",
        "assumes that `register` does no more than call the function",
        "f(T(1, 3, 5, 4)[0])",
        "",
    ),
    AssumptionCase(
        "AF501",
        "def f(x, y):\n    return -F.log_softmax(x, dim=-1).gather(-1, y.unsqueeze(-1)).squeeze(-1).mean()\n",
        "assumes that there is one int64 target for each row, and that none is -100",
        "f(T(1, 3, 5)[0], torch.tensor([0, 4, 1]))",
        "f(T(1, 3, 5)[0], torch.tensor([4]))",
    ),
    AssumptionCase(
        "AF201",
        "class L(nn.Module):\n    def forward(self, x):\n        mean = x.mean(-1, keepdim=True)\n"
        "        variance = (x ** 2).mean(-1, keepdim=True) - mean ** 2\n"
        "        return (x - mean) * torch.rsqrt(variance + 1e-5)\n",
        "assumes that the mean is not much larger than the deviation",
        "L()(T(1, 3, 5)[0])",
        "L()(T(1, 3, 5)[0] + 1e7)",
    ),
    AssumptionCase(
        "AF101",
        "def f(q, k, v):\n    return (q @ k.transpose(-2, -1) * 0.5).softmax(-1) @ v\n\n\n"
        "def slope(q, k, v, twice):\n    q.requires_grad_()\n"
        "    (g,) = torch.autograd.grad(f(q, k, v).square().sum(), q, create_graph=twice)\n"
        "    return torch.autograd.grad(g.square().sum(), q)[0] if twice else g\n",
        "does not differentiate the result twice, which the fused call cannot",
        "slope(*T(2, 2, 3, 5, 4), False)",
        "slope(*T(2, 2, 3, 5, 4), True)",
    ),
)  # fmt: skip


def run(text: str, call: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)

    def tensors(count: int, *size: int) -> list[torch.Tensor]:
        return [torch.randn(*size, dtype=torch.float64, generator=generator) for _ in range(count + 1)]

    result = eval(call, {**vars(module_of(text)), "T": tensors, "torch": torch})
    assert isinstance(result, torch.Tensor)
    return result


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.clause)
def test_an_unsafe_edit_is_correct_exactly_if_its_assumption_holds(case: AssumptionCase) -> None:
    text = HEAD + case.text
    unsafe = [f for f in findings(text) if f.code.startswith(case.code[:3]) and f.status == "unsafe"]
    assert unsafe and any(case.clause in f.message for f in unsafe), findings(text)
    after = rewritten(text)
    assert after != rewritten(text, unsafe=False)
    torch.testing.assert_close(run(text, case.holds), run(after, case.holds))
    if case.fails:
        before = run(text, case.fails)
        try:
            is_same = torch.allclose(before, run(after, case.fails))
        except (RuntimeError, TypeError, ValueError):
            is_same = False
        assert not is_same, "the assumption is not necessary: the edit is correct without it"
