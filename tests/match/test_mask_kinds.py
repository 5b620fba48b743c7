"""The kinds that are proved for masks in source text."""

from __future__ import annotations

import ast
import copy
from itertools import product
from pathlib import Path

import pytest
import torch

import autofuse
from autofuse.canonical import View
from autofuse.cli import main
from autofuse.ir.facts import Facts
from autofuse.loading.registry import load_rules
from autofuse.match.engine import sites
from autofuse.source.capture.function_capture import capture
from autofuse.source.capture.scope import file_scope
from autofuse.source.find.check import proposals
from tests.spellings.harness import module_at

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
        "torch.triu(torch.ones(t, s), 1) == 1",
        "torch.triu(torch.ones(t, s), 1) != 0",
        "torch.tril(torch.ones(t, s)) != 1",
        "torch.full((t, s), 1.0).triu(1).bool()",
        "torch.tril(torch.ones(64, 64))[:t, :s] == 0",
        "torch.tril(torch.ones(64, 64))[None, None, :t, :s] == 0",
        "torch.tril(torch.ones(64, 64))[..., :t, :s] == 0",
        "torch.tril(torch.ones(64, 64))[None, ..., :t, :s] == 0",
        "torch.tril(torch.ones(64, 64)).view(1, 1, 64, 64)[..., None, :t, :s] == 0",
        "torch.tril(torch.ones(64, 64)).view(1, 1, 64, 64)[..., s - t : s, :s] == 0",
        "torch.tril(torch.ones(64, 64))[s - t : s, :s] == 0",
        "torch.tril(torch.ones_like(scores)) == 0",
        "torch.tril(torch.ones(t, s)).view(1, 1, t, s) == 0",
    ],
)
def test_a_triangle_on_the_main_diagonal_is_proved_causal(dropped: str) -> None:
    assert kind(_FILL.format(dropped)).startswith("causal: ")


_PARTS = (":", "None", "...", ":t", ":s", "s - t : s")


@pytest.mark.parametrize("rank", [2, 3])
def test_an_index_of_a_triangle_is_called_causal_only_if_its_result_is(rank: int) -> None:
    size, length, proved = 5, 4, 0
    view = f".view({', '.join('1' * (rank - 2))}, {size}, {size})" if rank > 2 else ""
    for index in (", ".join(parts) for n in (1, 2, 3) for parts in product(_PARTS, repeat=n)):
        text = f"torch.tril(torch.ones({size}, {size})){view}[{index}]"
        try:
            result = eval(text, {"torch": torch, "t": length, "s": length})
        except (IndexError, RuntimeError):  # too many dimensions, two ellipses
            continue
        if kind(_FILL.format(f"{text} == 0")).startswith("causal: "):
            proved += 1
            assert torch.equal(result, torch.ones_like(result).tril()), index
    assert proved > 20


@pytest.mark.parametrize(
    ("dropped", "expected"),
    [
        ("torch.ones(t, s, dtype=torch.bool).triu(s - t + 1)", "computed diagonal"),
        ("torch.tril(torch.ones(t, s), 2) == 0", "a sliding window: tril with diagonal 2"),
        ("~((i[:, None] - j[None, :] >= 0) & (i[:, None] - j[None, :] < 3))", "a sliding window: the distance"),
        ("key_padding_mask[:, None, None, :]", "key padding"),
        ("key_padding_mask.unsqueeze(1).unsqueeze(2)", "key padding"),
        ("i[:, None] > j[None, :]", "a boolean mask"),
        ("mask", "a boolean mask"),
    ],
)
def test_another_mask_is_not_called_just_causal(dropped: str, expected: str) -> None:
    told = kind(_FILL.format(dropped))
    assert expected in told and not told.startswith("causal: positions") and "tril of ones" not in told


def test_a_bias_is_a_bias() -> None:
    assert kind("scores = scores + bias") == "an added bias"
    assert kind("scores = scores + (1.0 - mask[:, None, None, :]) * -1e4").startswith("key padding")


def test_the_kinds_of_two_masks_are_listed() -> None:
    both = _FILL.format("torch.ones(t, s).triu(1).bool()") + "; " + _FILL.format("key_padding_mask[:, None, None]")
    assert kind(both).startswith("causal: ") and "key padding" in kind(both)


def test_without_a_mask_the_kind_is_empty() -> None:
    assert kind("pass") == ""


