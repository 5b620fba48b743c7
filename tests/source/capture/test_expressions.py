"""Side effects of expressions are captured: writes in place and bindings, also in branches that may not run."""

from __future__ import annotations

import pytest
import torch

from tests.source.rewriting import module_of, rewritten

HEAD = "import torch\nimport torch.nn.functional as F\n"
WRITTEN_INSIDE = {
    "in the other arm of a conditional": "return x.mul_(x.sigmoid()) if flag else x.mul(x.sigmoid())",
    "in an arm, before the pattern": "y = x.add_(1) if flag else x\n    return x * torch.sigmoid(x) + y",
    "behind an `and`": "flag and x.add_(1)\n    return x * torch.sigmoid(x)",
    "in both arms": "y = x.add_(1) if flag else x.mul_(2)\n    return x * torch.sigmoid(x) + y",
    "before the pattern, in the same expression": "return torch.relu(x.add_(1)) + x * torch.sigmoid(x)",
    "after the pattern, in the same expression": "return x * torch.sigmoid(x) + x.add_(1)",
    "in the operand itself": "return x.add_(1) * torch.sigmoid(x)",
    "by a walrus that is read later": "return (y := x + 1) * torch.sigmoid(y), y",
    "by a walrus that only the pattern reads": "return (y := x + 1) * torch.sigmoid(y)",
    "by a walrus in an arm": "z = (x := x + 1) if flag else x\n    return x * torch.sigmoid(x) + z",
}


@pytest.mark.parametrize("flag", [True, False])
@pytest.mark.parametrize("body", WRITTEN_INSIDE.values(), ids=WRITTEN_INSIDE)
def test_a_write_or_binding_inside_an_expression_keeps_its_meaning(body: str, flag: bool) -> None:
    text = f"{HEAD}\ndef f(x, flag):\n    {body}\n"
    x = torch.linspace(-3, 3, 13, dtype=torch.float64)
    outcomes = []
    for module in (module_of(text), module_of(rewritten(text))):
        given = x.clone()
        outcomes.append((module.f(given, flag), given))
    torch.testing.assert_close(outcomes[0], outcomes[1], rtol=1e-14, atol=1e-14)


def test_only_the_branch_that_computes_the_pattern_is_rewritten() -> None:
    text = f"{HEAD}\ndef f(x, flag):\n    return x.mul_(x.sigmoid()) if flag else x.mul(x.sigmoid())\n"
    assert "return x.mul_(x.sigmoid()) if flag else F.silu(x)" in rewritten(text)
