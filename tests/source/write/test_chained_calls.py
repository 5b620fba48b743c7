"""A long call and the methods after it become two statements, and the second reads the result of the first."""

from __future__ import annotations

import pytest
import torch

from tests.source.rewriting import assert_same, rewritten, source

HEAD = source("""
    import torch
    import torch.nn.functional as F
    from torch import nn


    class Norm(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.weight_of_channels = nn.Parameter(torch.rand(width, dtype=torch.float64))
            self.variance_epsilon_of_the_norm = 1e-6

        def forward(self, states: torch.Tensor):
            kept = states
            states = states.to(torch.float64)
            variance = states.pow(2).mean(-1, keepdim=True)
            states = states * torch.rsqrt(variance + self.variance_epsilon_of_the_norm)
            {rest}
            return states
""")
PRODUCT = "(self.weight_of_channels.to(torch.float64) * states)"
RESTS = {  # the statement after the norm -> the name that holds the result of the call
    f"states = {PRODUCT}.to(kept.dtype)": "states",
    f"states = {PRODUCT}.to(kept.dtype) + kept": "states",
    f"states = kept + {PRODUCT}.to(kept.dtype)": "states",
    f"states = {PRODUCT}.type_as(kept).add(kept).to(kept.dtype)": "states",
}


@pytest.mark.parametrize("rest", RESTS)
def test_the_call_is_assigned_to_the_name_of_its_statement(rest: str) -> None:
    before = HEAD.replace("{rest}", rest)
    after = rewritten(before)
    assert f"        {RESTS[rest]} = F.rms_norm(\n" in after and "output" not in after
    assert_same(before, after, "Norm", [torch.randn(2, 3, 8, dtype=torch.float64)], 8)


def test_the_name_is_another_one_if_the_rest_of_the_statement_reads_it() -> None:
    before = HEAD.replace("{rest}", f"kept = {PRODUCT}.to(kept.dtype) + kept\n        states = kept * 2")
    after = rewritten(before)
    assert "        output = F.rms_norm(\n" in after and "kept = output.to(kept.dtype) + kept" in after
    assert_same(before, after, "Norm", [torch.randn(2, 3, 8, dtype=torch.float64)], 8)
