"""Which assignments to attributes count for a class, and which certainly concern another one or another name."""

from __future__ import annotations

import ast

import pytest

from autofuse.source.evidence.changes import find_changes
from tests.source.rewriting import findings

ATTENTION = """
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.softmax = nn.Softmax(dim=-1)

    def forward(self, q, k, v):
        return self.softmax(q @ k.transpose(-2, -1) * 0.5) @ v


"""
OTHER_CODE = {  # code in the same file: whether it may change the attention
    "a dict that sets what it is given": (
        "class Output(dict):\n    def __setattr__(self, name, value):\n        super().__setattr__(name, value)\n",
        False,
    ),
    "the same with arguments of super": (
        "class D(dict):\n    def __setattr__(self, name, value):\n        super(D, self).__setattr__(name, value)\n",
        False,
    ),
    "a dict that deletes": (
        "class Output(dict):\n    def __delattr__(self, name):\n        super().__delattr__(name)\n",
        False,
    ),
    "names of a list": (
        "def prepare(model, cache):\n    names = ['keys', 'values']\n    for name in names:\n"
        "        setattr(model, name, cache)\n",
        False,
    ),
    "names of a list that has the name": (
        "def prepare(model, cache):\n    for name in ('keys', 'softmax'):\n        setattr(model, name, cache)\n",
        True,
    ),
    "names of a list that grows": (
        "def prepare(model, cache):\n    names = ['keys']\n    names.append(cache.name)\n    for name in names:\n"
        "        setattr(model, name, cache)\n",
        True,
    ),
    "names of a list that are computed": (
        "def prepare(model, cache):\n    for name in ['keys', cache.name]:\n        setattr(model, name, cache)\n",
        True,
    ),
    "a name that the loop changes": (
        "def f(m, cache):\n    for name in ['keys']:\n        name = cache\n        setattr(m, name, cache)\n",
        True,
    ),
    "a subclass that sets another value": (
        "class L(Attention):\n    def __setattr__(self, name, value):\n        super().__setattr__(name, f(value))\n",
        True,
    ),
    "a metaclass": (
        "class Meta(type):\n    def __setattr__(cls, name, value):\n        super().__setattr__(name, value)\n",
        True,
    ),
    "a result of a call": ("def change(name, value):\n    find().__setattr__(name, value)\n", True),
    "an unbound method": ("def change(model, name, value):\n    find().__setattr__(model, name, value)\n", True),
}


@pytest.mark.parametrize("name", OTHER_CODE)
def test_an_edit_counts_only_changes_that_may_concern_its_class(name: str) -> None:
    code, concerned = OTHER_CODE[name]
    (finding,) = (f for f in findings(ATTENTION + code) if f.code == "AF101")
    assert (finding.status == "declined") == concerned, finding.reason
    assert finding.status in ("safe", "declined")


def test_each_string_of_the_list_is_a_name() -> None:
    changes = find_changes(ast.parse(OTHER_CODE["names of a list"][0]))
    assert [c.name for c in changes] == ["keys", "values"]
