"""Each reason of what code runs is given for a program, with its line and its advice."""

from __future__ import annotations

import pytest

from autofuse.reasons import code_that_runs
from autofuse.reasons.table import codes_of
from tests.reasons.programs import Refused, found_in_text, name_of

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
        "rewrite it by hand where nothing changes `self.scores`",
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
def test_a_program_is_refused_for_what_other_code_does(case: Refused) -> None:
    found = found_in_text(case)
    assert found.value and f"line {found.value_line}" in found.reason
    assert case.advice in found.advice


def test_every_reason_of_the_group_is_given() -> None:
    assert {c.code for c in CASES} == {c.name for c in codes_of(code_that_runs)}
