"""The diagnosis of a profile, as a sentence and actions, for terminals, pages and notebooks."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from autofuse.display import terminal
from autofuse.results import units
from autofuse.results.table import Cell, Column, Table

if TYPE_CHECKING:
    from autofuse.results.diagnosis import Action, Diagnosis

_QUIET = terminal.STYLES["quiet"]


def for_terminal(found: Diagnosis) -> RenderableType:
    """The sentence, then each action with its saving, evidence and confidence."""
    lines: list[RenderableType] = [Text(found.sentence, "bold")]
    for number, action in enumerate(found.actions, 1):
        text = Text.assemble(f"{number}. ", action.text, (f"  {saving(action)}" if saving(action) else "", "green"))
        lines += [Padding(text, (0, 0, 0, 2)), Padding(Text(evidence_and_confidence(action), _QUIET), (0, 0, 0, 5))]
    return Group(*lines)


def saving(action: Action) -> str:
    """The saving as text: "saves up to 12.3 ms a step"; "" if no saving is predicted."""
    if not action.milliseconds:
        return ""
    return f"saves up to {units.duration(action.milliseconds * 1e-3)} a step"


def evidence_and_confidence(action: Action) -> str:
    """The evidence for an action and the confidence in it, as text."""
    return f"{action.evidence}{'; ' if action.evidence else ''}{action.confidence} confidence"


def actions_table(found: Diagnosis) -> Table:
    """A table with one row for each action."""
    columns = (
        Column("what to do", wraps=True),
        Column("saves up to"),
        Column("evidence", wraps=True),
        Column("confidence"),
    )
    rows = tuple(
        (
            Cell(f"{number}. {action.text}"),
            Cell(units.duration(None if action.milliseconds is None else action.milliseconds * 1e-3)),
            Cell(action.evidence, "quiet"),
            Cell(action.confidence, "quiet"),
        )
        for number, action in enumerate(found.actions, 1)
    )
    return Table("", columns, rows)


def heading(found: Diagnosis) -> str:
    """The sentence, for a notebook."""
    return f'<div style="font-weight:650;font-size:1.1em;margin:.3em 0">{escape(found.sentence)}</div>'
