"""A call between the matched steps that may write to an operand makes the edit unsafe, and the message names it."""

from __future__ import annotations

import pytest

from tests.source.evidence.programs import Program, assert_holds, status_of

TOP = """
import functools
import operator
import numpy as np

def zero(z):
    z.zero_()

def deep(z):
    zero(z)
    return 0

def count(z):
    return z.numel() + len(z.shape)

class Holder:
    def __init__(self, k):
        self.k = k

    def wipe(self, *a):
        self.k.mul_(0.5)
        return 1

    prop = property(wipe)
    __neg__ = __add__ = __len__ = __eq__ = wipe

kept = {}
"""
WRITES = (
    """
np.asarray(k).fill(1.0) | nn.utils.vector_to_parameters(torch.ones(168).to(k), [k]) | getattr(k, "zero_")() | zero(*[k])
zero(**{"z": k}) | n = deep(k) | n = zero(*[k]) | Holder(k).wipe() | n = holder.wipe() | k.zero_.__call__()
operator.methodcaller("zero_")(k) | n = max([k], key=deep) | n = [*map(deep, [k])] | n = functools.partial(deep, k)()
n = -holder | n = holder + 1 | n = holder.prop | n = len(holder) | n = holder == 1 | n = f"{kept['wipe']()}"
kept["wipe"]() | k.requires_grad_(False)
""".strip()
    .replace("\n", " | ")
    .split(" | ")
)
READS = (
    """
n = count(k) | print(k.shape) | n = len(k) | n = isinstance(k, torch.Tensor) | n = torch.linalg.norm(k) | n = k.sum()
n = count(*[k]) if False else 0 | n = max([1, 2], key=abs) | n = [*map(len, [k])] | n = bool(k.numel())
""".strip()
    .replace("\n", " | ")
    .split(" | ")
)
QKV = "f(C(2, 3, 5, 4), C(2, 3, 7, 4) * 1, C(2, 3, 7, 6))"


def program(between: str, first: str = "pass", expected: str = "unsafe") -> Program:
    text = f"{TOP}\ndef f(q, k, v):\n    {first}\n    s = q @ k.transpose(-2, -1) / q.size(-1) ** 0.5\n"
    return Program(between, f"{text}    {between}\n    return s.softmax(-1) @ v, k\n", QKV, expected)


@pytest.mark.parametrize("between", WRITES)
def test_a_call_that_reaches_an_operand_may_write_to_it(between: str) -> None:
    case = program(between, "holder = Holder(k); kept['wipe'] = lambda: zero(k)")
    assert status_of(case) in ("unsafe", "kept")
    found = case.findings()
    assert all(f.status == "declined" or "write to an operand" in f.message or "line" in f.message for f in found)


@pytest.mark.parametrize("between", READS)
def test_a_call_that_is_known_to_read_only_is_allowed(between: str) -> None:
    assert_holds(program(between, expected="safe"))


def test_a_stored_operand_is_reached_by_every_unknown_call() -> None:
    for first, status in (("pass", "safe"), ("kept['k'] = k", "unsafe")):
        assert status_of(program("n = kept.wipe_all()", first)) == status
