"""The difference of two profiles on a terminal. No torch."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from autofuse.report import terminal
from autofuse.report.changes import changes, changes_table
from autofuse.report.comparison import TONES
from autofuse.report.difference import Difference
from autofuse.report.profile import Profile
from autofuse.report.profile_terminal import summary_of_both


def told(difference: Difference) -> RenderableType:
    """The verdict, why, and what differs besides."""
    lines = [Text(difference.summary, terminal.STYLES[TONES[difference.verdict]]), Text(difference.reason)]
    lines += [Text(f"note: {caveat}") for caveat in difference.caveats if caveat not in difference.reason]
    return Group(*lines)


def of_both(before: Profile, after: Profile, difference: Difference) -> RenderableType:
    """Two profiles: verdict, step, memory, ladder, layers."""
    doubt = difference.verdict == "inconclusive"
    note = "; as the whole is inconclusive, this may be the machine's doing" if doubt else ""
    changed = changes_table(changes(before, after), note=note)
    layers = [terminal.drawn(changed)] if changed.rows else []
    return Group(told(difference), Text(), summary_of_both(before, after), *layers)
