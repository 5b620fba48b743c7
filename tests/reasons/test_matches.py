"""Each reason of the matcher has a program, with the expected line and advice."""

from __future__ import annotations

import sys

import pytest

from autofuse.reasons import matches
from autofuse.reasons.table import codes_of
from tests.reasons.programs import Refused, check, name_of, refused_finding

PROBABILITIES = "p = F.softmax(q @ k.mT, -1)\n"

CASES = [
    Refused("value-returned", PROBABILITIES + "return p @ v, p", "return p @ v, p", "return `p` only if"),
    Refused("value-stored", PROBABILITIES + "self.p = p\nreturn p @ v", "self.p = p", "store `p` only if"),
    Refused("value-yielded", PROBABILITIES + "yield p.mean()\nyield p @ v", "yield p.mean()", "pass `p` on only if"),
    Refused("value-tested", PROBABILITIES + "assert p.max() <= 1\nreturn p @ v", "assert", "look at `p` only if"),
    Refused(
        "value-read-by-function",
        PROBABILITIES + "x.append(lambda: p)\nreturn p @ v",
        "p = F.softmax", "compute what the function needs",
    ),
    Refused("value-written-to-memory", PROBABILITIES + "x[0] = p\nreturn p @ v", "x[0] = p", "put `p` there only if"),
    Refused(
        "value-exported",
        "import torch\nq, k, v = torch.randn(3, 2, 4, 8)\np = torch.softmax(q @ k.mT, -1)\nout = p @ v",
        "out = p @ v", "move the computation to a function",
    ),
    Refused(
        "value-carried",
        """
        p = None
        for _ in range(3):
            if p is not None:
                q = q + p.mean()
            p = F.softmax(q @ k.mT, -1)
            v = p @ v
        return v
        """,
        "v = p @ v", "compute `p` again in each iteration",
    ),
    Refused("value-looked-at", PROBABILITIES + "p[0]\nreturn p @ v", "p[0]", "look at `p` only if"),
    Refused("value-seen", PROBABILITIES + "x.update(locals())\nreturn p @ v", "locals()", "name the values"),
    Refused("value-used-by-call", PROBABILITIES + "print(p)\nreturn p @ v", "print(p)", "use `p` only if"),
    Refused(
        "value-hooked",
        "t = k.mT\nt.register_hook(print)\nreturn F.softmax(q @ t, -1) @ v",
        "t.register_hook", "remove the hook",
    ),
    Refused(
        "operand-from-removed",
        PROBABILITIES + "return p @ (v + p.mean())",
        "p = F.softmax", "compute the operand from the inputs",
    ),
    Refused(
        "operand-written",
        "keys = k.clone()\np = F.softmax(q @ keys.mT, -1)\nkeys.add_(1)\nreturn p @ v + keys.sum()",
        "keys.add_(1)", "assign the changed tensor to a new name",
    ),
    Refused(
        "operand-passed-on",
        "keys = k.clone()\np = F.softmax(q @ keys.mT, -1)\nkeys.random_(2)\nreturn p @ v + keys.sum()",
        "keys.random_(2)", "move that call before or after",
    ),
    Refused(
        "result-written",
        PROBABILITIES + "out = p @ v\nout += v\nreturn out",
        "return out", "make a new tensor instead",
    ),
    Refused(
        "step-writes",
        "s = q @ k.mT\nt = s.view(4, 4)\nt.masked_fill_(q > 0, float('-inf'))\nreturn F.softmax(t, -1) @ v",
        "t.masked_fill_", "use the operator that makes a new tensor", "AF102",
    ),
    Refused(
        "other-arguments",
        "p = (q @ k.mT).softmax(-2)\nreturn p @ v",
        "softmax(-2)", "write `dim=-1`, then AF101 applies",
    ),
    Refused(
        "step-before",
        "s = (q @ k.mT).clamp(min=-5.0)\nreturn F.softmax(s, -1) @ v",
        "clamp", "compute it after the whole computation",
    ),
    Refused(
        "part-in-block",
        PROBABILITIES + "for _ in range(3):\n    v = p @ v\nreturn v",
        "p = F.softmax", "move all of it into that block",
    ),
    Refused(
        "rule-declined",
        "scale = v.sum(-1, keepdim=True).mT\nreturn F.softmax(q @ k.mT * scale, -1) @ v",
        "scale = ", "multiply the query by `scale` if it is the same for all keys, then AF101 applies",
    ),
    Refused(
        "rule-unknown",
        "import torch\nimport torch.nn.functional as F\n\ndef f(x, y, w, b):\n    total = y + F.dropout(x, 0.1)\n"
        "    return F.layer_norm(total, (8,), w, b), total",
        "", "fuse the live model with `autofuse.optimize`, which sees the tensors", "AF203",
    ),
    Refused(
        "arguments-starred",
        "import torch\n\ndef f(model, options):\n    return torch.optim.AdamW(model.parameters(), **options)",
        "", "add `fused=True` where `**options` is built", "AF601",
    ),
]  # fmt: skip
ELSEWHERE = {"value-behind-break"}  # tests/integrations/test_dynamo.py
ALIAS = Refused(
    "value-read-by-statement",
    PROBABILITIES + "type P = p\nreturn p @ v",
    "type P", "move that statement to a separate function",
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_the_reason_has_its_code_its_line_and_its_advice(case: Refused) -> None:
    check(refused_finding(case), case)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="every statement of Python 3.11 is understood")
def test_a_statement_that_autofuse_cannot_follow_may_read_everything() -> None:
    check(refused_finding(ALIAS), ALIAS)


def test_every_reason_of_the_matcher_has_a_program() -> None:
    assert {c.code for c in (*CASES, ALIAS)} | ELSEWHERE == {c.name for c in codes_of(matches)}
