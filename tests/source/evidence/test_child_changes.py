"""An edit notices that a child module is changed in place. Changes of weights and of the training mode are allowed."""

from __future__ import annotations

import pytest
import torch

from tests.source.rewriting import findings, module_of, rewritten

BASE = """\
import torch
from torch import nn


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.sm = nn.Softmax(dim=-1)
        self.drop = nn.Dropout(0.0)
        self.out = nn.Linear(4, 4)

    def forward(self, q, k, v):
        return self.out(self.drop(self.sm(q @ k.transpose(-2, -1) * 0.5)) @ v)


class Other(nn.Module):
    def __init__(self):
        super().__init__()
        self.sm = nn.Softmax(dim=-1)


def made():
    m = Base()
"""
# name -> a change of `m`, and whether its attention then computes another result.
CHANGES = {
    "a forward is assigned": ("m.sm.forward = lambda x: x.relu()", True),
    "a dimension is assigned": ("m.sm.dim = -2", True),
    "by setattr": ('setattr(m.sm, "dim", -2)', True),
    "by setattr of a name that is given": ("for name in ('dim',):\n        setattr(m.sm, name, -2)", True),
    "by an alias": ("child = m.sm\n    child.dim = -2", True),
    "by get_submodule": ('m.get_submodule("sm").dim = -2', True),
    "by getattr": ('getattr(m, "sm").dim = -2', True),
    "of a kind": (
        "for child in m.modules():\n        if isinstance(child, nn.Softmax):\n            child.dim = -2",
        True,
    ),
    "a class is assigned": ("m.sm.__class__ = nn.Sigmoid", True),
    "of another kind": (
        "for child in m.modules():\n        if isinstance(child, nn.LeakyReLU):\n            child.inplace = True",
        False,
    ),
    "of another class": ("Other().sm.dim = -2", False),
    "a weight": ("m.out.weight = nn.Parameter(torch.eye(4))", False),
    "the mode": ("m.drop.training = False", False),
    "the rate of a dropout that is passed on": ("m.drop.p = 0.25\n    m.eval()", False),
    "a name of one's own": ("m.sm.note = 3", False),
}


def result(text: str) -> torch.Tensor:
    torch.manual_seed(0)
    net = vars(module_of(text))["made"]()
    computed: torch.Tensor = net(*(torch.randn(2, 3, 5, 4) for _ in range(3)))
    return computed


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_a_child_in_place_is_noticed(name: str) -> None:
    change, concerned = CHANGES[name]
    text = f"{BASE}    {change}\n    return m\n"
    statuses = [f.status for f in findings(text) if f.code == "AF101"]
    assert statuses == (["declined"] if concerned else ["safe"])
    torch.testing.assert_close(result(text), result(rewritten(text)))
