"""The words of a file tell whether it may replace a function of torch. A missed word would be a wrong edit."""

from __future__ import annotations

import ast

import pytest

from autofuse.source.evidence.mentions import find_mentions


@pytest.mark.parametrize(
    "text",
    [
        "def f(x, dtype: torch.dtype = torch.float32):\n    pass\n",
        "def f(\n    x: int,\n    dtype: torch.dtype = torch.float32,\n):\n    pass\n",
        "async def f(x: int | torch.Tensor = 0):\n    pass\n",
        "scores: torch.Tensor = torch.stack(rows)\n",
        "class M:\n    def __init__(self):\n        self.scores: torch.Tensor = torch.stack(rows)\n",
        "def f(x) -> torch.Tensor:\n    pass\n",
        "def f(\n    x,\n) -> torch.Tensor:\n    pass\n",
        "if x is torch.float32:\n    pass\n",
    ],
)
def test_an_annotation_replaces_nothing_in_torch(text: str) -> None:
    ast.parse(text)
    assert not find_mentions(text.encode()).patches_torch


@pytest.mark.parametrize(
    "text",
    [
        "x = torch.zeros(n, dtype=torch.long, device=d)\n",
        "x = torch.zeros(\n    n, dtype=torch.long, device=d)\n",
        "x = f(g(n), dtype=torch.long, device=d)\n",
        "def f(self, x: torch.Tensor, n: int = 0):\n    pass\n",
    ],
)
def test_an_argument_of_a_call_replaces_nothing_in_torch(text: str) -> None:
    ast.parse(text)
    assert not find_mentions(text.encode()).patches_torch


@pytest.mark.parametrize(
    "text",
    [
        "(torch.softmax, b) = f, g\n",
        "(torch.softmax, b), c = (f, g), h\n",
        "(\n    torch.softmax, b) = f, g\n",
        "(\n    a, torch.softmax) = f, g\n",
        "h(a)[0], torch.b, c = g()\n",
        "h(\n    a).b, torch.softmax, c = g(x)\n",
        "h(a); torch.softmax, c = g(x)\n",
        "h('('); torch.softmax, c = g(x)\n",
        "x = (0 for torch.softmax in g(y))\n",
        "x = [0 for a, torch.softmax in (\n    g(y))]\n",
        "h('''\n(''').a, torch.softmax, c = g(x)\n",
        "with f() as torch.softmax:\n    pass\n",
        "with f() as a, g() as torch.softmax:\n    pass\n",
        "with f() as \\\n    torch.softmax:\n    pass\n",
        "for torch.softmax in g(x):\n    pass\n",
        "torch.softmax, c = g(x)\n",
        "self.a, torch.softmax = g(x)\n",
        "self.a, b.c, torch.softmax, d = g(x)\n",
    ],
)
def test_an_assignment_between_brackets_may_replace_something_in_torch(text: str) -> None:
    ast.parse(text)
    assert find_mentions(text.encode()).patches_torch


@pytest.mark.parametrize(
    "text",
    [
        "torch.softmax = mine\n",
        "x = 1; torch.softmax = mine\n",
        "x: int = 1; torch.softmax = mine\n",
        "if fast: torch.softmax = mine\n",
        "if fast: pass\nelse: torch.softmax = mine\n",
        "if \\\n    fast: torch.softmax = mine\n",
        "if \\\r\n    fast: torch.softmax = mine\n",
        "if (fast and\n    new): torch.softmax = mine\n",
        "try: torch.softmax = mine\nfinally: torch.tanh = mine\n",
        "try: pass\nexcept: torch.softmax = mine\n",
        "def f(x: int = 0): torch.softmax = mine\n",
        "class A: torch.softmax = mine\n",
        "x, torch.softmax = 1, mine\n",
        "old = torch.softmax = mine\n",
        "match x:\n    case y: torch.softmax = mine\n",
    ],
)
def test_an_assignment_after_a_colon_may_replace_something_in_torch(text: str) -> None:
    ast.parse(text)
    assert find_mentions(text.encode()).patches_torch
