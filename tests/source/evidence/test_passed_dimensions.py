"""A call that passes the entries of the queries, and whole keys, makes the edit of the function unsafe."""

from __future__ import annotations

import pytest

from tests.source.rewriting import findings

PROGRAM = """
    import torch
    from torch import nn


    def read(q, k, v):
        s = q @ k.transpose(-2, -1) * q.size(-1) ** -0.5
        return torch.softmax(s, dim=-1) @ v


    class M(nn.Module):
        def forward(self, xs, ks, vs):
            return {call}
"""
UNSAFE = {
    "each entry": "[read(x, ks, vs) for x in xs]",
    "each entry, by a map": "list(map(lambda x: read(x, ks, vs), xs))",
    "one entry": "read(xs[0], ks, vs)",
    "entries of a loop": "[read(xs[i], ks, vs) for i in range(3)]",
    "entries of two": "[read(x, ks, vs) for x, _ in zip(xs, vs)]",
    "a mean": "read(xs.mean(0), ks, vs)",
    "vmap over the queries": "torch.vmap(read, in_dims=(0, None, None))(xs, ks, vs)",
    "an entry of the values": "read(xs, ks, vs[:, 0])",
}
SAFE = {
    "all operands": "[read(q, k, v) for q, k, v in zip(xs, ks, vs)]",
    "an entry of each": "read(xs[0], ks[0], vs[0])",
    "parts that keep their dimensions": "[read(q, ks, vs) for q in xs.split(1)]",
    "slices": "[read(xs[i : i + 1], ks, vs) for i in range(3)]",
    "a new dimension": "read(xs[0][None], ks, vs)",
    "whole tensors": "read(xs, ks, vs)",
}


@pytest.mark.parametrize("call", UNSAFE.values(), ids=UNSAFE)
def test_a_call_that_removes_a_dimension_from_one_operand_makes_the_edit_unsafe(call: str) -> None:
    (finding,) = (f for f in findings(PROGRAM.format(call=call)) if f.symbol == "read")
    assert finding.status == "unsafe" and "has two dimensions or more, also in `" in finding.message, finding.message


@pytest.mark.parametrize("call", SAFE.values(), ids=SAFE)
def test_a_call_that_treats_all_operands_alike_leaves_the_edit_safe(call: str) -> None:
    (finding,) = (f for f in findings(PROGRAM.format(call=call)) if f.symbol == "read")
    assert finding.status == "safe", finding.message
