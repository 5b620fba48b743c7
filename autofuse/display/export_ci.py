"""Output for continuous integration: a JUnit report of the conditions, and a step summary of GitHub Actions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from xml.etree import ElementTree

from autofuse.display.diagnosis import saving
from autofuse.display.folding import fold_layers
from autofuse.display.layer_tables import name_with_count, rules_in_words
from autofuse.results import units
from autofuse.results.conditions import ConditionOutcome
from autofuse.results.profile import Profile

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # XML 1.0, production 2
_LAYERS = 10


def junit(name: str, outcomes: Sequence[ConditionOutcome], strict: bool = False, seconds: float = 0.0) -> str:
    """One test case for each condition of --fail-if; without conditions a single one that passes.

    A condition that holds is a failure. An undecided one is skipped, or a failure if `strict`. seconds: of a step.
    """
    cases = [_test_case(name, outcome, strict) for outcome in outcomes] or [_element("testcase", name="profiled")]
    counts = {kind: sum(case.find(kind) is not None for case in cases) for kind in ("failure", "skipped")}
    suite = _element(
        "testsuite", name=name, tests=str(len(cases)), failures=str(counts["failure"]), errors="0",
        skipped=str(counts["skipped"]), time=f"{seconds:.6f}",
    )  # fmt: skip
    for case in cases:
        case.set("classname", "autofuse.profile")
        case.set("time", f"{seconds:.6f}")
        suite.append(case)
    suites = _element("testsuites")
    suites.append(suite)
    ElementTree.indent(suites)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(suites, encoding="unicode")}\n'


def _test_case(name: str, outcome: ConditionOutcome, strict: bool) -> ElementTree.Element:
    case = _element("testcase", name=outcome.condition)
    if outcome.holds or (outcome.holds is None and strict):
        case.append(_element("failure", outcome.sentence, message=outcome.sentence, type=name))
    elif outcome.holds is None:
        case.append(_element("skipped", message=outcome.sentence))
    else:
        case.append(_element("system-out", outcome.sentence))
    return case


def _element(tag: str, text: str = "", **attributes: str) -> ElementTree.Element:
    made = ElementTree.Element(tag, {key: _NOT_XML.sub("?", value) for key, value in attributes.items()})
    made.text = _NOT_XML.sub("?", text) or None
    return made


def step_summary(profile: Profile, outcomes: Sequence[ConditionOutcome] = ()) -> str:
    """Markdown for $GITHUB_STEP_SUMMARY: diagnosis, actions, conditions, numbers, and the longest layers."""
    return (
        "\n".join(
            (
                *_diagnosis_lines(profile),
                *_conditions_lines(outcomes),
                *_numbers_lines(profile),
                *_layers_lines(profile),
            )
        )
        + "\n"
    )


def conditions_summary(title: str, sentence: str, outcomes: Sequence[ConditionOutcome]) -> str:
    """The summary of a comparison: its verdict and the conditions."""
    return "\n".join((f"## {_escape(title)}", "", _escape(sentence), "", *_conditions_lines(outcomes))) + "\n"


def _diagnosis_lines(profile: Profile) -> Iterator[str]:
    yield f"## Profile: {_escape(profile.name)}"
    yield ""
    if profile.diagnosis is None:
        return
    yield f"**{_escape(profile.diagnosis.sentence)}**"
    yield ""
    for number, action in enumerate(profile.diagnosis.actions, 1):
        gain = f" **{saving(action)}**" if saving(action) else ""
        yield f"{number}. {_escape(action.text)}{gain} ({_escape(action.confidence)} confidence)"
    yield ""


def _conditions_lines(outcomes: Sequence[ConditionOutcome]) -> Iterator[str]:
    if not outcomes:
        return
    words = {True: "fails", False: "passes", None: "undecided"}
    yield from ("| condition | result | why |", "| --- | --- | --- |")
    for one in outcomes:
        yield f"| {_escape(one.condition)} | {words[one.holds]} | {_escape(one.sentence)} |"
    yield ""


def _numbers_lines(profile: Profile) -> Iterator[str]:
    timing = profile.timing
    rows = [("step", units.duration(timing.median))] if timing.seconds else []
    rows += [(f"{name} a second", units.digits(rate)) for name, rate in _rates_lines(profile)]
    rows += [(level.kind.title, units.percent(level.value)) for level in profile.ladder if level.value is not None]
    if profile.memory.peak_bytes is not None:
        rows.append(("peak memory", units.size(profile.memory.peak_bytes)))
    yield from ("| number | value |", "| --- | ---: |")
    yield from (f"| {_escape(name)} | {value} |" for name, value in rows)
    yield ""


def _rates_lines(profile: Profile) -> Iterator[tuple[str, float]]:
    for name, rate in (("tokens", profile.timing.tokens_per_second), ("samples", profile.timing.samples_per_second)):
        if rate is not None:
            yield name, rate


def _layers_lines(profile: Profile) -> Iterator[str]:
    folds = [fold for fold in fold_layers(profile.layers) if fold.work.seconds > 0][:_LAYERS]
    if not folds:
        return
    yield from ("| layer | own time | share of the step | rules |", "| --- | ---: | ---: | --- |")
    for fold in folds:
        rules = "; ".join(rules_in_words(fold.places))
        time, share = units.duration(fold.work.seconds), units.percent(fold.share)
        yield f"| {_escape(name_with_count(fold))} | {time} | {share} | {_escape(rules)} |"


def _escape(text: str) -> str:
    """The text with its Markdown and HTML characters escaped: a name must not format the page."""
    flat = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|#~])", r"\\\1", flat)
