"""Masks that only a branch can name get new names, for a call after the branch."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest
import torch

from autofuse.loading.registry import load_rules
from autofuse.source.find.check import proposals
from autofuse.source.write.file_edits import apply_proposals

HEAD = """
import torch
import torch.nn.functional as F


def f(q, k, v, mask=None, flag=True):
"""


def rewritten(body: str) -> str:
    """The rewritten text. Also asserts that a second run changes nothing."""
    source = (HEAD + textwrap.indent(textwrap.dedent(body), "    ")).encode()
    new = _apply_rule(source)
    assert _apply_rule(new) == new
    return new.decode()


def _apply_rule(source: bytes) -> bytes:
    edits = [p for p in proposals(source, "model.py", rules=load_rules()) if p.finding.code == "AF101"]
    return apply_proposals(source, edits)


def run(text: str, *args: Any) -> torch.Tensor:
    names: dict[str, Any] = {}
    exec(compile(text, "model.py", "exec"), names)
    result = names["f"](*args)
    assert isinstance(result, torch.Tensor)
    return result


def check(body: str, text: str) -> None:
    """Asserts that the rewritten text computes the same: with and without a mask, for both flags."""
    before = HEAD + textwrap.indent(textwrap.dedent(body), "    ")
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 2, 2, 5, 4, generator=generator, dtype=torch.float64).unbind(0)
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]).bool()
    for args in ((None, True), (mask, True), (mask, False), (None, False)):
        torch.testing.assert_close(run(text, q, k, v, *args), run(before, q, k, v, *args))


DELETED = """
    scores = q @ k.mT * 0.3
    # padding
    if mask is not None:
        mask = mask[:, None, None]
        scores = scores.masked_fill(~mask, float("-inf"))  # gone
        del mask
    return scores.softmax(dim=-1) @ v
"""


def test_a_mask_that_its_branch_deletes_gets_a_new_name() -> None:
    text = rewritten(DELETED)
    check(DELETED, text)
    assert "    attn_mask = None\n    # padding\n    if mask is not None:\n" in text
    assert "        mask = mask[:, None, None]\n        attn_mask = mask\n        del mask\n" in text
    assert "attn_mask=attn_mask" in text


def test_a_name_in_use_is_not_taken() -> None:
    assert "attention_mask = None" in rewritten(DELETED.replace("0.3", "(attn_mask := 0.3)"))


def test_a_test_with_another_value_later_is_not_repeated() -> None:
    body = """
        scores = q @ k.mT * 0.3
        if not flag:
            kept = torch.ones(q.shape[-2], k.shape[-2]).tril().bool()
            scores = scores.masked_fill(~kept, float("-inf"))
            kept = None
        flag = True
        return scores.softmax(dim=-1) @ v
    """
    text = rewritten(body)
    check(body, text)
    assert "attn_mask=attn_mask" in text


def test_a_mask_that_replaces_none_is_tested_by_its_new_name() -> None:
    body = """
        scores = q @ k.mT * 0.3
        if mask is None:
            mask = torch.ones(q.shape[-2], k.shape[-2]).tril().bool()
            scores = scores.masked_fill(~mask, float("-inf"))
            mask = None
        return scores.softmax(dim=-1) @ v
    """
    text = rewritten(body)
    check(body, text)
    assert "attn_mask=attn_mask" in text


def test_two_branches_with_one_name_are_joined_in_the_call() -> None:
    body = """
        scores = q @ k.mT * 0.3
        if mask is not None:
            mask = mask[:, None, None]
            scores.masked_fill_(~mask, float("-inf"))
            del mask
        if flag:
            mask = torch.ones(q.shape[-2], k.shape[-2]).triu_(1).bool()
            scores.masked_fill_(mask, float("-inf"))
            del mask
        return scores.softmax(dim=-1) @ v
    """
    text = rewritten(body)
    check(body, text)
    assert "softmax(" not in text


def test_a_branch_on_one_line_stays_on_one_line() -> None:
    body = """
        scores = q @ k.mT * 0.3
        if mask is not None: mask = mask[:, None, None]; scores.masked_fill_(~mask, float("-inf")); del mask
        return scores.softmax(dim=-1) @ v
    """
    text = rewritten(body)
    check(body, text)
    assert "if mask is not None: mask = mask[:, None, None]; attn_mask = mask; del mask\n" in text


@pytest.mark.parametrize(
    "statements",
    [
        'scores = scores.masked_fill(~mask[:, None, None], float("-inf")) if mask is not None else scores; del mask',
        'kept = mask[:, None, None].clone(); scores.masked_fill_(~kept, float("-inf")); kept.fill_(True); del mask',
    ],
    ids=["the statement may not compute it", "it is overwritten afterwards"],
)
def test_a_value_that_the_branch_may_skip_or_overwrites_is_not_kept(statements: str) -> None:
    body = f"""
        scores = q @ k.mT * 0.3
        if flag:
            {statements}
        return scores.softmax(dim=-1) @ v
    """
    assert "scaled_dot_product_attention" not in rewritten(body)
