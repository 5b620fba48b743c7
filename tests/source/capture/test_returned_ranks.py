"""The number of dimensions of a function's result is read from its text, or is unknown."""

from __future__ import annotations

import ast

import pytest

from autofuse.source.capture.returned_ranks import returned_rank
from tests.source.rewriting import source

KNOWN = {
    "a reshape to a list of sizes": ("def f(x, n):\n    return x.reshape(n, -1, 4)", 3),
    "a view of a tuple of sizes": ("def f(x, n):\n    return x.view((n, 4))", 2),
    "a transposed view": ("def f(x, n):\n    return x.view(n, 2, 3, 4).transpose(1, 2).contiguous()", 4),
    "a parameter whose shape is unpacked": ("def f(x):\n    b, n, c = x.shape\n    return x", 3),
    "the same on both paths": (
        source("""
            def repeat_kv(x, n):
                b, heads, rows, width = x.shape
                if n == 1:
                    return x
                x = x[:, :, None].expand(b, heads, n, rows, width)
                return x.reshape(b, heads * n, rows, width)
        """),
        4,
    ),
}
UNKNOWN = {
    "different ranks": "def f(x, n):\n    if n:\n        return x.view(n, 2)\n    return x.view(n, 2, 2)",
    "an end without a return": "def f(x, n):\n    if n:\n        return x.view(n, 2)",
    "a parameter": "def f(x):\n    return x",
    "a parameter that is bound again": "def f(x):\n    b, n = x.shape\n    x = x[None]\n    return x",
    "a parameter that a branch binds": "def f(x, y):\n    b, n = x.shape\n    if b:\n        x = y\n    return x",
    "a parameter that is bound before": "def f(x):\n    x = x[0]\n    b, n = x.shape\n    return x",
    "a shape that is unpacked in a branch": "def f(x, y):\n    if y:\n        b, n = x.shape\n    return x",
    "a starred shape": "def f(x):\n    b, *n = x.shape\n    return x",
    "a view of one size": "def f(x, shape):\n    return x.view(shape)",
    "a view of starred sizes": "def f(x, shape):\n    return x.view(2, *shape)",
    "a decorated function": "@g\ndef f(x, n):\n    return x.view(n, 2)",
    "a generator": "def f(x, n):\n    yield x\n    return x.view(n, 2)",
    "a nested function": "def f(x, n):\n    def g():\n        return x\n    return x.view(n, 2)",
    "another function": "def f(x, n):\n    return g(x).sum(-1)",
}


def rank_of(text: str) -> int | None:
    (function,) = ast.parse(text).body
    assert isinstance(function, ast.FunctionDef)
    return returned_rank(function)


@pytest.mark.parametrize("name", KNOWN)
def test_the_rank_is_known(name: str) -> None:
    text, rank = KNOWN[name]
    assert rank_of(text) == rank


@pytest.mark.parametrize("name", UNKNOWN)
def test_the_rank_is_not_known(name: str) -> None:
    assert rank_of(UNKNOWN[name]) is None
