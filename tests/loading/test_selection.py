"""Code prefixes in, rules out."""

from __future__ import annotations

import pytest

from autofuse.loading.registry import load_rules
from autofuse.loading.selection import UnknownCode, selected

RULES = load_rules()


def codes(select: tuple[str, ...] = (), ignore: tuple[str, ...] = ()) -> set[str]:
    return {r.rule.code for r in selected(RULES, select, ignore)}


def test_without_a_wish_every_rule_is_meant_in_its_order() -> None:
    assert selected(RULES) == RULES


def test_a_prefix_means_all_that_begin_with_it() -> None:
    assert codes(("AF2",)) == {c for c in codes() if c.startswith("AF2")} != set()
    assert codes(("AF101", "AF2")) == {"AF101"} | codes(("AF2",))


def test_what_is_ignored_is_taken_from_what_is_selected() -> None:
    assert codes(("AF2",), ("AF201",)) == codes(("AF2",)) - {"AF201"}
    assert codes((), ("AF",)) == set()


@pytest.mark.parametrize("wrong", ["AF9", "AF1O1", "101", "attention", ""])
def test_a_code_that_no_rule_bears_is_refused_in_either_place(wrong: str) -> None:
    with pytest.raises(UnknownCode, match="No rule has the code"):
        codes((wrong,))
    with pytest.raises(UnknownCode, match="No rule has the code"):
        codes((), (wrong,))


def test_a_typing_error_is_met_with_a_suggestion() -> None:
    with pytest.raises(UnknownCode, match="Did you mean AF101"):
        codes(("AF1O1",))
