"""The shares of a step: clocked shares are combined with recorded ones."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autofuse.profiling.live.assemble import _PARTS, BUSY, _busy_machine, _shares
from autofuse.results.comparison import Interval
from autofuse.results.profile import Share

RECORDED = tuple(
    Share(name, share * 0.3, share)
    for name, share in (
        ("forward", 0.4), ("backward", 0.4), ("optimizer", 0.1), ("data", 0.0), ("idle", 0.1), ("host", 0.2),
    )
)  # fmt: skip


def test_shares_of_recorded_steps_become_seconds_of_a_timed_one() -> None:
    shares = _shares([], RECORDED, 0.2)
    assert [share.share for share in shares] == [share.share for share in RECORDED]
    assert [share.seconds for share in shares] == pytest.approx([0.08, 0.08, 0.02, 0.0, 0.02, 0.04])


def test_clocked_shares_stay_and_the_others_divide_the_rest() -> None:
    # Half of a timed step waits for data. Forward, backward, optimizer and idle were 4 : 4 : 1 : 1.
    shares = {share.name: share for share in _shares([Share("data", 0.1, 0.5, "clocked")], RECORDED, 0.2)}
    assert shares["data"].basis == "clocked"
    assert shares["forward"].share == pytest.approx(0.2)
    assert shares["optimizer"].seconds == pytest.approx(0.01)
    assert sum(shares[name].share or 0 for name in _PARTS) == pytest.approx(1)
    assert shares["host"].share == pytest.approx(0.2)  # it runs beside them


def test_a_part_of_the_unclocked_time_is_as_uncertain_as_both() -> None:
    clocked = [Share("data", 0.1, 0.5, "clocked", interval=Interval(0.4, 0.6))]
    recorded = tuple(replace(share, interval=Interval(share.share or 0.0, 0.5)) for share in RECORDED)
    shares = {share.name: share for share in _shares(clocked, recorded, 0.2, Interval(0.4, 0.6))}
    assert shares["data"].interval == (0.4, 0.6)
    assert shares["forward"].interval == pytest.approx((0.4 * 0.4, 0.5 * 0.6))
    assert shares["host"].interval == pytest.approx((0.2, 0.5))  # it runs beside them


def test_a_busy_machine_is_reported() -> None:
    assert _busy_machine(BUSY / 2) == ()
    assert "30% of the time for a core" in _busy_machine(0.3)[0]


def test_shares_that_were_not_clocked_come_from_the_recording() -> None:
    shares = _shares([Share("optimizer", None, None, reason="a closure")], RECORDED, 0.2)
    assert shares[2].share == pytest.approx(0.1)
