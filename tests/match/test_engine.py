"""Sites and their verdicts: an assumption of the canonical form makes an edit unsafe, and is reported."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from autofuse.canonical import View
from autofuse.cli import main
from autofuse.ir.facts import Facts
from autofuse.loading.registry import load_rules
from autofuse.match.engine import every_site
from autofuse.match.site import Site
from autofuse.rule import Fails, Holds
from autofuse.source.capture.function_capture import capture
from autofuse.source.capture.scope import file_scope

_HEAD = "import torch\nimport torch.nn.functional as F\nfrom torch import Tensor\n\n\n"
ATTENTION = _HEAD + (
    "def f(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale{annotation}):\n"
    '    scores = (q @ k.mT).masked_fill(mask, float("-inf")) * scale\n'
    "    return scores.softmax(-1) @ v\n"
)
LOSS = _HEAD + (
    "def f(logits: Tensor, target: Tensor):\n    return F.nll_loss(F.log_softmax(logits{dim}), target{index})\n"
)
FLATTENED = _HEAD + (
    "def f(logits: Tensor, target: Tensor):\n"
    "    log_probs = torch.log_softmax(logits, -1)\n"
    "    return F.nll_loss({log_probs}, target)\n"
)
ASSUMING = {
    "a scale whose sign is not known": (
        ATTENTION.format(annotation=": float"),
        "AF101",
        ["assumes that the scale is positive"],
    ),
    "a scale that may be a tensor": (
        ATTENTION.format(annotation=""),
        "AF101",
        [
            "assumes that the scale is a number",
            "assumes that the scale is a positive number",
        ],
    ),
    "a softmax that is not told its dimension": (
        LOSS.format(dim="", index=""),
        "AF501",
        ["assumes that the logits have two dimensions"],
    ),
    "classes that are moved to the middle": (
        FLATTENED.format(log_probs="log_probs.transpose(1, -1)"),
        "AF501",
        ["assumes that the logits have three dimensions"],
    ),
}
KNOWN = {
    "a scale that is written out": (
        ATTENTION.format(annotation=": float")
        .replace("    scores = (q", "    b, h, n, d = q.shape\n    scores = (q")
        .replace("* scale", "* 0.125"),
        "AF101",
    ),
    "a softmax with a given dimension": (LOSS.format(dim=", dim=1", index=""), "AF501"),
}


def sites_of_rule(text: str, rule: str) -> list[Site]:
    """The sites of one rule in a function of a file."""
    tree = ast.parse(text)
    (function,) = (n for n in tree.body if isinstance(n, ast.FunctionDef))
    captured = capture(function, file_scope(tree))
    rules = tuple(r for r in load_rules() if r.rule.code == rule)
    return every_site(captured.graph, View(Facts(captured.known)), rules)


@pytest.mark.parametrize(("text", "rule", "assumed"), ASSUMING.values(), ids=ASSUMING)
def test_an_assumption_makes_a_site_unsafe_and_is_reported_once(text: str, rule: str, assumed: list[str]) -> None:
    (site,) = sites_of_rule(text, rule)
    assert isinstance(site.verdict, Holds) and site.verdict.safety == "unsafe"
    assert site.verdict.why.split("; ") == assumed


@pytest.mark.parametrize(("text", "rule"), KNOWN.values(), ids=KNOWN)
def test_a_site_without_an_assumption_is_safe(text: str, rule: str) -> None:
    (site,) = sites_of_rule(text, rule)
    assert site.verdict == Holds()


@pytest.mark.parametrize(("text", "rule", "assumed"), ASSUMING.values(), ids=ASSUMING)
def test_an_edit_with_an_assumption_is_made_only_on_request(
    text: str, rule: str, assumed: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "model.py"
    file.write_text(text)
    assert main(["rewrite", str(file)]) == 0
    assert file.read_text() == text
    capsys.readouterr()
    main(["check", str(file)])
    told = " ".join(capsys.readouterr().out.split())
    assert all(why in told for why in assumed)
    assert main(["rewrite", "--unsafe", str(file)]) == 0
    assert file.read_text() != text


@pytest.mark.parametrize(("text", "rule"), KNOWN.values(), ids=KNOWN)
def test_an_edit_without_an_assumption_is_always_made(text: str, rule: str, tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text(text)
    assert main(["rewrite", str(file)]) == 0
    assert file.read_text() != text


def test_a_declined_site_stays_declined_with_an_assumption() -> None:
    text = ATTENTION.format(annotation=": float").replace("return scores.softmax(-1) @ v", "w = scores.softmax(-1)")
    sites = sites_of_rule(text + "    return w @ v, w\n", "AF101")
    assert [type(s.verdict) for s in sites] == [Fails]


def test_a_program_with_hundreds_of_steps_is_matched_completely() -> None:
    steps = "".join("    q = torch.relu(q)\n" for _ in range(700))
    text = (
        ATTENTION.format(annotation=": float")
        .replace("* scale", "* 0.125")
        .replace("    scores", steps + "    scores", 1)
    )
    (site,) = sites_of_rule(text, "AF101")
    assert isinstance(site.verdict, Holds)
