"""The loads of code, with their lines, are read from its bytecode."""

from __future__ import annotations

from typing import Any

from autofuse.fx.trace.code_facts import facts_of, nested

CONFIG: Any = None


def reads(x: Any, name: str = "a") -> Any:
    import math

    inner = [CONFIG.depth.scale for _ in range(2)]
    return math.pi, x.weight, getattr(x, "bias"), inner  # noqa: B009


def makes_closure(scale: float) -> Any:
    def inner(x: float) -> float:
        return x * scale

    return inner


def sets() -> None:
    global CONFIG
    CONFIG = 3


def lines_of(name: str) -> set[int]:
    return {load.line for load in facts_of(reads.__code__).loads if load.name == name}


def test_a_load_of_a_global_includes_the_attributes_that_are_read_immediately() -> None:
    codes = [reads.__code__, *nested(reads.__code__)]
    loads = [load for code in codes for load in facts_of(code).loads]
    assert [load.attributes for load in loads if load.name == "CONFIG"] == [("depth", "scale")]


def test_an_import_inside_a_function_is_a_load() -> None:
    assert [load.kind for load in facts_of(reads.__code__).loads if load.name == "math"] == ["import"]


def test_the_names_of_attributes_include_string_constants() -> None:
    facts = facts_of(reads.__code__)
    assert {"pi", "weight", "bias"} <= set(facts.attribute_names(None))
    assert facts.by_name and not facts_of(makes_closure.__code__).by_name


def test_loads_on_other_lines_do_not_count() -> None:
    (line,) = lines_of("getattr")
    facts = facts_of(reads.__code__)
    assert [load.name for load in facts.loaded({line})] == ["getattr"]
    assert "pi" in set(facts.attribute_names({line})) and not list(facts.loaded(set()))


def test_free_variables_are_distinguished_from_local_variables() -> None:
    (inner,) = nested(makes_closure.__code__)
    assert [(load.kind, load.name) for load in facts_of(inner).loads] == [("free", "scale")]
    assert not facts_of(makes_closure.__code__).loads


def test_globals_that_code_sets_are_found() -> None:
    assert facts_of(sets.__code__).stored == {"CONFIG"}
