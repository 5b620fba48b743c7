"""Each reason about other code has a program, with the expected line and advice."""

from __future__ import annotations

import pytest

from autofuse.reasons import code_that_runs
from autofuse.reasons.table import codes_of
from tests.reasons.programs import Refused, name_of, refused_finding

CASES = [
    Refused(
        "other-code-runs",
        """
        import torch
        from torch import nn


        class Attention(nn.Module):
            def scores(self, q, k):
                return q @ k.mT

            def forward(self, q, k, v):
                return self.scores(q, k).softmax(-1) @ v


        class ByDistance(Attention):
            def scores(self, q, k):
                return -torch.cdist(q, k)
        """,
        "class ByDistance",
        "if nothing changes `self.scores` in your program, rewrite it by hand",
    ),
    Refused(
        "other-meaning",
        """
        import torch
        from torch._decomp import register_decomposition


        @register_decomposition(torch.ops.aten.silu)
        def silu(x: torch.Tensor) -> torch.Tensor:
            return x * torch.sigmoid(x)
        """,
        "@register_decomposition",
        "leave it as it is",
        "AF302",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_the_refusal_names_the_other_code(case: Refused) -> None:
    found = refused_finding(case)
    assert found.value and f"line {found.value_line}" in found.reason
    assert case.advice in found.advice


def test_every_reason_of_the_group_has_a_program() -> None:
    assert {c.code for c in CASES} == {c.name for c in codes_of(code_that_runs)}
