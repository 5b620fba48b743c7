"""The result of tuning as text, as a table and as JSON."""

from __future__ import annotations

import json

import pytest

from autofuse.results.comparison import Estimate, Interval
from autofuse.results.tuning import Trial, TuningResult

MIB = 2**20
QUICK = Trial("compiled", "", 0.48e-3, Interval(0.47e-3, 0.5e-3), 40, 12 * MIB, 6 * MIB, 1e-7, 2e-7)
SLOW = Trial("torch", "", 1.24e-3, Interval(1.2e-3, 1.3e-3), 40, 18 * MIB, 6 * MIB, 1e-7, 1e-6)
ABSENT = Trial("triton", "It runs on cuda, not on cpu.")
RESULT = TuningResult(
    "rms_norm", "compiled", "It is the fastest: 0.48 ms against 1.24 ms of torch.", "float32 (2048, 768)", "cpu", True,
    "speed", False, True, ("compiled", "torch"), Estimate(1.0, Interval(0.98, 1.02)), (ABSENT, SLOW, QUICK),
)  # fmt: skip


def test_json_has_everything_and_is_read_back_unchanged() -> None:
    text = RESULT.to_json()
    assert json.loads(text)["version"] == 1
    assert TuningResult.from_dict(json.loads(text)) == RESULT
    assert TuningResult.from_dict(TuningResult("rms_norm", "torch", "No other.").to_dict()).control is None


def test_another_version_or_form_is_refused() -> None:
    with pytest.raises(ValueError, match="version 2"):
        TuningResult.from_dict({**RESULT.to_dict(), "version": 2})
    with pytest.raises((KeyError, TypeError)):
        TuningResult.from_dict({"version": 1})


def test_the_table_lists_the_best_first_and_excluded_candidates_last() -> None:
    lines = str(RESULT).splitlines()
    order = [
        next(i for i, line in enumerate(lines) if line.split()[:1] == [n]) for n in ("compiled", "torch", "triton")
    ]
    assert order == sorted(order)
    assert TuningResult("rms_norm", "torch", "No other.").refusals() is None
    assert "0.47 to 0.5 ms" in str(RESULT) and "compiled: It is the fastest" in str(RESULT)
    assert "It runs on cuda, not on cpu." in str(RESULT)
    assert "identical runs: 1.00x (0.98 to 1.02)" in str(RESULT)


def test_memory_counts_what_is_kept_twice() -> None:
    assert QUICK.memory == 18 * MIB
    assert ABSENT.memory is None


def test_the_error_for_an_unknown_candidate_lists_the_known_ones() -> None:
    with pytest.raises(KeyError, match="triton, torch, compiled"):
        RESULT.trial("liger")
