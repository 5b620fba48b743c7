"""The line of the log that says how much work is ahead."""

from __future__ import annotations

import logging

import pytest
from torch import Tensor, nn

import autofuse
from tests.fx.conftest import Gpt


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.message for r in caplog.records if " to check" in r.message or " to time" in r.message]


def test_what_is_checked_and_weighed_is_told_before(tokens: Tensor, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "autofuse"):
        autofuse.optimize(Gpt(), tokens, tune=True)
    (line,) = told(caplog)
    assert line.startswith("Gpt: 2 kinds of modules to check, with up to 0.00 GiB; ")  # blocks and attention
    assert line.endswith(" s.") and " sites to time, in at most about " in line


def test_what_is_not_done_is_not_told(tokens: Tensor, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "autofuse"):
        autofuse.optimize(Gpt(), tokens, tune=False)
        autofuse.optimize(nn.Linear(2, 2), tokens.float()[:, :2])
    (line,) = told(caplog)
    assert "to check" in line and "to time" not in line
