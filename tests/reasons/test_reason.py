"""The sentence and the advice of a reason come from its code and its data, with and without a value and a line."""

from __future__ import annotations

import copy
import pickle

from autofuse.reasons import matches, outcomes, writing
from autofuse.reasons.reason import IN_SENTENCE, Code, because

GIVEN = Code(
    "given", "about", "a value is given to {call}", "take {value} back", "{value} is given to {call}", IN_SENTENCE
)
SEEN = Code("seen", "about", "`{name}` is seen by {call}")


def test_the_sentence_and_the_advice_contain_the_value() -> None:
    reason = because(GIVEN, call="f")
    assert str(reason) == "a value is given to f" and reason.advice() == "take it back"
    assert reason.sentence("x", 3) == "`x` is given to f at line 3" and reason.advice("x") == "take `x` back"


def test_a_value_without_a_placeholder_is_appended_unless_the_sentence_has_it() -> None:
    reason = because(SEEN, name="x", call="f()")
    assert reason.sentence("x + 1", 4) == "`x` is seen by f(): `x + 1` (line 4)"
    assert reason.sentence("x") == reason.sentence("f()") == "`x` is seen by f()"


def test_braces_in_data_are_text() -> None:
    assert str(because(outcomes.DIFFERS, why="{value} is {0}")) == "{value} is {0}"
    assert because(writing.BINDS_NAME, name="{x}").sentence("{y}").endswith(": `{y}`")


def test_further_data_are_added() -> None:
    stored = because(matches.VALUE_STORED, place="a container").with_data(what="a sum", which="a sum")
    assert stored.sentence("x", 2) == "a sum `x` is stored in a container at line 2"


def test_reasons_with_equal_contents_are_equal_also_after_a_copy() -> None:
    reason = because(SEEN, name="x", call="f")
    assert reason == because(SEEN, name="x", call="f") != because(SEEN, name="y", call="f")
    assert copy.deepcopy(reason) == reason == pickle.loads(pickle.dumps(reason)) and hash(reason) == hash(
        because(SEEN, name="x", call="f")
    )
