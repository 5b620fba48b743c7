"""Each reason of a target has a program, with the expected advice."""

from __future__ import annotations

from pathlib import Path

import pytest

from autofuse.loading.registry import load_rules
from autofuse.reasons import libraries
from autofuse.reasons.table import codes_of
from autofuse.source.find.check import proposals
from tests.reasons.programs import Refused, check, name_of, refused_finding

ANOTHER = "pass another `--target`, or fuse the live model"
AUTOFUSE = "pass `--target autofuse`, or fuse the live model with `autofuse.optimize`"
LAYER_NORM = "x - x.mean(-1, keepdim=True)) * torch.rsqrt(x.var(-1, keepdim=True, unbiased=False) + 1e-5)"
GATED = "gate, up = self.fc(q), self.fc(k)\nreturn self.fc(F.gelu(gate) * up)"
LOGITS = "logits = self.fc(q)\n"

CASES = [
    Refused("torch-lacks-operation", "h = q + self.fc(v)\nreturn h, self.norm(h)", "", AUTOFUSE, "AF203", "torch"),
    Refused(
        "torch-loss-shape",
        "return F.cross_entropy(self.fc(q).permute(0, 2, 1), k, reduction='none')",
        "", AUTOFUSE, "AF502", "torch",
    ),
    Refused("torch-loss-dtype", "return F.cross_entropy(self.fc(q).float(), k)", "", AUTOFUSE, "AF502", "torch"),
    Refused("loss-without-scale", "return F.cross_entropy(self.fc(q) / 0.7, k)", "", AUTOFUSE, "AF502", "torch"),
    Refused("target-lacks-operation", "return F.softmax(q @ k.mT, -1) @ v", "", ANOTHER, "AF101", "apex"),
    Refused("flash-attn-mask", "return F.softmax(q @ k.mT + x, -1) @ v", "", ANOTHER, "AF101", "flash-attn"),
    Refused(
        "flash-attn-dimensions",
        "q, k, v = q.view(4, 8), k.view(4, 8), v.view(4, 8)\nreturn F.softmax(q @ k.mT, -1) @ v",
        "", ANOTHER, "AF101", "flash-attn",
    ),
    Refused(
        "liger-class-weights",
        "return F.nll_loss(F.log_softmax(q, -1), k, weight=v)",
        "", ANOTHER, "AF501", "liger",
    ),
    Refused(
        "liger-reduction",
        "return F.cross_entropy(self.fc(q).permute(0, 2, 1), k, reduction='none')",
        "", ANOTHER, "AF502", "liger",
    ),
    Refused(
        "liger-rope",
        """
        first, second = q.chunk(2, -1)
        return q * k + torch.cat((-second, first), -1) * v
        """,
        "", ANOTHER, "AF401", "liger",
    ),
    Refused("liger-gate", "return self.fc(F.gelu(self.fc(q)) * self.fc(q))", "", ANOTHER, "AF303", "liger"),
    Refused(
        "liger-weight",
        "return (q - q.mean(-1, keepdim=True)) * torch.rsqrt(q.var(-1, keepdim=True, unbiased=False) + 1e-5)",
        "", ANOTHER, "AF201", "liger",
    ),
    Refused(
        "apex-affine",
        """
        import torch
        from torch import nn

        class Norm(nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = nn.Parameter(torch.ones(8))

            def forward(self, x):
                var = x.var(-1, keepdim=True, unbiased=False)
                return self.weight * (x - x.mean(-1, keepdim=True)) * torch.rsqrt(var + 1e-5)
        """,
        "", ANOTHER, "AF201", "apex",
    ),
    Refused(
        "apex-class-weights",
        "return F.nll_loss(F.log_softmax(q, -1), k, weight=v)",
        "", ANOTHER, "AF501", "apex",
    ),
    Refused("apex-ignored-targets", "return F.nll_loss(F.log_softmax(q, -1), k)", "", ANOTHER, "AF501", "apex"),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_the_reason_has_its_code_and_its_advice(case: Refused) -> None:
    check(refused_finding(case), case)


RULE = '''
from __future__ import annotations
from typing import TYPE_CHECKING
from autofuse.rule import Fused, Rule

if TYPE_CHECKING:
    import torch
    from autofuse import ops


class Own(Rule):
    """A norm of one's own."""

    code = "MY101"

    @staticmethod
    def before(x, factor):
        return torch.exp(torch.tanh(x)) * factor

    @staticmethod
    def after(x, factor):
        return {after}

    examples = (Fused("as written", before="import torch\\ndef f(x): return torch.tanh(x).exp() * 3\\n"),)
'''
OF_A_USERS_RULE = {
    "eps-is-none": ("ops.rms_norm(x, weight=None, eps=None)", "pass eps as a number"),
    "apex-weight": ("ops.rms_norm(x, weight=factor, eps=1e-6)", ANOTHER),
}


@pytest.mark.parametrize("code", OF_A_USERS_RULE)
def test_a_users_rule_may_need_an_argument_that_a_library_lacks(code: str, tmp_path: Path) -> None:
    after, advice = OF_A_USERS_RULE[code]
    (tmp_path / "own.py").write_text(RULE.replace("{after}", after))
    source = b"import torch\n\n\ndef f(x):\n    return torch.tanh(x).exp() * 3\n"
    (found,) = [p.finding for p in proposals(source, "f.py", rules=load_rules((tmp_path,)), target="apex")]
    assert (found.code, found.status, found.reason_code, found.advice) == ("MY101", "report", code, advice)


def test_every_reason_of_the_targets_has_a_program() -> None:
    assert {c.code for c in CASES} | set(OF_A_USERS_RULE) == {c.name for c in codes_of(libraries)}
