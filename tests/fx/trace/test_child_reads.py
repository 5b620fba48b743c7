"""A child whose class a forward only tests: its replacement is noticed.

A table of the ways to test it. Each row runs before and after the change, in float64.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn

import autofuse

# name: (the expression in forward, the change of `m`)
ROWS = {
    "isinstance": ("1.0 if isinstance(self.a, nn.Identity) else 3.0", "m.a = nn.Linear(2, 2)"),
    "isinstance, with a replacement that computes something else": (
        "1.0 if isinstance(self.a, nn.Identity) else 3.0",
        "m.a = nn.GELU()",
    ),
    "type": ("1.0 if type(self.a) is nn.Identity else 3.0", "m.a = nn.ReLU()"),
    "__class__": ("1.0 if self.a.__class__ is nn.Identity else 3.0", "m.a = nn.ReLU()"),
    "match": ("kind(self.a)", "m.a = nn.ReLU()"),
    "isinstance, in a helper": ("tested(self.a)", "m.a = nn.ReLU()"),
    "isinstance, of a local name": ("tested_locally(self)", "m.a = nn.ReLU()"),
    "getattr": ("1.0 if isinstance(getattr(self, 'a'), nn.Identity) else 3.0", "m.a = nn.ReLU()"),
    "is None": ("3.0 if self.a is None else 1.0", "m.a = None"),
    "is not None": ("1.0 if self.a is not None else 3.0", "m.a = None"),
    "truth": ("1.0 if self.a else 3.0", "m.a = None"),
    "hasattr": ("1.0 if hasattr(self, 'a') else 3.0", "del m.a"),
    "method of the child": ("self.c.value()", "m.c = Other()"),
    "constant of the child's class": ("self.c.t", "m.c = Other()"),
    "in a list": ("1.0 if isinstance(self.all[0], nn.Identity) else 3.0", "m.all[0] = nn.ReLU()"),
    "loop over a list": ("sum(1.0 if isinstance(a, nn.Identity) else 3.0 for a in self.all)", "m.all[1] = nn.ReLU()"),
    "in a dict": ("1.0 if isinstance(self.named['a'], nn.Identity) else 3.0", "m.named['a'] = nn.ReLU()"),
    "of a child": ("1.0 if isinstance(self.block.a, nn.Identity) else 3.0", "m.block.a = nn.ReLU()"),
    "missing attribute of a parameter": ("getattr(self.w, 'lr_scale', 1.0)", "m.w.lr_scale = 3.0"),
    "missing attribute of a buffer": ("getattr(self.b, 'scale', 1.0)", "m.b.scale = 3.0"),
    "True for 1": ("1.0 if self.n[0] is not True else 3.0", "m.n[0] = True"),
    "order of a dict": ("1.0 if next(iter(self.d)) == 'a' else 3.0", "m.d['a'] = m.d.pop('a')"),
    "-0.0 for 0.0": ("2.0 + math.copysign(1.0, self.zero)", "m.zero = -0.0"),
    "subclass of float": ("self.own.k", "type(m.own).k = 3.0"),
    "one more name in vars": ("float(len([n for n in vars(self) if n[:2] == 'x_']) + 1)", "m.x_a = 1"),
    "one more name in dir": ("float(sum(n[:2] == 'x_' for n in dir(self)) + 1)", "m.x_a = 1"),
}
TEXT = """
import math
import torch
from torch import nn

class Own(float):
    k = 1.0

class Child(nn.Module):
    t = 1.0
    def value(self): return 1.0

class Other(nn.Module):
    t = 3.0
    def value(self): return 3.0

def tested(a): return 1.0 if isinstance(a, nn.Identity) else 3.0

def tested_locally(m):
    a = m.a
    return 1.0 if isinstance(a, nn.Identity) else 3.0

def kind(a):
    match a:
        case nn.Identity(): return 1.0
    return 3.0

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Identity()

class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.linspace(0.5, 1.5, 8))
        self.register_buffer("b", torch.ones(8))
        self.a, self.c, self.block = nn.Identity(), Child(), Block()
        self.all = nn.ModuleList([nn.Identity(), nn.Identity()])
        self.named = nn.ModuleDict({"a": nn.Identity()})
        self.n, self.d, self.zero, self.own = [1, 2], {"a": 1, "b": 2}, 0.0, Own(2.0)
    def forward(self, x):
        scale = READ
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.w * self.b * scale

def change(m):
    CHANGE
"""
REFUSED = frozenset({"type", "one more name in vars", "one more name in dir"})


def namespace_of(name: str) -> dict[str, Any]:
    read, change = ROWS[name]
    namespace: dict[str, Any] = {"__name__": "child_reads"}
    text = TEXT.replace("READ", read).replace("CHANGE", change)
    exec(compile(text, "child_reads.py", "exec", dont_inherit=True), namespace)
    return namespace


def run(name: str, fused: bool) -> tuple[list[torch.Tensor], int]:
    """Two results before the change, two after it, and the number of fused sites."""
    namespace = namespace_of(name)
    torch.manual_seed(0)
    model, x = namespace["M"]().double(), torch.randn(2, 4, 8, dtype=torch.float64)
    count = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if fused:
            autofuse.optimize(model, x, tune=False)
            count = sum(site.status.endswith("fused") for site in autofuse.report(model).sites)
        results = [model(x) for _ in range(2)]
        namespace["change"](model)
        return results + [model(x) for _ in range(2)], count


@pytest.mark.parametrize("name", ROWS)
def test_a_replaced_child_is_noticed(name: str) -> None:
    before, _ = run(name, fused=False)
    after, count = run(name, fused=True)
    assert not torch.allclose(before[0], before[-1], atol=1e-6), "the row changes nothing"
    torch.testing.assert_close(after, before, atol=1e-9, rtol=1e-9)
    assert bool(count) == (name not in REFUSED)


def test_a_child_that_is_only_called_may_be_replaced() -> None:
    class M(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.w = nn.Linear(8, 8), nn.Parameter(torch.linspace(0.5, 1.5, 8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.a(x)
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.w

    model, x = M(), torch.randn(2, 8)
    autofuse.optimize(model, x, tune=False)
    model(x)
    model.a = nn.Tanh()  # type: ignore[assignment]
    expected = torch.tanh(x)
    expected = expected * torch.rsqrt(expected.pow(2).mean(-1, keepdim=True) + 1e-5) * model.w
    torch.testing.assert_close(model(x), expected)
    assert "guard that failed" not in str(autofuse.report(model))
