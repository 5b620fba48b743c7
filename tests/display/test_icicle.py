"""The icicle view: equal layers are one bar, parts are never longer than their parent, names are escaped."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from autofuse.display.icicle import ModuleBox, icicle_chart
from autofuse.results.profile_parts import Layer, Work
from tests.display.samples import gpt


def layer(fqn: str, whole: float, own: float) -> Layer:
    return Layer(fqn, "M", 1, Work(whole), Work(), Work(own), Work())


def test_a_module_is_below_the_one_that_contains_it_and_blocks_are_one() -> None:
    profile = gpt()
    found = icicle_chart(profile.layers, profile.timing.median)
    assert found is not None
    assert {node.label for node in found.nodes} == {"(the model itself)", "(outside of modules)"}
    model = next(node for node in found.nodes if node.name == "")
    (block,) = [node for node in model.children if node.name == "h.*"]
    assert block.label == "h.* ×4"
    assert {node.label for node in block.children} == {"attn ×4", "mlp ×4", "ln_1 ×4", "ln_2 ×4"}


def test_parts_never_exceed_the_whole() -> None:
    def check(node: ModuleBox) -> None:
        assert node.own + sum(child.seconds for child in node.children) <= node.seconds * (1 + 1e-9)
        for child in node.children:
            check(child)

    found = icicle_chart([layer("", 1.0, 0.5), layer("a", 3.0, 1.0), layer("a.b", 2.5, 2.5)], 4.0)
    assert found is not None
    for node in found.nodes:
        check(node)
    assert found.nodes[0].seconds == pytest.approx(0.5 + 1.0 + 2.5)


def test_names_are_escaped_and_every_bar_has_a_label() -> None:
    found = icicle_chart([layer("", 1.0, 0.0), layer("<b>", 1.0, 0.5), layer("<b>.c", 0.5, 0.5)], 1.0)
    assert found is not None
    text = found.markup()
    assert "<b>" not in text and "&lt;b&gt;" in text
    assert re.findall(r'aria-label="(&lt;b&gt;: [^"]+)"', text) == [
        "&lt;b&gt;: 1 s, 100 % of the step; 500 ms without what it calls"
    ]


def test_bars_that_are_too_narrow_for_a_pointer_are_omitted() -> None:
    layers = [layer("", 1.0, 0.0), layer("a", 0.9995, 0.9995), layer("b", 0.0005, 0.0005)]
    found = icicle_chart(layers, 1.0)
    assert found is not None and "b: " not in found.markup() and "a: " in found.markup()


def test_without_modules_there_is_no_chart() -> None:
    assert icicle_chart([], 1.0) is None
    assert icicle_chart([replace(layer("(outside)", 1.0, 1.0))], 1.0) is None
