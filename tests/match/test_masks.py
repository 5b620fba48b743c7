"""Masks are read as a Mask, and proved causal or not."""

from __future__ import annotations

import ast
import textwrap

import pytest

from autofuse.canonical import View
from autofuse.ir.facts import Facts
from autofuse.loading.registry import load_rules
from autofuse.match.engine import sites
from autofuse.match.site import Site
from autofuse.rule import Holds
from autofuse.source.capture.function_capture import capture
from autofuse.source.capture.scope import file_scope, functions


def attention_site(masking: str, arguments: str = "mask") -> Site:
    """The AF101 site of a function whose scores `s` are masked by `masking`."""
    lines = "\n".join("    " + line for line in textwrap.dedent(masking).strip().splitlines())
    text = (
        "import math, torch\nimport torch.nn.functional as F\n"
        f"def attend(self, q, k, v, {arguments}):\n    s = q @ k.transpose(-2, -1)\n    t = q.size(-2)\n"
        f"{lines}\n    return F.softmax(s, dim=-1) @ v\n"
    )
    (defined,) = functions(file_scope(ast.parse(text)))
    captured = capture(defined.function, defined.scope, defined.owner)
    (site,) = sites(captured.graph, View(Facts(captured.known)), load_rules())
    return site


def attention_site_or_none(masking: str) -> Site | None:
    try:
        return attention_site(masking)
    except ValueError:
        return None


BOOLEAN = {
    "masked_fill": "s = s.masked_fill(mask == 0, float('-inf'))",
    "in place": "s.masked_fill_(mask == 0, float('-inf'))",
    "where": "s = torch.where(mask != 0, s, float('-inf'))",
    "inverted": "s = s.masked_fill(~mask, -float('inf'))",
    "torch.inf": "s = s.masked_fill(mask.bool(), -torch.inf)",
    "function": "s = torch.masked_fill(s, mask, value=-math.inf)",
}


@pytest.mark.parametrize("masking", BOOLEAN.values(), ids=BOOLEAN)
def test_infinite_fills_are_boolean_masks(masking: str) -> None:
    captures = attention_site(masking).captures
    assert captures["mask"].op in ("ne", "invert", "kept")
    assert "fill" not in captures and "is_causal" not in captures


FINITE = {
    "-1e9": "s = s.masked_fill(mask == 0, -1e9)",
    "-1e4": "s = s.masked_fill(mask == 0, -1e4)",
    "finfo of the scores": "s = s.masked_fill(mask == 0, torch.finfo(s.dtype).min)",
    "minus the maximum": "s = s.masked_fill(mask == 0, -torch.finfo(s.dtype).max)",
    "where": "s = torch.where(mask > 0, s, torch.tensor(-1e9))",
    "product": "s = s * mask - 1e4 * (1 - mask)",
    "product, other order": "s = -10000.0 * (1.0 - mask) + mask * s",
}


@pytest.mark.parametrize("masking", FINITE.values(), ids=FINITE)
def test_a_finite_fill_is_recorded(masking: str) -> None:
    assert "fill" in attention_site(masking).captures


ADDED = {
    "added": "s = s + mask",
    "added in front": "s = mask + s",
    "computed": "s = s + (1.0 - mask) * -10000.0",
    "in place": "s += mask",
    "with alpha": "s = torch.add(s, mask, alpha=2)",
}


@pytest.mark.parametrize("masking", ADDED.values(), ids=ADDED)
def test_an_added_mask_is_a_bias(masking: str) -> None:
    site = attention_site(masking)
    assert site.captures["mask"].op in ("parameter", "mul", "add")
    assert "fill" not in site.captures


CAUSAL = {
    "tril of ones": "s = s.masked_fill(torch.tril(torch.ones(t, t)) == 0, float('-inf'))",
    "triu of booleans": "s = s.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), float('-inf'))",
    "triu of -inf": "s = s + torch.triu(torch.full((t, t), float('-inf')), diagonal=1)",
    "two leading dimensions": "s = s.masked_fill(torch.tril(torch.ones(t, t)).view(1, 1, t, t) == 0, -1e9)",
    "zeros filled": "s = s + torch.zeros(t, t).masked_fill(torch.tril(torch.ones(t, t)) == 0, float('-inf'))",
    "kept": "s = torch.where(torch.ones(t, t).tril().bool(), s, -1e4)",
}


@pytest.mark.parametrize("masking", CAUSAL.values(), ids=CAUSAL)
def test_a_causal_mask_is_proved(masking: str) -> None:
    site = attention_site(masking)
    assert site.captures["is_causal"].data is True
    assert ("fill" in site.captures) == ("-1e" in masking), "what a score may come near to"
    assert any("causal" in note for note in site.notes)


NOT_CAUSAL = {
    "another diagonal": "s = s.masked_fill(torch.tril(torch.ones(t, t), 1) == 0, float('-inf'))",
    "a window": "s = s.masked_fill(torch.tril(torch.ones(t, t)).triu(-4) == 0, float('-inf'))",
    "the other triangle": "s = s.masked_fill(torch.triu(torch.ones(t, t)) == 0, float('-inf'))",
    "what is kept is dropped": "s = s.masked_fill(torch.tril(torch.ones(t, t)) == 1, float('-inf'))",
    "an unknown mask": "s = s.masked_fill(mask == 0, float('-inf'))",
    "causal and padding": "s = s.masked_fill((torch.tril(torch.ones(t, t)) == 0) | mask, float('-inf'))",
    "the diagonal is dropped too": "s = s + torch.triu(torch.full((t, t), float('-inf')))",
    "a slice from elsewhere": "s = s.masked_fill(torch.tril(torch.ones(t, t))[2:] == 0, float('-inf'))",
}


@pytest.mark.parametrize("masking", NOT_CAUSAL.values(), ids=NOT_CAUSAL)
def test_a_mask_that_only_looks_causal_stays_a_general_mask(masking: str) -> None:
    assert "is_causal" not in attention_site(masking).captures


def test_a_scale_after_the_mask_is_the_scale() -> None:
    for masking in ("s = s.masked_fill(mask, float('-inf')) / math.sqrt(64)", "s = (s + mask) * 0.125"):
        site = attention_site(masking)
        assert site.captures["scale"].data == 0.125 and "mask" in site.captures


def test_a_scale_of_unknown_sign_after_a_mask_is_moved_under_an_assumption() -> None:
    site = attention_site_or_none("s = s.masked_fill(mask, float('-inf')) * self.c")
    assert site is not None and isinstance(site.verdict, Holds)
    assert site.verdict.safety == "unsafe" and "the scale is a positive number" in site.verdict.why


def test_an_optional_mask_is_a_choice() -> None:
    site = attention_site("if mask is not None:\n    s = s.masked_fill(mask == 0, float('-inf'))", "mask=None")
    assert site.captures["mask"].op == "choice"


def test_two_masks_of_one_fill_are_one() -> None:
    site = attention_site("s = s.masked_fill(mask == 0, -1e9)\ns = s.masked_fill(other, -1e9)", "mask, other")
    assert site.captures["mask"].op == "and"


def test_a_bias_under_a_mask_is_filled() -> None:
    site = attention_site("s = s + bias\ns = s.masked_fill(mask, float('-inf'))", "mask, bias")
    assert site.captures["mask"].op == "where"


def test_scores_times_a_mask_are_not_a_scale() -> None:
    site = attention_site("s = s * mask.float()")
    assert type(site.verdict).__name__ == "Fails" or getattr(site.verdict, "safety", "") == "unsafe"
