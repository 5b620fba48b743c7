"""What kind of mask a mask is proved to be, read from text."""

from __future__ import annotations

import ast

import pytest

from autofuse.canonical import View
from autofuse.ir.facts import Facts
from autofuse.loading.registry import load_rules
from autofuse.match.engine import sites
from autofuse.source.capture.function_capture import capture
from autofuse.source.capture.scope import file_scope

_TEXT = """
import torch
def f(q, k, v, mask, key_padding_mask, bias):
    t, s = q.shape[-2], k.shape[-2]
    i, j = torch.arange(t, device=q.device), torch.arange(s, device=q.device)
    scores = q @ k.mT * 8**-0.5
    {}
    return scores.softmax(-1) @ v
"""
_FILL = 'scores = scores.masked_fill({}, float("-inf"))'


def kind(line: str) -> str:
    tree = ast.parse(_TEXT.format(line))
    (function,) = (n for n in tree.body if isinstance(n, ast.FunctionDef))
    captured = capture(function, file_scope(tree))
    rules = tuple(r for r in load_rules() if r.rule.code == "AF101")
    (site,) = sites(captured.graph, View(Facts(captured.known)), rules)
    return "; ".join(site.notes)


@pytest.mark.parametrize(
    "dropped",
    [
        "torch.tril(torch.ones(t, s)) == 0",
        "torch.ones(t, s, dtype=torch.bool).triu(1)",
        "~(i[:, None] >= j[None, :])",
        "j.unsqueeze(0) > i.unsqueeze(1)",
    ],
)
def test_a_triangle_on_the_main_diagonal_is_proved_causal(dropped: str) -> None:
    assert kind(_FILL.format(dropped)).startswith("causal: ")


@pytest.mark.parametrize(
    ("dropped", "expected"),
    [
        ("torch.ones(t, s, dtype=torch.bool).triu(s - t + 1)", "its diagonal moved"),
        ("torch.tril(torch.ones(t, s), 2) == 0", "a sliding window: tril with diagonal 2"),
        ("~((i[:, None] - j[None, :] >= 0) & (i[:, None] - j[None, :] < 3))", "a sliding window: the distance"),
        ("key_padding_mask[:, None, None, :]", "key padding"),
        ("key_padding_mask.unsqueeze(1).unsqueeze(2)", "key padding"),
        ("i[:, None] > j[None, :]", "a mask of what is kept"),
        ("mask", "a mask of what is kept"),
    ],
)
def test_what_is_no_causal_triangle_is_not_called_causal_alone(dropped: str, expected: str) -> None:
    told = kind(_FILL.format(dropped))
    assert expected in told and not told.startswith("causal: positions") and "tril of ones" not in told


def test_a_bias_is_a_bias() -> None:
    assert kind("scores = scores + bias") == "a bias that is added"
    assert kind("scores = scores + (1.0 - mask[:, None, None, :]) * -1e4").startswith("key padding")


def test_two_masks_are_told_one_after_the_other() -> None:
    both = _FILL.format("torch.ones(t, s).triu(1).bool()") + "; " + _FILL.format("key_padding_mask[:, None, None]")
    assert kind(both).startswith("causal: ") and "key padding" in kind(both)


def test_no_mask_needs_no_word() -> None:
    assert kind("pass") == ""
