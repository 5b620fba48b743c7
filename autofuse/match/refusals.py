"""What to tell readers whose code was nearly fused: what stands in the way, where, and what to change.

Puts the names and lines of a door into the reasons of autofuse/reasons/, where the sentences are. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autofuse.ir.graph import Value
from autofuse.reasons.reason import Reason
from autofuse.rule import Fails, Unknown


@dataclass(frozen=True)
class AuthorText:
    """A value as the reader wrote it, and the line; empty and None where that is not known."""

    text: str = ""
    line: int | None = None


@dataclass(frozen=True)
class Refusal:
    """What stands in the way: a sentence with `value` and `line` in it, one that says what to change, and the code."""

    reason: str
    advice: str = ""
    value: str = ""
    line: int | None = None
    code: str = ""


def refusal(verdict: Fails | Unknown, rule: str, written: Callable[[Value], AuthorText]) -> Refusal:
    """What to tell of a verdict of the rule with the code `rule`; `written` is asked for the values that it names."""
    culprit = written(verdict.culprit) if verdict.culprit is not None else AuthorText()
    if isinstance(verdict, Fails) and verdict.text:
        culprit = AuthorText(verdict.text, verdict.line)
    use = written(verdict.use) if isinstance(verdict, Fails) and verdict.use is not None else AuthorText()
    line, reason = use.line or culprit.line, verdict.reason
    told = reason.sentence(culprit.text, line)
    return Refusal(told, _advice(verdict, rule, culprit.text), culprit.text, line, reason.code.name)


def _advice(verdict: Fails | Unknown, rule: str, value: str) -> str:
    """What to change; the rule's own advice comes first."""
    own = verdict.advice.replace("{value}", f"`{value}`" if value else "it")
    advice = own or verdict.reason.advice(value)
    enables = isinstance(verdict, Fails) and verdict.enables and rule not in advice
    return f"{advice}, then {rule} applies" if advice and enables else advice


def unread(reason: Reason, at: AuthorText) -> Refusal:
    """What to tell of a forward that could not be read, because of what is written `at` a place in it."""
    return Refusal(reason.sentence(at.text, at.line), reason.advice(at.text), at.text, at.line, reason.code.name)
