"""An edit that does not remove the product of query and key reports it, because the edit saves nothing."""

from __future__ import annotations

import pytest
import torch

from tests.source.rewriting import findings, module_of, rewritten

HEAD = """
import torch
import torch.nn.functional as F


def lowest(t):
    return -torch.finfo(t.dtype).max


def f(q, k, v):
    s = q @ k.transpose(-2, -1) * 0.5
    mask = torch.ones(s.shape[-2:], device=q.device).triu(1).bool()
"""
LEFT = {
    "the number that fills is read by other scores too": (
        "    fill = lowest(s)\n    o = s.masked_fill(mask, fill).softmax(-1) @ v\n"
        "    return o, (q @ q.mT).masked_fill(mask, fill)\n"
    ),
}
GONE = {
    "the number that fills goes with the scores": (
        "    o = s.masked_fill(mask, lowest(s)).softmax(-1) @ v\n    return o, mask\n"
    ),
    "nothing else is read": "    o = s.masked_fill(mask, float('-inf')).softmax(-1) @ v\n    return o, mask\n",
}


def message(body: str) -> str:
    (finding,) = (f for f in findings(HEAD + body) if f.code == "AF101")
    return finding.message


def run(text: str) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, 5, 4, dtype=torch.float64, generator=generator) for _ in range(3))
    return list(module_of(text).f(q, k, v))


@pytest.mark.parametrize("body", LEFT.values(), ids=list(LEFT))
def test_the_message_names_a_product_that_stays(body: str) -> None:
    assert "so the scores are computed twice" in message(body)


@pytest.mark.parametrize("body", GONE.values(), ids=list(GONE))
def test_a_removed_product_is_not_reported(body: str) -> None:
    assert "computed twice" not in message(body)


@pytest.mark.parametrize("body", [*LEFT.values(), *GONE.values()], ids=[*LEFT, *GONE])
def test_results_do_not_change(body: str) -> None:
    for before, after in zip(run(HEAD + body), run(rewritten(HEAD + body)), strict=True):
        torch.testing.assert_close(after, before)
