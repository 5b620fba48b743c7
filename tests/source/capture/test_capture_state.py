"""A write in place affects every name whose value shares the memory."""

from __future__ import annotations

import pytest
import torch

from tests.source.rewriting import module_of, rewritten

HEAD = """
import torch
import torch.nn.functional as F

def doubled_(scores):
    return scores.mul_(2.0)

def attend(q, k, v, m, flag):
    s = q @ k.mT
"""
WRITES = {
    "once": "s.mul_(2.0)",
    "twice": "s.mul_(2.0)\n    s.masked_fill_(m, -1e4)",
    "twice, the second time where a flag says so": "s.mul_(2.0)\n    if flag:\n        s.masked_fill_(m, -1e4)",
    "in both branches": "if flag:\n        s.mul_(2.0)\n    else:\n        s += 1\n    s.masked_fill_(m, -1e4)",
    "in a chain": "s.mul_(2.0).masked_fill_(m, -1e4)",
    "after a part of it got a name": "r = s[0]\n    s.mul_(2.0)\n    r.masked_fill_(m, -1e4)",
    "under another name": "r = s\n    r.mul_(2.0)\n    r.masked_fill_(m, -1e4)",
    "by an index": "s.mul_(2.0)\n    s[..., 1] = -1e4",
    "by `out`": "s.mul_(2.0)\n    torch.sub(s, m.double(), out=s)",
    "in a loop": "for _ in range(2):\n        s.mul_(2.0)",
    "in a `with` block": "s.mul_(2.0)\n    with torch.no_grad():\n        s.masked_fill_(m, -1e4)",
    "in a `try` block": "s.mul_(2.0)\n    try:\n        s.masked_fill_(m, -1e4)\n    except TypeError:\n        pass",
    "by a helper": "t = doubled_(s)",
    "by a helper, which is used": "s = doubled_(s)",
    "by a function": "s.mul_(2.0)\n    F.relu(s, inplace=True)",
    "through `data`": "s.mul_(2.0)\n    s.data.mul_(3.0)",
}


@pytest.mark.parametrize("flag", [True, False])
@pytest.mark.parametrize("body", WRITES.values(), ids=WRITES)
def test_scores_that_are_overwritten_in_place_keep_their_meaning(body: str, flag: bool) -> None:
    text = f"{HEAD}    {body}\n    return F.softmax(s, dim=-1) @ v\n"
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 5, 4, dtype=torch.float64) for _ in range(3))
    m = torch.rand(5, 5) > 0.5
    before, after = (module_of(t).attend(q, k, v, m, flag) for t in (text, rewritten(text)))
    torch.testing.assert_close(before, after, rtol=1e-12, atol=1e-12)
