"""How a rank follows the decisions of another one. test_distributed.py tests the store with real processes."""

from __future__ import annotations

import logging

import pytest

from autofuse.fx.session.ranks import Decisions, Disagreement, exclusion_reason, sites_to_exclude

ATTENTION, MLP = ("blocks.0.attention", "AF101", "12"), ("blocks.0.mlp", "AF303", "20")


def test_a_site_that_another_rank_did_not_fuse_is_excluded_with_its_reason() -> None:
    mine = Decisions(frozenset({ATTENTION, MLP}), rank=1)
    theirs = Decisions(frozenset({ATTENTION}), {MLP[:2]: ("rolled-back", "result[0] is off by 1.0")})
    assert sites_to_exclude(mine, theirs) == {MLP}
    status, reason = exclusion_reason(theirs, *MLP[:2])
    assert (status, str(reason)) == ("rolled-back", "rank 0 did not fuse it: result[0] is off by 1.0")
    assert reason.code.name == "other-rank"


def test_a_site_that_only_the_other_rank_can_fuse_is_an_error_with_both_reasons() -> None:
    mine = Decisions(frozenset(), {ATTENTION[:2]: ("rolled-back", "result[0] is off by 1.0.")}, rank=3)
    with pytest.raises(Disagreement) as raised:
        sites_to_exclude(mine, Decisions(frozenset({ATTENTION})))
    said = str(raised.value)
    assert "AF101 in blocks.0.attention" in said and "rank 0 fused it" in said
    assert "On rank 3 it failed verification: result[0] is off by 1.0." in said


def test_calls_of_other_sizes_may_differ_and_that_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    mine, theirs = Decisions(sizes="[(2, 8)]", rank=1), Decisions(frozenset({ATTENTION}), sizes="[(2, 9)]")
    with caplog.at_level(logging.WARNING, "autofuse"):
        assert sites_to_exclude(mine, theirs) == frozenset()
    assert "AF101" in caplog.text and "other sizes" in caplog.text


def test_without_an_excluded_site_the_other_ranks_site_may_match() -> None:
    smaller = ("blocks.0.mlp", "AF302", "20")
    assert sites_to_exclude(Decisions(frozenset({MLP})), Decisions(frozenset({smaller}))) == {MLP}
