"""Pairs of masks of every kind: the FX pass and the codemod find the attention, and results do not change.

The tests do not prescribe how a mask is read: fused code must compute the same as the program, with and without the
optional arguments. No row is masked out entirely. test_masks.py and the spellings test such rows.
"""

from __future__ import annotations

import copy
import itertools
from pathlib import Path

import pytest
import torch
from _pytest.mark import ParameterSet

import autofuse
from autofuse.cli import main
from tests.spellings.harness import module_at

_MODEL = """
import math
import torch
from torch import Tensor, nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("triangle", torch.ones(6, 6).tril())
        self.register_buffer("offset", torch.full((6, 6), float("-inf")).triu(1))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor, bias: Tensor, given: Tensor | None = None):
        s = q @ k.mT * 8**-0.5
        {first}
        {second}
        return s.softmax(-1) @ v
"""
_FOLDED = (
    _MODEL.replace("        s = q @ k.mT * 8**-0.5\n", "")
    .replace("        {first}", "{split}        {first}")
    .replace("        return s.softmax(-1) @ v\n", "{folded}")
)
_SPLIT = """        b, h, n, d = q.shape
        s = torch.bmm(q.reshape(b * h, n, d), k.reshape(b * h, n, d).transpose(1, 2)) * 8**-0.5
        {whole}
        s = s.view(b, h, n, n)
"""
_BACK = """        s = s.view(b * h, n, n)
        return torch.bmm(s.softmax(-1), v.reshape(b * h, n, d)).view(b, h, n, d)
"""
WHOLE = {
    "nothing": "pass",
    "dropped": 's = s.masked_fill(self.triangle == 0, float("-inf"))',
    "a bias": "s = s + self.triangle",
}
MASKS = {
    "dropped": 's = s.masked_fill(~keep, float("-inf"))',
    "dropped, finitely": "s = s.masked_fill(~keep, -1e9)",
    "kept": 's = torch.where(keep, s, float("-inf"))',
    "a bias": "s = s + bias",
    "a bias with a factor": "s = 2.0 * bias + s",
    "a filled bias": "s = s + (1.0 - keep.float()) * -1e4",
    "causal": 's = s.masked_fill(self.triangle[:6, :6] == 0, float("-inf"))',
    "causal, finitely": "s = s.masked_fill(self.triangle == 0, -1e9)",
    "causal, added": "s = s + self.offset",
    "optional": "if given is not None: s = s + given",
    "optional, dropped": 'if given is not None: s = s.masked_fill(given < 0, float("-inf"))',
    "optional, or a bias": "s = s + given if given is not None else s + bias",
    "optional, or dropped": 's = s + given if given is not None else s.masked_fill(~keep, float("-inf"))',
}
ALONE = [(a, "pass") for a in MASKS]
PAIRS = [*itertools.permutations(MASKS, 2)]
BY_DAY = 3  # one in so many pairs, in which every mask comes first and comes second


def by_day_and_night() -> list[ParameterSet]:
    marked = [pytest.param(*p, marks=pytest.mark.night if i % BY_DAY else ()) for i, p in enumerate(PAIRS)]
    return [*(pytest.param(*p) for p in ALONE), *marked]


def arguments(optional: bool) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(2, 3, 6, 8, generator=generator, dtype=torch.float64) for _ in range(3))
    keep = torch.rand(2, 1, 6, 6, generator=generator) > 0.4
    keep[..., 0] = True
    bias, given = (torch.randn(2, 3, 6, 6, generator=generator, dtype=torch.float64) for _ in range(2))
    given[..., 0] = 1.0  # no mask drops the first key
    return q, k, v, keep, bias, *([given] if optional else [])


def assert_same(fused: torch.nn.Module, original: torch.nn.Module, optional: bool, text: str) -> None:
    expected, found = (m.double()(*arguments(optional)) for m in (original, fused))
    assert expected.isfinite().all()
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9, msg=lambda m: f"{m}\n{text}")


@pytest.mark.parametrize(("first", "second"), by_day_and_night())
def test_attention_is_fused_by_the_fx_pass_and_the_codemod_with_equal_results(
    first: str, second: str, tmp_path: Path
) -> None:
    holds(_MODEL.format(first=MASKS[first], second=MASKS.get(second, "pass")), tmp_path / "model.py")


@pytest.mark.parametrize("whole", WHOLE)
@pytest.mark.parametrize("mask", MASKS)
def test_attention_is_fused_if_scores_are_split_for_the_mask_and_folded_back(
    mask: str, whole: str, tmp_path: Path
) -> None:
    split = _SPLIT.format(whole=WHOLE[whole])
    holds(_FOLDED.format(split=split, first=MASKS[mask], second="pass", folded=_BACK), tmp_path / "model.py")


def holds(model: str, file: Path) -> None:
    """Check that the FX pass and the codemod fuse the model of a file, and that it computes the same."""
    file.write_text(model)
    original = module_at(file).Model().double()
    file = file.with_name("rewritten.py")  # the FX pass reads the source lines of the original
    file.write_text(model)
    options = (True, False) if "if given" in model else (False,)
    assert main(["rewrite", "--unsafe", str(file)]) == 0
    text = file.read_text()
    rewritten = module_at(file).Model()
    assert "scaled_dot_product_attention(" in text
    for optional in options:
        assert_same(rewritten, original, optional, text)
        fused = autofuse.optimize(copy.deepcopy(original), arguments(optional))
        if optional is options[0]:  # without a mask in between, the two views of the scores stay two views
            assert "AF101" in {s.rule for s in autofuse.report(fused).with_status("fused")}, autofuse.report(fused)
        for other in options:
            assert_same(fused, original, other, text)
