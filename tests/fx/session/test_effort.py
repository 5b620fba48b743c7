"""The log line that estimates the work of checking and timing."""

from __future__ import annotations

import logging

import pytest
from torch import Tensor, nn

import autofuse
from tests.fx.conftest import Gpt


def effort_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.message for r in caplog.records if " to check" in r.message or " to time" in r.message]


def test_the_log_first_counts_the_checks_and_timings(tokens: Tensor, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "autofuse"):
        autofuse.optimize(Gpt(), tokens, tune=True)
    (line,) = effort_lines(caplog)
    assert line.startswith("Gpt: 2 kinds of modules to check, with up to 0.00 GiB; ")  # blocks and attention
    assert line.endswith(" s.") and " sites to time, in at most about " in line


def test_the_log_does_not_mention_steps_that_are_off(tokens: Tensor, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "autofuse"):
        autofuse.optimize(Gpt(), tokens, tune=False)
        autofuse.optimize(nn.Linear(2, 2), tokens.float()[:, :2])
    (line,) = effort_lines(caplog)
    assert "to check" in line and "to time" not in line
