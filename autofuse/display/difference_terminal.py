"""The difference of two profiles on a terminal. No torch."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from autofuse.display import terminal
from autofuse.display.changes import changes, changes_table, kernel_changes, kernel_changes_table
from autofuse.display.profile_terminal import summary_of_both
from autofuse.results.comparison import TONES
from autofuse.results.difference import Difference
from autofuse.results.profile import Profile


def verdict_of(difference: Difference) -> RenderableType:
    """The verdict, the reason, and what else differs."""
    lines = [Text(difference.summary, terminal.STYLES[TONES[difference.verdict]]), Text(difference.reason)]
    lines += [Text(f"note: {caveat}") for caveat in difference.caveats if caveat not in difference.reason]
    return Group(*lines)


def of_both(before: Profile, after: Profile, difference: Difference) -> RenderableType:
    """Two profiles: verdict, step, memory, utilisation, layers, kernels."""
    doubt = difference.verdict == "inconclusive"
    note = "; the comparison as a whole is inconclusive, so the machine may be the cause" if doubt else ""
    changed = changes_table(changes(before, after), note=note)
    kernels = kernel_changes_table(kernel_changes(before, after), note=note)
    tables = [terminal.as_rich(table) for table in (changed, kernels) if table.rows]
    return Group(verdict_of(difference), Text(), summary_of_both(before, after), *tables)
