"""The message names the dtype of a loss that is wider than its logits: cross_entropy returns the logits' dtype."""

from __future__ import annotations

import pytest
import torch

from tests.source.rewriting import findings, module_of, rewritten

HEAD = "import torch\nimport torch.nn.functional as F\n\n\ndef f(x: torch.Tensor, y: torch.Tensor):\n    "
ONE_HOT = "lp = F.log_softmax(x{cast}, -1)\n    return -(F.one_hot(y, x.size(-1)){hot} * lp).sum(-1).mean()\n"
CLAUSE = "has a dtype no narrower than {}, the dtype of the loss"
# name -> the text, and the wider dtype of the loss for narrower logits
LOSSES = {
    "a one-hot in float32": (ONE_HOT.format(cast="", hot=".float()"), "float32"),
    "a one-hot in float64": (ONE_HOT.format(cast="", hot=".double()"), "float64"),
    "a one-hot in float32 by name": (ONE_HOT.format(cast="", hot=".to(torch.float32)"), "float32"),
    "a one-hot of integers": (ONE_HOT.format(cast="", hot=""), ""),
    "a one-hot in the dtype of the logits": (ONE_HOT.format(cast="", hot=".to(lp.dtype)"), ""),
    "logits in float32 themselves": (ONE_HOT.format(cast=".float()", hot=".float()"), ""),
    "the negative log likelihood": ("return F.nll_loss(F.log_softmax(x, 1), y)\n", ""),
    "that of logits in float32": ("return F.nll_loss(F.log_softmax(x.float(), 1), y)\n", ""),
}


def loss(text: str, dtype: torch.dtype) -> torch.Tensor:
    logits = torch.randn(6, 5, generator=torch.Generator().manual_seed(0)).to(dtype)
    result: torch.Tensor = vars(module_of(text))["f"](logits, torch.tensor([0, 1, 2, 3, 4, 0]))
    return result


@pytest.mark.parametrize("name", LOSSES)
def test_the_message_names_the_wider_dtype_of_a_loss(name: str) -> None:
    text, wider = HEAD + LOSSES[name][0], LOSSES[name][1]
    (finding,) = findings(text)
    assert (CLAUSE.format(wider) in finding.message) == bool(wider)
    after = rewritten(text)
    assert "cross_entropy" in after
    assert (loss(text, torch.bfloat16).dtype != loss(after, torch.bfloat16).dtype) == bool(wider)
    before, now = loss(text, torch.float64), loss(after, torch.float64)
    assert before.dtype == now.dtype
    torch.testing.assert_close(before, now, atol=1e-5, rtol=1e-5)
