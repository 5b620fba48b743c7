"""The analysis of a compiled model: data, and its three forms."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

from autofuse.results.analysis import Analysis, GraphBreak, UnfusedSite, pattern_of

UNFUSED = UnfusedSite(
    "AF101", "unfused", "/code/model.py", 42, ("h.0.attn", "h.1.attn"), 2, "autofuse.ops.attention", "causal: a buffer"
)
DECLINED = UnfusedSite("AF201", "declined", "/code/model.py", 7, ("",), reason="x[0] is written in place at line 7.")
BREAK = GraphBreak("Tensor.item() call", "/code/model.py", 50, 3)
ANALYSIS = Analysis((UNFUSED, DECLINED), (BREAK,), graphs=4)


def test_the_table_names_rule_count_modules_place_operation_and_mask() -> None:
    text = str(ANALYSIS)
    for word in ("AF101", "h.*.attn", "2", "model.py:42", "autofuse.ops.attention", "causal", "x[0]", "(model)"):
        assert word in text


def test_graph_breaks_have_a_separate_table() -> None:
    assert "model.py:50" in str(ANALYSIS) and "Tensor.item() call" in ANALYSIS._repr_html_()
    assert "graph break" not in str(Analysis((UNFUSED,))).replace("0 graph breaks", "")


def test_the_summary_counts_sites_breaks_and_graphs() -> None:
    assert ANALYSIS.summary == "2 sites of 1 rule unfused, 1 declined; 3 graph breaks; 4 graphs"
    assert Analysis().summary == "nothing unfused; 0 graph breaks; 0 graphs"


def test_names_that_differ_in_numbers_are_one_pattern() -> None:
    assert pattern_of(("a.0.b.1", "a.1.b.2")) == "a.*.b.*"
    assert pattern_of(("0.attn2", "1.attn2")) == "*.attn2"
    assert pattern_of(("encoder.0", "decoder.0")) == "encoder.0, ..."


def test_json_has_every_field_and_is_what_the_page_describes() -> None:
    printed = json.loads(ANALYSIS.to_json())
    assert list(printed) == ["version", "graphs", "sites", "breaks"]
    page = (Path(__file__).parents[2] / "docs" / "json.md").read_text()
    for kind, key in ((UnfusedSite, "sites"), (GraphBreak, "breaks")):
        assert list(printed[key][0]) == [f.name for f in fields(kind)]
    section = page.split("autofuse.analysis(model).to_json()")[1].split("\n## ")[0]
    assert [n for n in (*printed["sites"][0], *printed["breaks"][0], "graphs") if f"`{n}`" not in section] == []


def test_an_analysis_without_sites_can_be_shown() -> None:
    assert Analysis() and not len(Analysis())