# Each drops or keeps other entries than those with column > row.
NOT_CAUSAL = (
    "torch.ones(t, s, dtype=torch.bool).triu()",
    "torch.triu(torch.ones(t, s)) == 1",
    "torch.triu(torch.ones(t, s), 0) != 0",
    "torch.triu(torch.ones(t, s), -1) == 1",
    "torch.triu(torch.ones(t, s), 2) == 1",
    "torch.triu(torch.ones(t, s), 1) == 0",
    "torch.triu(torch.ones(t, s), 1) != 1",
    "torch.tril(torch.ones(t, s), -1) == 0",
    "torch.tril(torch.ones(t, s), 1) == 0",
    "torch.tril(torch.ones(t, s)) == 1",
    "torch.tril(torch.ones(t, s)) != 0",
    "torch.tril(torch.ones(t, s), -1) != 1",
    "torch.full((t, s), 2.0).triu(1) == 1",
    "torch.full((t, s), 0.0).triu(1) != 0",
    "torch.zeros(t, s).triu(1) != 0",
    "j[None, :] >= i[:, None]",
    "j[None, :] < i[:, None]",
    "~(i[:, None] > j[None, :])",
    "i[:, None] >= j[None, :]",
    "~(i[None, :] >= j[None, :])",
    "(torch.tril(torch.ones(t, s)) == 0)[:, 1:]",
    "(torch.tril(torch.ones(t, s)) == 0)[::2]",
    "(torch.tril(torch.ones(t, s)) == 0)[1:, :]",
    "torch.tril(torch.ones(64, 64))[1 : t + 1, :s] == 0",
    "torch.tril(torch.ones(64, 64))[:t, 1 : s + 1] == 0",
    "torch.tril(torch.ones(64, 64))[s - t : t, :s] == 0",
    "torch.tril(torch.ones(64, 64))[:t:2, :s] == 0",
    "torch.tril(torch.ones(64, 64))[0, :s] == 0",
)


@pytest.mark.parametrize("dropped", NOT_CAUSAL)
def test_another_triangle_is_not_causal(dropped: str) -> None:
    assert not kind(_FILL.format(dropped)).startswith("causal: ")


@pytest.mark.parametrize(
    ("added", "causal"),
    [
        ('torch.full((t, s), float("-inf")).triu(1)', True),
        ('torch.ones(t, s).mul(float("-inf")).triu(1)', True),
        ("torch.full((t, s), -1e9).triu(1)", True),
        ('torch.full((t, s), float("-inf")).triu()', False),
        ('torch.full((t, s), float("-inf")).triu(2)', False),
        ('torch.full((t, s), float("-inf")).tril(1)', False),
        ("torch.full((t, s), -1.0).triu(1)", False),
        ('torch.zeros(t, s).masked_fill(torch.ones(t, s).triu(1).bool(), float("-inf"))', True),
        ('torch.zeros(t, s).masked_fill(torch.ones(t, s).triu().bool(), float("-inf"))', False),
        ('torch.ones(t, s).masked_fill(torch.ones(t, s).triu(1).bool(), float("-inf"))', False),
    ],
)
def test_an_added_triangle_is_causal_only_above_the_main_diagonal(added: str, causal: bool) -> None:
    assert kind(f"scores = scores + {added}").startswith("causal: ") is causal


_MODULE = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("triangle", torch.ones(6, 6).bool().triu({diagonal}))

    def forward(self, x: torch.Tensor):
        scores = x @ x.mT * 8**-0.5
        scores = scores.masked_fill({dropped}, float("-inf"))
        return scores.softmax(-1) @ x
"""
_TRIANGLES = {
    "made in forward": "torch.ones(6, 6, dtype=torch.bool).triu({diagonal})",
    "a buffer": "self.triangle",
    "made of ones": "torch.triu(torch.ones(x.shape[-2], x.shape[-2]), diagonal={diagonal}) == 1",
    "what is not kept": "torch.tril(torch.ones(6, 6), {diagonal} - 1) == 0",
}


@pytest.mark.parametrize("entry_point", ["live", "text"])
@pytest.mark.parametrize("diagonal", [-1, 0, 1, 2])
@pytest.mark.parametrize("dropped", _TRIANGLES.values(), ids=_TRIANGLES)
def test_only_the_triangle_above_the_diagonal_becomes_is_causal_and_results_stay(
    dropped: str, diagonal: int, entry_point: str, tmp_path: Path
) -> None:
    file = tmp_path / "model.py"
    file.write_text(_MODULE.format(dropped=dropped.format(diagonal=diagonal), diagonal=diagonal))
    original, given = module_at(file).Model(), torch.randn(2, 3, 6, 8)
    if entry_point == "live":
        fused = autofuse.optimize(copy.deepcopy(original), given)
        (site,) = autofuse.report(fused).sites
        causal = site.mask.startswith("causal: ")
    else:
        (proposal,) = proposals(file.read_bytes(), "model.py", rules=load_rules())
        causal = proposal.finding.mask.startswith("causal: ")
        assert main(["rewrite", "--unsafe", str(file)]) == 0
        fused, text = module_at(file).Model(), file.read_text()
        assert "scaled_dot_product_attention(" in text and ("is_causal=True" not in text or causal)
    assert causal is (diagonal == 1)
    kept = slice(max(0, 1 - diagonal), None)  # the earlier rows keep nothing, and the original returns NaN there
    torch.testing.assert_close(fused(given)[..., kept, :], original(given)[..., kept, :], rtol=1e-5, atol=1e-6)
