"""Loops over experts in files: they are reported, and other loops are not."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from autofuse.loading.registry import load_rules
from autofuse.source.find.check import proposals
from tests.spellings import all_experts, counted_experts, dispatched_experts, experts, sorted_experts

SPELLINGS = Path(experts.__file__).parent
# Their router or their products are in another method.
IN_HELPERS = {"StackOfSequentials", "WeightsOfOneHot", "ComparedWeights", "EinsumOfAll", "SwitchEinsum", "NanoMoe"}


def reported(source: str) -> list[tuple[str, int]]:
    """The symbol and the line of each loop that is reported."""
    found = proposals(source.encode(), "model.py", rules=load_rules())
    assert all(p.edit is None and p.finding.status == "report" for p in found if p.finding.code == "AF701")
    return [(p.finding.symbol, p.finding.line) for p in found if p.finding.code == "AF701"]


@pytest.mark.parametrize("table", [experts, counted_experts, sorted_experts, all_experts, dispatched_experts])
def test_each_loop_that_a_live_model_folds_is_reported(table: object) -> None:
    symbols = {symbol.partition(".")[0] for symbol, _ in reported((SPELLINGS / Path(table.__file__).name).read_text())}  # type: ignore[attr-defined]
    found = {kind.__name__ for kind in table.FOUND}  # type: ignore[attr-defined]
    inherited = {kind.__name__ for kind in table.FOUND if "forward" not in vars(kind)}  # type: ignore[attr-defined]
    assert found - inherited - {"Stacked", "StackedRange"} - IN_HELPERS <= symbols


def loop_of(body: str) -> str:
    forward = dedent(body).replace("\n", "\n        ")
    return (
        "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n\nclass Experts(nn.Module):\n"
        f"    def forward(self, x, chosen, weights):\n        {forward}\n        return x\n"
    )


def test_the_report_names_the_loop_and_what_to_do() -> None:
    source = loop_of(
        """\
        out = torch.zeros_like(x)
        for e in range(8):
            token, nth = torch.where(chosen == e)
            out.index_add_(0, token, self.experts[e](x[token]) * weights[token, nth, None])"""
    )
    (found,) = [
        p.finding for p in proposals(source.encode(), "model.py", rules=load_rules()) if p.finding.code == "AF701"
    ]
    assert (found.line, found.symbol, found.reason_code) == (9, "Experts.forward", "loop-over-experts")
    assert "autofuse.optimize" in found.advice


@pytest.mark.parametrize(
    "body",
    [
        # Each expert runs on all tokens.
        """\
        out = 0
        for e, expert in enumerate(self.experts):
            out = out + expert(x) * weights[:, e, None]""",
        # Layers, one after the other.
        """\
        for expert in self.experts:
            x = expert(x)""",
        # Rows of a table, without a layer.
        """\
        for e in range(8):
            token = torch.where(chosen == e)[0]
            x[token] += weights[token]""",
        # Segments of layers, without a router.
        """\
        outs = []
        for e, expert in enumerate(self.experts):
            outs.append(expert(x[e * 4 : e * 4 + 4]))
        x = torch.cat(outs)""",
        # All experts, without a choice.
        """\
        x = torch.stack([expert(x) for expert in self.experts]).mean(0)""",
        # Counts only.
        """\
        counts = []
        for e in range(len(self.experts)):
            counts.append((chosen == e).sum())""",
    ],
)
def test_other_loops_are_not_reported(body: str) -> None:
    assert reported(loop_of(body)) == []


def test_of_two_loops_the_inner_one_is_reported() -> None:
    source = loop_of(
        """\
        out = torch.zeros_like(x)
        for k in range(2):
            for e, expert in enumerate(self.experts):
                taken = chosen[:, k] == e
                out[taken] += expert(x[taken])"""
    )
    assert [line for _, line in reported(source)] == [10]
