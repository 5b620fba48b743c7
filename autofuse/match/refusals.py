"""Turns verdicts into refusals for reports: the reason, the place, and what to change.

The sentences are in autofuse/reasons/. This file fills in the names and lines that a front end knows. It decides
nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autofuse.ir.graph import Value
from autofuse.reasons.reason import Reason
from autofuse.rule import Fails, Unknown


@dataclass(frozen=True)
class AuthorText:
    """The text and line of a value in the user's source; "" and None if unknown."""

    text: str = ""
    line: int | None = None


@dataclass(frozen=True)
class Refusal:
    """A reason together with its culprit.

    Attributes:
        reason: a sentence that names `value` and `line`.
        advice: what to change.
        value: the culprit, as written in the source.
        line: the line of the culprit or of its use.
        code: the code of the reason.
    """

    reason: str
    advice: str = ""
    value: str = ""
    line: int | None = None
    code: str = ""


def refusal(verdict: Fails | Unknown, rule: str, written: Callable[[Value], AuthorText]) -> Refusal:
    """Turn a verdict into a refusal.

    Args:
        verdict: the verdict.
        rule: the code of the rule.
        written: returns the source text of a value.
    """
    culprit = written(verdict.culprit) if verdict.culprit is not None else AuthorText()
    if isinstance(verdict, Fails) and verdict.text:
        culprit = AuthorText(verdict.text, verdict.line)
    use = written(verdict.use) if isinstance(verdict, Fails) and verdict.use is not None else AuthorText()
    line, reason = use.line or culprit.line, verdict.reason
    sentence = reason.sentence(culprit.text, line)
    return Refusal(sentence, _advice_for(verdict, rule, culprit.text), culprit.text, line, reason.code.name)


def _advice_for(verdict: Fails | Unknown, rule: str, value: str) -> str:
    """The advice: the rule's own, or else the reason's."""
    own = verdict.advice.replace("{value}", f"`{value}`" if value else "it")
    advice = own or verdict.reason.advice(value)
    enables = isinstance(verdict, Fails) and verdict.enables and rule not in advice
    return f"{advice}, then {rule} applies" if advice and enables else advice


def unread(reason: Reason, at: AuthorText) -> Refusal:
    """The refusal for a forward that cannot be captured because of the expression `at`."""
    return Refusal(reason.sentence(at.text, at.line), reason.advice(at.text), at.text, at.line, reason.code.name)
