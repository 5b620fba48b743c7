"""Tests of the text of rules for `autofuse rules` and `autofuse explain`."""

from __future__ import annotations

import json

import pytest

from autofuse.cli.rules_text import as_json, explain_rule, list_rules, source_of, title
from autofuse.loading.registry import load_rules
from autofuse.match.pattern import LoadedRule
from autofuse.project.run import rewrite_text

RULES = load_rules()


def rule_name(loaded: LoadedRule) -> str:
    return loaded.rule.__name__


@pytest.mark.parametrize("loaded", RULES, ids=rule_name)
def test_every_rule_has_a_title_of_one_line(loaded: LoadedRule) -> None:
    assert loaded.rule.__doc__, "a rule needs a docstring"
    assert title(loaded.rule).endswith(".") and len(title(loaded.rule)) < 100


@pytest.mark.parametrize("loaded", RULES, ids=rule_name)
def test_an_explanation_shows_both_sides_and_every_example(loaded: LoadedRule) -> None:
    text = "".join(piece for piece, _ in explain_rule(loaded, rewrite_text))
    assert text.startswith(f"{loaded.rule.code} {loaded.rule.__name__}\n")
    assert "    def before(" in text and "    def after(" in text
    assert "staticmethod" not in text
    for example in loaded.rule.examples:
        assert example.why in text


def test_the_list_has_a_line_for_each_rule() -> None:
    lines = "".join(piece for piece, _ in list_rules(RULES)).splitlines()
    assert [line.split()[:2] for line in lines] == [[r.rule.code, r.rule.__name__] for r in RULES]


def test_the_json_contains_every_rule() -> None:
    printed = json.loads(json.dumps(as_json(RULES)))
    assert printed["version"] == 1
    assert [r["rule"] for r in printed["rules"]] == [rule_name(r) for r in RULES]
    assert all(r["fused"] or r["kept"] for r in printed["rules"])


def test_a_function_is_shown_without_its_decorators_and_indentation() -> None:
    rule = next(r.rule for r in RULES if r.rule.code == "AF202")
    assert source_of(rule.before).startswith("def before(")
