"""The selection of rules by prefixes of their codes."""

from __future__ import annotations

import pytest

from autofuse.loading.registry import load_rules
from autofuse.loading.selection import UnknownCode, select_rules

RULES = load_rules()


def codes(select: tuple[str, ...] = (), ignore: tuple[str, ...] = ()) -> set[str]:
    return {r.rule.code for r in select_rules(RULES, select, ignore)}


def test_without_a_selection_all_rules_are_selected_in_order() -> None:
    assert select_rules(RULES) == RULES


def test_a_prefix_selects_all_codes_that_begin_with_it() -> None:
    assert codes(("AF2",)) == {c for c in codes() if c.startswith("AF2")} != set()
    assert codes(("AF101", "AF2")) == {"AF101"} | codes(("AF2",))


def test_ignored_rules_are_removed_from_the_selection() -> None:
    assert codes(("AF2",), ("AF201",)) == codes(("AF2",)) - {"AF201"}
    assert codes((), ("AF",)) == set()


@pytest.mark.parametrize("wrong", ["AF9", "AF1O1", "101", "attention", ""])
def test_an_unknown_code_is_refused_in_select_and_in_ignore(wrong: str) -> None:
    with pytest.raises(UnknownCode, match="No rule has the code"):
        codes((wrong,))
    with pytest.raises(UnknownCode, match="No rule has the code"):
        codes((), (wrong,))


def test_a_typing_error_leads_to_a_suggestion() -> None:
    with pytest.raises(UnknownCode, match="Did you mean AF101"):
        codes(("AF1O1",))
