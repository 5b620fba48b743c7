"""The forwards of a module follow from its state."""

from __future__ import annotations

from autofuse.fx.session.state import Exclusions, ModuleState

SITE, OTHER = ("AF101", "matmul_1", None), ("AF201", "mul", None)


def test_the_original_runs_in_a_slower_mode_without_a_forward() -> None:
    state = ModuleState("layer")
    state.slower_modes.add(False)
    assert state.original_modes == frozenset(), "nothing is installed"
    state.captures_new_calls = True  # for example for narrow calls
    assert state.original_modes == {False}


def test_a_copy_has_its_own_slower_modes() -> None:
    state = ModuleState("layer")
    state.captures_new_calls = True
    state.slower_modes.add(True)
    made = state.state_of_copy()
    made.slower_modes.add(False)
    assert state.original_modes == {True} and made.original_modes == {True, False}


def test_sites_are_excluded_in_one_mode_or_in_both() -> None:
    out = Exclusions().plus([SITE]).plus_in(True, [OTHER])
    assert out.sites_in(True) == {SITE, OTHER}
    assert out.sites_in(False) == {SITE}
