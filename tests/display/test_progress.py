"""How far long work has come."""

from __future__ import annotations

import io

from rich.console import Console

from autofuse.display.progress import progress_bar, quietly


def test_a_terminal_is_told_the_stage_and_how_far_it_is() -> None:
    shown = io.StringIO()
    with progress_bar("work", Console(file=shown, force_terminal=True, width=100)) as tell:
        assert list(tell("first", [1, 2, 3], 3)) == [1, 2, 3]
    assert "work: first" in shown.getvalue() and "/3" in shown.getvalue()


def test_a_file_is_told_nothing() -> None:
    shown = io.StringIO()
    with progress_bar("work", Console(file=shown)) as tell:
        assert list(tell("first", [1, 2], 2)) == [1, 2]
    assert shown.getvalue() == ""


def test_nobody_is_told_quietly() -> None:
    assert list(quietly("stage", [1, 2], 2)) == [1, 2]
