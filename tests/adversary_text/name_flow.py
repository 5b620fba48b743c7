"""Random programs in which names are bound again between the steps of a hand-written computation.

All tensors have one shape, so every name may hold every tensor: `k = v` and `q, v = v, q` run, and a wrong operand
shows in the numbers only. `python -m tests.adversary_text.name_flow [COUNT] [FIRST]` runs them by hand.
"""

from __future__ import annotations

import random
import sys
import textwrap
from dataclasses import dataclass

import torch
from torch import Tensor

from tests.source.rewriting import module_of, rewritten

HEAD = """\
import contextlib
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def helper(z):
    return z * 1.5


class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.n = 1
        self.flag = True
        self.fc = nn.Linear(4, 4)

    def two(self, z):
        return z * 2

    def forward(self, q, k, v):
"""
FORMS = (
    ("s = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))", "w = torch.softmax(s, dim=-1)", "o = w @ v"),
    ("s = torch.matmul(q, k.transpose(-2, -1)) * 0.5", "s = s + v", "w = s.softmax(-1)", "o = torch.matmul(w, v)"),
    ("q = q * 0.5", "s = q @ k.mT", "s = s.masked_fill(v > 0.5, float('-inf'))", "w = F.softmax(s, -1)", "o = w @ v"),
    ("s = q.pow(2).mean(-1, keepdim=True)", "w = torch.rsqrt(s + 1e-6)", "o = q * w"),
    ("s = q.mean(-1, True)", "w = q.var(-1, False, True)", "o = (q - s) / torch.sqrt(w + 1e-5)"),
    ("s = torch.sigmoid(q)", "o = q * s"),
    ("s = torch.erf(q / math.sqrt(2.0))", "w = 1 + s", "o = 0.5 * q * w"),
    ("s = q @ k.mT * 0.5", "s = 5.0 * torch.tanh(s / 5.0)", "w = s.softmax(-1)", "o = w @ v"),
)
STATEMENTS = tuple(
    """
    A = B | A, B = B, A | A = A * 2 | A = A * 0.5 | A = A + B | A = B.clone() | n = A.sum() | A = B.mul(1)
    A: Tensor = B
    if self.flag:\\n    A = B | if self.flag:\\n    A = B\\nelse:\\n    A = C | A = B if self.n > 0 else C
    for _ in range(2):\\n    A = A * 0.5 | for A in (B, C):\\n    pass | while True:\\n    A = B\\n    break
    with contextlib.nullcontext():\\n    A = B | with contextlib.nullcontext(B) as A:\\n    pass
    try:\\n    A = B\\nfinally:\\n    pass | match B:\\n    case A:\\n        pass | if (A := B).sum() > 0:\\n    pass
    A = [B, C][1] | A = (B, C)[0] | A = {'x': B}['x'] | A = [z for z in (B, A)][0] | A = torch.stack([A, B])[1]
    A = helper(B) | A = self.two(B) | A = self.fc(B) | A = (lambda z: z * 2)(C) | self.x = A | self.x = B\\nA = self.x
    z = A\\nA = B\\nB = z | del A\\nA = B | A = B = C | A = B.transpose(-1, -2) | A = B[:, :] | A = B.view(2, 4, 4)
    def inner(z=A):\\n    return z * B.mean()\\nA = inner(C) | A = B.clone().mul_(2) | A = B.clone()\\nA.add_(C)
    y = B.clone()\\nA = y\\ny.mul_(0.5) | A = B * 1\\nA.mul_(3) | A = B.clone().transpose(-1, -2)\\nA[0] = 0.25
    """.strip()
    .replace("\n", " | ")
    .split(" | ")
)
RESULTS = ("o", "o, q, k, v", "o, v", "o + q")
TOLERANCE = 1e-9  # of a few dozen roundings in float64


@dataclass(frozen=True)
class Outcome:
    """The outputs and all gradients of one run."""

    outputs: tuple[Tensor, ...]
    gradients: tuple[Tensor | None, ...]


def random_text(number: int) -> str:
    """The program with this number."""
    drawn = random.Random(number)
    names, lines = ["q", "k", "v"], list[str]()
    for step in drawn.choice(FORMS):
        lines += [_statement(drawn, names) for _ in range(drawn.choice((0, 0, 1, 1, 2)))] + [step]
        name = step.partition(" = ")[0]
        names += [name] * (name not in (*names, "s") and drawn.random() < 0.3)
    lines += [_statement(drawn, names) for _ in range(drawn.choice((0, 0, 1)))]
    return HEAD + textwrap.indent("\n".join([*lines, f"return {drawn.choice(RESULTS)}"]), " " * 8) + "\n"


def _statement(drawn: random.Random, names: list[str]) -> str:
    text = drawn.choice(STATEMENTS).strip().replace("\\n", "\n")
    for place in "ABC":
        text = _with_name(text, place, drawn.choice(names))
    return text


def _with_name(text: str, place: str, name: str) -> str:
    return "".join(name if c == place and not _inside_word(text, i) else c for i, c in enumerate(text))


def _inside_word(text: str, at: int) -> bool:
    return text[at - 1 : at].isalnum() or text[at + 1 : at + 2].isalnum()


def run(text: str) -> Outcome:
    """Runs a program on the same random tensors each time."""
    made = torch.Generator().manual_seed(0)
    given = [torch.randn(2, 4, 4, dtype=torch.float64, generator=made).requires_grad_() for _ in range(3)]
    torch.manual_seed(1)
    model = module_of(text).M().double()
    found = model(*given)
    outputs = found if isinstance(found, tuple) else (found,)
    total = sum((x * torch.linspace(0.1, 1, x.numel(), dtype=x.dtype).view_as(x)).sum() for x in outputs)
    leaves = [*given, *model.parameters()]
    return Outcome(outputs, torch.autograd.grad(total, leaves, allow_unused=True))  # type: ignore[arg-type]


def changes(text: str) -> list[str]:
    """What the edits of a program change; empty if it does not run unchanged."""
    try:
        before = run(text)
    except (RuntimeError, UnboundLocalError):
        return []
    if any(x.isnan().any() for x in before.outputs):  # a row without a key, which becomes zero
        return []
    found = []
    for unsafe in (False, True):
        after = rewritten(text, unsafe=unsafe)
        if after != text and (why := _difference(before, after)):
            found.append(f"{'unsafe' if unsafe else 'safe'}: {why}\n{text[len(HEAD) :]}\n{after}")
    return found


def _difference(before: Outcome, text: str) -> str:
    try:
        after = run(text)
    except Exception as error:  # whatever the edit breaks
        return f"{type(error).__name__}: {error}"
    for kind, ones, others in (
        ("outputs", before.outputs, after.outputs),
        ("gradients", before.gradients, after.gradients),
    ):
        for one, other in zip(ones, others, strict=True):
            a, b = (torch.zeros(1, dtype=torch.float64) if t is None else t for t in (one, other))
            if not torch.allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True):
                return f"other {kind}"
    return ""


if __name__ == "__main__":
    count, first = (*map(int, sys.argv[1:]), 200, 0)[:2]
    for number in range(first, first + count):
        for change in changes(random_text(number)):
            print(f"program {number}, {change}", flush=True)
