"""What only the removed code needed goes, the names of the code stay, and the result is the same."""

from __future__ import annotations

import itertools

import pytest
import torch

from tests.source.rewriting import module_of, rewritten, source

HEAD = "import torch\nimport torch.nn.functional as F\n\n\n"
PROGRAMS = {  # function `f(x, y, a, b)` -> a text that the edits leave, and one that they do not
    "a value whose method is called": (
        source("""
            def f(x: torch.Tensor, y: torch.Tensor, a=None, b=None):
                x1, x2 = x.chunk(2, dim=-1)
                rotated = torch.cat([-x2, x1], dim=-1)
                return (x.double() * y + rotated.double() * y).to(x.dtype)
        """),
        "return ops.rotary(x.double(), y, y).to(x.dtype)",
        "rotated",
    ),
    "a name that is bound again by removed statements": (
        source("""
            def f(x: torch.Tensor, y: torch.Tensor, a=None, b=None):
                scores = x @ y.transpose(-2, -1)
                scores = scores / 4.0
                if a is not None:
                    scores = scores + a
                if b is not None:
                    scores = scores + b
                return F.softmax(scores, dim=-1).cumsum(-1)
        """),
        "scores = x @ y.transpose(-2, -1)\n",
        "operand",
    ),
    "an optional mask with an optional bias on a long line": (
        source("""
            def f(x: torch.Tensor, y: torch.Tensor, a=None, b=None):
                attention_mask_of_all_keys, bias_of_all_relative_positions = a, b
                scores = x @ y.transpose(-2, -1)
                scores = scores / 4.0
                if bias_of_all_relative_positions is not None:
                    scores = scores + bias_of_all_relative_positions
                if attention_mask_of_all_keys is not None:
                    scores = scores + attention_mask_of_all_keys
                return F.softmax(scores, dim=-1).cumsum(-1)
        """),
        "ops.masked_softmax",
        "F.softmax",
    ),
    "a name for a number": (
        source("""
            def f(x: torch.Tensor, y: torch.Tensor, a=None, b=None):
                eps = 1e-3
                variance = x.pow(2).mean(-1, keepdim=True)
                return x * torch.rsqrt(variance + eps) + y
        """),
        "eps=eps",
        "variance",
    ),
    "a second name of an argument": (
        source("""
            def f(x: torch.Tensor, y: torch.Tensor, a=None, b=None):
                states = x
                scores = states @ y.transpose(-2, -1) * 0.5
                return scores.softmax(-1) @ y
        """),
        "F.scaled_dot_product_attention(states, y, y, scale=0.5)",
        "scores",
    ),
    "a statement that stays binds the name again": (
        source("""
            def f(x: torch.Tensor, y: torch.Tensor, a=None, b=None):
                scores = x @ y.transpose(-2, -1)
                kept = scores / 4.0
                scores = y.sum() * 2
                return F.softmax(kept if a is None else kept + a, dim=-1).cumsum(-1) * scores
        """),
        "scores = y.sum() * 2",
        "F.softmax",
    ),
}


def results(text: str) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, y, a, b = (torch.randn(2, 3, 4, 4, dtype=torch.float64, generator=generator) for _ in range(4))
    f = module_of(text).f
    found = []
    for mask, bias in itertools.product((None, a), (None, b)):
        given = [t.clone().requires_grad_() for t in (x, y)]
        output = f(*given, mask, bias)
        found += [output, *torch.autograd.grad(output.square().sum(), given)]
    return found


@pytest.mark.parametrize("name", PROGRAMS)
def test_only_what_is_needed_stays(name: str) -> None:
    program, left, gone = PROGRAMS[name]
    after = rewritten(HEAD + program)
    assert left in after and gone not in after, after
    for one, other in zip(results(HEAD + program), results(after), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)
