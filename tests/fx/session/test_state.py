"""What a module runs follows from what was found in it."""

from __future__ import annotations

from autofuse.fx.session.state import Exclusions, ModuleState

SITE, OTHER = ("AF101", "matmul_1", None), ("AF201", "mul", None)


def test_a_mode_that_was_slower_is_closed_where_no_forward_is_for_it() -> None:
    state = ModuleState("layer")
    state.slower_modes.add(False)
    assert state.original_modes == frozenset(), "nothing is installed"
    state.captures_new_calls = True  # for callers that read part of the result, say
    assert state.original_modes == {False}


def test_a_copy_has_closed_modes_of_its_own() -> None:
    state = ModuleState("layer")
    state.captures_new_calls = True
    state.slower_modes.add(True)
    made = state.state_of_copy()
    made.slower_modes.add(False)
    assert state.original_modes == {True} and made.original_modes == {True, False}


def test_sites_are_left_out_in_one_mode_or_in_both() -> None:
    out = Exclusions().plus([SITE]).plus_in(True, [OTHER])
    assert out.sites_in(True) == {SITE, OTHER}
    assert out.sites_in(False) == {SITE}
