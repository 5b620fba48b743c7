"""What code can load is read from its bytecode, with the lines."""

from __future__ import annotations

from typing import Any

from autofuse.fx.trace.code_facts import facts_of, nested

CONFIG: Any = None


def reads(x: Any, name: str = "a") -> Any:
    import math

    inner = [CONFIG.depth.scale for _ in range(2)]
    return math.pi, x.weight, getattr(x, "bias"), inner  # noqa: B009


def closes(scale: float) -> Any:
    def inner(x: float) -> float:
        return x * scale

    return inner


def sets() -> None:
    global CONFIG
    CONFIG = 3


def lines_of(name: str) -> set[int]:
    return {load.line for load in facts_of(reads.__code__).loads if load.name == name}


def test_globals_are_loaded_with_the_attributes_that_are_asked_of_them_at_once() -> None:
    codes = [reads.__code__, *nested(reads.__code__)]
    loads = [load for code in codes for load in facts_of(code).loads]
    assert [load.attributes for load in loads if load.name == "CONFIG"] == [("depth", "scale")]


def test_an_import_inside_of_a_function_is_a_load() -> None:
    assert [load.kind for load in facts_of(reads.__code__).loads if load.name == "math"] == ["import"]


def test_names_of_attributes_and_texts_that_may_be_names_are_known() -> None:
    facts = facts_of(reads.__code__)
    assert {"pi", "weight", "bias"} <= set(facts.attribute_names(None))
    assert facts.by_name and not facts_of(closes.__code__).by_name


def test_what_stands_on_other_lines_is_not_loaded() -> None:
    (line,) = lines_of("getattr")
    facts = facts_of(reads.__code__)
    assert [load.name for load in facts.loaded({line})] == ["getattr"]
    assert "pi" in set(facts.attribute_names({line})) and not list(facts.loaded(set()))


def test_free_variables_are_told_from_variables_of_the_function() -> None:
    (inner,) = nested(closes.__code__)
    assert [(load.kind, load.name) for load in facts_of(inner).loads] == [("free", "scale")]
    assert not facts_of(closes.__code__).loads


def test_globals_that_are_set_are_known() -> None:
    assert facts_of(sets.__code__).stored == {"CONFIG"}
