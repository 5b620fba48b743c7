"""The difference of two profiles on a terminal. No torch."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from autofuse.display import terminal
from autofuse.display.changes import changes, changes_table
from autofuse.display.profile_terminal import summary_of_both
from autofuse.results.comparison import TONES
from autofuse.results.difference import Difference
from autofuse.results.profile import Profile


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
