"""The page of the side-by-side benchmark: reasons are short, and name no folder of a machine."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.peers.page import as_markdown, load_sentence, ratio_text, reason_in
from benchmarks.readme_table import gains_table


@pytest.mark.parametrize(
    ("errors", "reason"),
    [
        ("Traceback ...\nbenchmarks.peers.ways.NotHere: ViT is not in its list", "ViT is not in its list"),
        ("noise\nRuntimeError: no /home/me/lib.so here\n", "RuntimeError: no lib.so here"),
        ("ImportError: no name a in b (/home/me/b.py)", "ImportError: no name a in b"),
        ("Segmentation fault", "the process ended with -11"),
    ],
)  # fmt: skip
def test_a_reason_is_the_last_error(errors: str, reason: str) -> None:
    assert reason_in(errors, -11) == reason


def test_a_ratio_has_its_interval() -> None:
    assert ratio_text({"ratio": 1.634, "interval": [1.5, 1.7]}) == "1.63x (1.50 to 1.70)"


@pytest.mark.parametrize(
    ("loads", "sentence"),
    [
        ([13.1, 16.4], "Other programs kept the cores busy: the load was 13 to 16."),
        ([0.2, 1.6], "The load was 0.2 to 1.6, this benchmark included."),
    ],
)
def test_the_page_says_whether_the_machine_was_busy(loads: list[float], sentence: str) -> None:
    assert load_sentence({"cores": "2"}, loads) == sentence


@pytest.mark.parametrize(
    ("loads", "clock", "words"),
    [
        ([13.0, 16.0], "core", "(load 13 to 16; the clock counts only the time for which the thread had a core):"),
        ([13.0, 16.0], "wall", "kept the cores busy (load 13 to 16):"),
        ([0.2, 1.6], "wall", "interval (load 0.2 to 1.6, this benchmark included):"),
    ],
)
def test_the_readmes_table_says_what_the_clock_counts(loads: list[float], clock: str, words: str) -> None:
    peers: dict[str, Any] = {
        "environment": {"processor": "P", "torch": "2.13.0+cpu", "cores": "2"}, "load": loads,
        "models": {"a": {"timed": {"clock": clock}}},
    }  # fmt: skip
    assert words in gains_table(peers)


def test_the_page_names_the_older_torch_and_what_was_wrong_with_it() -> None:
    about = {"processor": "P", "torch": "2.13.0", "cores": "2", "python": "3.11"}
    data: dict[str, Any] = {"environment": about, "load": [1.0], "models": {}, "lookalikes": {}, "ways": {}}
    thunder = {"distribution": "lightning-thunder", "version": "0.2.6"}
    verdicts = {"Thunder": {"a hook": "wrong", "a norm": "right", "a mask": "declined: TypeError"}}
    older = {**data, "environment": {**about, "torch": "2.12.0"}, "ways": {"Thunder": thunder}, "lookalikes": verdicts}
    page = as_markdown(data, older)
    assert "With torch 2.12.0, lightning-thunder 0.2.6:" in page
    assert "| Thunder | 1 | 1 | 1 |" in page and "Wrong with Thunder: a hook." in page
    assert "older torch" not in as_markdown(data)
