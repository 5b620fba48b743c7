"""Sites and their verdicts: what a canonical form took for granted makes an edit unsafe, and says so."""

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
    "a softmax that is told its dimension": (LOSS.format(dim=", dim=1", index=""), "AF501"),
}


def found(text: str, rule: str) -> list[Site]:
    """The sites of one rule in the function of a file."""
    tree = ast.parse(text)
    (function,) = (n for n in tree.body if isinstance(n, ast.FunctionDef))
    captured = capture(function, file_scope(tree))
    rules = tuple(r for r in load_rules() if r.rule.code == rule)
    return every_site(captured.graph, View(Facts(captured.known)), rules)


@pytest.mark.parametrize(("text", "rule", "assumed"), ASSUMING.values(), ids=ASSUMING)
def test_what_was_taken_for_granted_makes_a_site_unsafe_and_is_told_once(
    text: str, rule: str, assumed: list[str]
) -> None:
    (site,) = found(text, rule)
    assert isinstance(site.verdict, Holds) and site.verdict.safety == "unsafe"
    assert site.verdict.why.split("; ") == assumed


@pytest.mark.parametrize(("text", "rule"), KNOWN.values(), ids=KNOWN)
def test_a_site_that_takes_nothing_for_granted_is_safe_and_has_nothing_to_tell(text: str, rule: str) -> None:
    (site,) = found(text, rule)
    assert site.verdict == Holds()


@pytest.mark.parametrize(("text", "rule", "assumed"), ASSUMING.values(), ids=ASSUMING)
def test_an_edit_that_takes_something_for_granted_is_made_only_if_asked_for(
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
def test_one_that_takes_nothing_for_granted_is_made_unasked(text: str, rule: str, tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text(text)
    assert main(["rewrite", str(file)]) == 0
    assert file.read_text() != text


def test_a_site_that_is_refused_stays_refused_whatever_was_assumed() -> None:
    text = ATTENTION.format(annotation=": float").replace("return scores.softmax(-1) @ v", "w = scores.softmax(-1)")
    sites = found(text + "    return w @ v, w\n", "AF101")
    assert [type(s.verdict) for s in sites] == [Fails]


def test_a_program_of_hundreds_of_steps_is_read_to_its_end() -> None:
    steps = "".join("    q = torch.relu(q)\n" for _ in range(700))
    text = (
        ATTENTION.format(annotation=": float")
        .replace("* scale", "* 0.125")
        .replace("    scores", steps + "    scores", 1)
    )
    (site,) = found(text, "AF101")
    assert isinstance(site.verdict, Holds)
