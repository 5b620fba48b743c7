"""Programs that change a name that an edit reads: {kind of name} x {way of change} x {kind of edit}.

A `Part` is a class that reads one name, with two replacements for that name: one with another meaning, and one with
the same meaning.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.source.evidence.ways_of_change import Way

HEAD = """\
import math
import sys
from unittest import mock
import torch
from torch import nn
import torch.nn.functional as F
"""


@dataclass(frozen=True)
class Part:
    """A class `Base` that reads `name`. `other` and `same` are expressions that replace the value of `name`."""

    name: str
    base: str
    read: str
    other: str
    same: str
    inputs: str = "(2, 5, 4), (2, 5, 4), (2, 5, 4)"
    kind: str = "child"  # child, method, attribute, helper
    target: str = "torch"

    @property
    def id(self) -> str:
        return self.name


PARTS = (
    Part(
        "a softmax in attention",
        """
class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.sm = nn.Softmax(dim=-1)

    def forward(self, q, k, v):
        return self.sm(q @ k.transpose(-2, -1)) @ v
""",
        "sm", "nn.Softmax(dim=-2)", "nn.Softmax(dim=-1)",
    ),
    Part(
        "a dropout in attention",
        """
class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.dr = nn.Dropout(0.0)

    def forward(self, q, k, v):
        return self.dr((q @ k.transpose(-2, -1)).softmax(-1)) @ v
""",
        "dr", "nn.Tanh()", "nn.Dropout(0.0)",
    ),
    Part(
        "a softmax of the project's own in attention",
        """
class Own(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=-1)


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.own = Own()

    def forward(self, q, k, v):
        return self.own(q @ k.transpose(-2, -1)) @ v
""",
        "own", "nn.Softmax(dim=-2)", "Own()",
    ),
    Part(
        "the scores of attention",
        """
class Base(nn.Module):
    def scores(self, q, k):
        return q @ k.transpose(-2, -1) / 2

    def forward(self, q, k, v):
        return self.scores(q, k).softmax(-1) @ v
""",
        "scores", "lambda self, q, k: -torch.cdist(q, k)", "",
        kind="method",
    ),
    Part(
        "the scale of attention",
        """
class Base(nn.Module):
    scale = 0.5

    def forward(self, q, k, v):
        return (q @ k.transpose(-2, -1) * self.scale).softmax(-1) @ v
""",
        "scale", "torch.linspace(0.5, 1.0, 5, dtype=torch.float64)", "0.5", kind="attribute",
    ),
    Part(
        "the scale of attention, set by __init__",
        """
class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = 4 ** -0.5

    def forward(self, q, k, v):
        return (q @ k.transpose(-2, -1) * self.scale).softmax(-1) @ v
""",
        "scale", "torch.linspace(0.5, 1.0, 5, dtype=torch.float64)", "8 ** -0.5", kind="attribute",
    ),
    Part(
        "a helper of the file in attention",
        """
def scores(q, k):
    return q @ k.transpose(-2, -1) / 2


class Base(nn.Module):
    def forward(self, q, k, v):
        return scores(q, k).softmax(-1) @ v
""",
        "scores", "lambda q, k: -torch.cdist(q, k)", "", kind="helper",
    ),
    Part(
        "the norm of a norm",
        """
class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def mean_square(self, x):
        return x.pow(2).mean(-1, keepdim=True)

    def forward(self, x):
        return x * torch.rsqrt(self.mean_square(x) + 1e-6) * self.weight
""",
        "mean_square", "lambda self, x: x.abs().mean(-1, keepdim=True)", "", "(2, 5, 4)", "method",
    ),
    Part(
        "the eps of a norm",
        """
class Base(nn.Module):
    eps = 1e-6

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight
""",
        "eps", "torch.linspace(0.5, 1.0, 4, dtype=torch.float64)", "1e-5", "(2, 5, 4)", "attribute",
    ),
    Part(
        "a part of an activation",
        """
class Base(nn.Module):
    def curve(self, x):
        return torch.erf(x / math.sqrt(2.0))

    def forward(self, x):
        return 0.5 * x * (1.0 + self.curve(x))
""",
        "curve", "lambda self, x: torch.tanh(x)", "", "(2, 5, 4)", "method",
    ),
    Part(
        "the gate of an activation",
        """
class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Sigmoid()

    def forward(self, x):
        return x * self.gate(x)
""",
        "gate", "nn.Tanh()", "nn.Sigmoid()", "(2, 5, 4)",
    ),
    Part(
        "a helper of the file in an activation",
        """
def curve(x):
    return torch.erf(x / math.sqrt(2.0))


def gelu(x):
    x = x / 1
    return 0.5 * x * (1.0 + curve(x))


class Base(nn.Module):
    def forward(self, x):
        return gelu(x)
""",
        "curve", "lambda x: torch.tanh(x)", "", "(2, 5, 4)", "helper",
    ),
    Part(
        "the activation of an MLP",
        """
class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 4)
        self.act = nn.GELU()

    def forward(self, x):
        return self.b(self.act(self.a(x)))
""",
        "act", "nn.ReLU()", "nn.GELU()", "(2, 5, 4)", target="autofuse",
    ),
    Part(
        "a layer of a Sequential",
        """
class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Softmax(dim=-1))

    def forward(self, q, k, v):
        return self.net(q @ k.transpose(-2, -1)) @ v
""",
        "net", "nn.Sequential(nn.Softmax(dim=-2))", "nn.Sequential(nn.Softmax(dim=-1))",
    ),
)  # fmt: skip


def fits(part: Part, way: Way) -> bool:
    """Whether a way of change applies to a kind of part."""
    of_class = part.kind == "attribute" and f"    {part.read} = " in part.base
    one = part.kind == "child" and part.base.count("nn.") < 5 and "Sequential" not in part.base
    kinds = {part.kind, *(["attribute class"] if of_class else []), *(["child one"] if one else [])}
    return bool(kinds & set(way.kinds))
