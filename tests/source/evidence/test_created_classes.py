"""A call that creates a class is read as the equivalent class statement; an unknown body may override anything."""

from __future__ import annotations

import ast

import pytest

from autofuse.source.evidence.created_classes import created_class
from tests.source.rewriting import findings, module_of, rewritten

BASE = """\
import types

import torch
from torch import nn


class Base(nn.Module):
    def weigh(self, s):
        return s.softmax(-1)

    def forward(self, q, k, v):
        return self.weigh(q @ k.transpose(-2, -1) * 0.5) @ v


def hard(self, s):
    return s.relu()


"""
# How `Made` is created, and whether it overrides `weigh`.
CREATIONS = {
    "type with a method": ('Made = type("Made", (Base,), {"weigh": hard})', True),
    "type with a lambda": ('Made = type("Made", (Base,), {"weigh": lambda self, s: s.relu()})', True),
    "type with keywords": ('Made = type("Made", (Base,), dict(weigh=hard))', True),
    "type with what is computed": ('BODY = {"weigh": hard}\nMade = type("Made", (Base,), BODY)', True),
    "type with several bases": (
        'class Mixin:\n    weigh = hard\n\n\nMade = type("Made", (Mixin, Base), {})',
        True,
    ),
    "new_class with a body": (
        'Made = types.new_class("Made", (Base,), {}, lambda ns: ns.update(weigh=hard))',
        True,
    ),
    "type with another method": ('Made = type("Made", (Base,), {"other": hard})', False),
    "type with nothing": ('Made = type("Made", (Base,), {})', False),
    "type of an object": ("Made = type(Base())", False),
}


@pytest.mark.parametrize("name", CREATIONS)
def test_a_method_that_a_created_class_overrides_declines_the_edit(name: str) -> None:
    creation, overrides = CREATIONS[name]
    text = BASE + creation + "\n"
    assert [f.status for f in findings(text)] == (["declined"] if overrides else ["safe"])
    assert ("scaled_dot_product_attention" in rewritten(text)) != overrides
    assert vars(module_of(rewritten(text)))["Made"] is not None


@pytest.mark.parametrize(
    ("call", "statement"),
    [
        ('type("A", (B,), {"f": g})', "class A(B):\n    f = g"),
        ('type("A", (B, C), dict(f=g))', "class A(B, C):\n    f = g"),
        ('type("A", (B,), {})', "class A(B):\n    pass"),
        ('types.new_class("A", (B,))', "class A(B):\n    pass"),
        ('types.new_class("A", bases=(B,))', "class A(B):\n    pass"),
        ('type("A", (B,), body)', "class A(B):\n    __getattribute__ = None"),
        ('make_dataclass("A", fields, bases=(B,))', "class A(B):\n    pass"),
        ("type(x)", ""),
        ('type("A", (), {})', ""),
        ("other(A, (B,), {})", ""),
    ],
)
def test_a_call_becomes_the_equivalent_class_statement(call: str, statement: str) -> None:
    expression = ast.parse(call, mode="eval").body
    assert isinstance(expression, ast.Call)
    found = created_class(expression)
    assert ("" if found is None else ast.unparse(ast.fix_missing_locations(found))) == statement
