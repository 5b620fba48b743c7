"""A residual addition and a norm become one call only if every run that computes the sum also computes the norm."""

from __future__ import annotations

import textwrap

import pytest
import torch

from tests.source.rewriting import assert_same, findings, rewritten

HEAD = "import torch\nfrom torch import nn\n\n\n"
BLOCK = """
class Block(nn.Module):
    def __init__(self, before=False, norm=True):
        super().__init__()
        self.before = before
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 8)
        if norm:
            self.norm = nn.LayerNorm(8)

    def forward(self, x):
{body}
"""

# Not every run of the sum computes the norm. Some of these runs have no norm at all.
SOMETIMES = {
    "an if": """
        x = x + self.first(x)
        if not self.before:
            x = self.norm(x)
        return self.second(x)
    """,
    "the second branch": """
        x = x + self.first(x)
        if self.before:
            x = self.second(x)
        else:
            x = self.norm(x)
        return x
    """,
    "a conditional expression": """
        x = x + self.first(x)
        y = self.second(x) if self.before else self.norm(x)
        return y + x
    """,
    "an `and`": """
        x = x + self.first(x)
        ready = not self.before and self.norm(x).sum() > 0
        return self.second(x) if ready else x
    """,
    "a return in between": """
        x = x + self.first(x)
        if self.before:
            return x
        y = self.norm(x)
        return self.second(y) + x
    """,
    "the argument of a call in a branch": """
        x = x + self.first(x)
        if not self.before:
            x = self.second(self.norm(x))
        return x
    """,
    "the head of an elif": """
        x = x + self.first(x)
        if self.before:
            x = self.second(x)
        elif self.norm(x).sum() > 0:
            x = x * 2
        return x
    """,
}


def program(body: str) -> str:
    return HEAD + BLOCK.format(body=textwrap.indent(textwrap.dedent(body), "        "))


@pytest.mark.parametrize("name", SOMETIMES)
def test_a_norm_that_some_runs_do_not_compute_stays(name: str) -> None:
    text = program(SOMETIMES[name])
    after = rewritten(text)
    assert "dropout_add_norm" not in after
    for arguments in ((False, True), (True, False)):  # without a norm, the new code would raise AttributeError
        assert_same(text, after, "Block", [torch.randn(2, 3, 8).double()], *arguments)


@pytest.mark.parametrize("name", SOMETIMES)
def test_the_reason_says_that_the_norm_is_elsewhere(name: str) -> None:
    found = [f for f in findings(program(SOMETIMES[name])) if f.code == "AF203"]
    assert found and all("not always computed directly after the sum" in f.message for f in found), found


def test_the_sum_and_its_norm_get_the_names_of_the_statements_that_they_replace() -> None:
    text = program("""
        x = x + self.first(x)
        residual = x
        x = self.norm(x)
        return self.second(x) + residual
    """)
    after = rewritten(text)
    assert "residual, x = ops.dropout_add_norm(" in after and "normed" not in after
    assert_same(text, after, "Block", [torch.randn(2, 3, 8).double()])


def test_a_statement_between_keeps_the_name_of_the_sum() -> None:
    text = program("""
        x = x + self.first(x)
        residual = x * 2
        x = self.norm(x)
        return self.second(x) + residual
    """)
    after = rewritten(text)
    assert "x, normed = ops.dropout_add_norm(" in after
    assert_same(text, after, "Block", [torch.randn(2, 3, 8).double()])


def test_a_second_name_of_a_sum_that_keeps_its_own_name_stays() -> None:
    text = program("""
        x = x + self.first(x)
        residual = x
        y = self.norm(x)
        return self.second(y) + residual * x
    """)
    after = rewritten(text)
    assert "residual = x" in after
    assert_same(text, after, "Block", [torch.randn(2, 3, 8).double()])


def test_a_norm_after_a_with_block_is_always_computed() -> None:
    text = program("""
        with torch.autograd.set_grad_enabled(True):
            y = self.second(x)
        x = x + y
        y = self.norm(x)
        return y + x
    """)
    after = rewritten(text)
    assert "x, y = ops.dropout_add_norm(" in after
    assert_same(text, after, "Block", [torch.randn(2, 3, 8).double()])


def test_a_tensor_added_to_the_result_of_a_norm_does_not_join_its_bias() -> None:
    text = program("""
        y = self.second(x)
        x = x + y
        return self.norm(x) + x
    """)
    after = rewritten(text)
    assert "self.norm.bias," in after and "prenorm=True" in after
    assert_same(text, after, "Block", [torch.randn(2, 3, 8).double()])
