"""Every message that a user can meet is listed, and says what happened in a sentence."""

from __future__ import annotations

import ast
import json
import re

import pytest

from tools.messages import KINDS, main, messages, texts

ALL = messages()
# Raised for our own code, which catches them: no user meets their text alone.
INTERNAL = frozenset(
    "Unwritable NotInTarget CannotWrite CannotBuild Untraceable GraphError Malformed Misplaced Unsuitable KeyError "
    "AttributeError StopIteration NotOurs SkipFile Unreadable SyntaxError Wrong NoSubject".split()
)
ERRORS = [m for m in ALL if m.kind == "error" and m.code not in INTERNAL]


def test_each_kind_is_found() -> None:
    counts = {kind: sum(m.kind == kind for m in ALL) for kind in KINDS}
    assert counts["reason"] > 100 and counts["error"] > 200 and min(counts.values()) > 10


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("'a text'", ["a text"]),
        ("f'{x.name} is {y!r}'", ["{x.name} is {y}"]),
        ("'one ' + 'text'", ["one text"]),
        ("'yes' if x else 'no'", ["yes", "no"]),
        ("message", []),
    ],
)
def test_the_text_of_an_expression_is_extracted(source: str, expected: list[str]) -> None:
    assert list(texts(ast.parse(source, mode="eval").body)) == expected


def test_an_error_message_is_more_than_a_name() -> None:
    short = [m for m in ERRORS if len(m.text.split()) < 3 and "{" not in m.text]
    assert short == [] and all(re.match(r"[\w`\"'{(\[-]", m.text) for m in ERRORS)


def test_a_reason_with_advice_says_what_to_change() -> None:
    advised = [m for m in ALL if m.kind == "reason" and m.advice]
    assert len(advised) > 60 and all(m.advice[0].islower() and not m.advice.endswith(".") for m in advised)


def test_the_list_is_printed_as_data(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--kind", "reason", "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["version"] == 1 and {m["kind"] for m in data["messages"]} == {"reason"}
