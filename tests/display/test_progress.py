"""The progress of long work."""

from __future__ import annotations

import io

from rich.console import Console

from autofuse.display.progress import progress_bar, quietly


def test_a_terminal_shows_the_stage_and_its_progress() -> None:
    shown = io.StringIO()
    with progress_bar("work", Console(file=shown, force_terminal=True, width=100)) as show_progress:
        assert list(show_progress("first", [1, 2, 3], 3)) == [1, 2, 3]
    assert "work: first" in shown.getvalue() and "/3" in shown.getvalue()


def test_progress_is_not_written_to_a_file() -> None:
    shown = io.StringIO()
    with progress_bar("work", Console(file=shown)) as show_progress:
        assert list(show_progress("first", [1, 2], 2)) == [1, 2]
    assert shown.getvalue() == ""


def test_quiet_mode_shows_no_progress() -> None:
    assert list(quietly("stage", [1, 2], 2)) == [1, 2]
