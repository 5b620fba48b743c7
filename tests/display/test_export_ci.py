"""JUnit reports and step summaries: failed and undecided conditions, and names with characters of XML and Markdown."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import pytest

from autofuse.display.export_ci import conditions_summary, junit, step_summary
from autofuse.results.conditions import ConditionOutcome
from autofuse.results.diagnosis import Action, Diagnosis
from tests.display.samples import gpt

OUTCOMES = (
    ConditionOutcome("mfu<0.3", True, "mfu<0.3 holds: mfu is 0.17."),
    ConditionOutcome("busy<0.1", False, "busy<0.1 does not hold: busy is 0.94."),
    ConditionOutcome("time_ratio>1", None, "time_ratio>1 is undecided: there is no baseline."),
)


@pytest.mark.parametrize(("strict", "failures", "skipped"), [(False, "1", "1"), (True, "2", "0")])
def test_a_condition_that_holds_fails_and_an_undecided_one_is_skipped_unless_strict(
    strict: bool, failures: str, skipped: str
) -> None:
    (suite,) = ElementTree.fromstring(junit("profile", OUTCOMES, strict, 0.25).encode())
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("3", failures, skipped)
    assert suite.get("errors") == "0" and float(suite.get("time") or 0) == 0.25
    assert [case.get("name") for case in suite] == [outcome.condition for outcome in OUTCOMES]
    failure = suite[0].find("failure")
    assert failure is not None and failure.get("message") == OUTCOMES[0].sentence == failure.text
    assert all(case.get("classname") and case.get("time") for case in suite)


def test_without_conditions_there_is_one_passing_test() -> None:
    (suite,) = ElementTree.fromstring(junit("profile", ()).encode())
    assert suite.get("tests") == "1" and suite.get("failures") == "0" and len(suite) == 1


def test_characters_that_xml_does_not_allow_are_replaced() -> None:
    (suite,) = ElementTree.fromstring(junit('a<b>&"\x00\x1b\ud800', OUTCOMES).encode())
    assert suite.get("name") == 'a<b>&"???'


def test_the_summary_starts_with_the_actions() -> None:
    diagnosis = Diagnosis("data", "Waiting for data.", (Action("loader-workers", "Use more workers.", 120.0),))
    text = step_summary(replace(gpt(), diagnosis=diagnosis), OUTCOMES)
    places = [
        text.index(part) for part in ("**Waiting for data.**", "1. Use more workers.", "| mfu", "| step | 254 ms |")
    ]
    assert places == sorted(places)
    assert "saves up to 120 ms a step" in text and "| fails |" in text and "| undecided |" in text
    assert "| h.\\*.attn ×4 |" in text


def test_a_name_is_neither_markdown_nor_html() -> None:
    text = step_summary(replace(gpt(), name="a|b <script> `c` [d](e)\n# f"))
    assert text.splitlines()[0] == r"## Profile: a\|b &lt;script&gt; \`c\` \[d\](e) \# f"
    assert "<script>" not in conditions_summary("<script>", "<script>", OUTCOMES)
