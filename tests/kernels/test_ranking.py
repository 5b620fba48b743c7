"""Policies on plain numbers: which candidates are faster, which are equal, and what then decides."""

from __future__ import annotations

import random

from autofuse.kernels.policy import Policy
from autofuse.kernels.ranking import CandidateTime, rank
from autofuse.results.comparison import Estimate, Interval
from autofuse.results.tuning import Trial

MIB = 2**20
STEADY = Estimate(1.0, Interval(0.99, 1.01))


def timed_candidates(*trials: Trial, control: Estimate = STEADY, spread: float = 0.01, runs: int = 20) -> CandidateTime:
    """Samples around each trial's seconds."""
    draws = random.Random(0)
    samples = {t.name: [(t.seconds or 0) * draws.uniform(1 - spread, 1 + spread) for _ in range(runs)] for t in trials}
    return CandidateTime(trials, samples, control)


def trial(name: str, milliseconds: float, mib: float = 10, error: float = 0.5) -> Trial:
    return Trial(name, seconds=milliseconds * 1e-3, peak_bytes=int(mib * MIB), held_bytes=0, error=error, bound=1.0)


def winner(found: CandidateTime, policy: Policy = "speed") -> str:
    return rank(found, policy)[0][0]


def test_the_fastest_wins_and_the_reason_has_the_numbers() -> None:
    order, why = rank(timed_candidates(trial("torch", 3), trial("compiled", 1), trial("liger", 2)), "speed")
    assert order == ("compiled", "liger", "torch")
    assert why == "It is the fastest: 1 ms, against 2 ms for liger."


def test_memory_and_then_the_simpler_code_decide_between_equal_times() -> None:
    assert winner(timed_candidates(trial("torch", 1, mib=20), trial("compiled", 1.005, mib=10))) == "compiled"
    assert winner(timed_candidates(trial("compiled", 1, mib=10), trial("torch", 1.005, mib=10.1))) == "torch"


def test_the_original_stays_if_no_candidate_is_better() -> None:
    order, why = rank(timed_candidates(trial("torch", 1), trial("compiled", 1), trial("original", 1.005)), "speed")
    assert order[:2] == ("original", "torch")
    assert why.startswith("No candidate is better")


def test_a_difference_within_the_noise_does_not_count() -> None:
    noisy = Estimate(1.0, Interval(0.8, 1.2))
    assert winner(timed_candidates(trial("compiled", 1), trial("torch", 1.15), control=noisy)) == "torch"
    assert winner(timed_candidates(trial("compiled", 1), trial("torch", 1.5), control=noisy)) == "compiled"


def test_less_than_two_percent_does_not_count() -> None:
    assert winner(timed_candidates(trial("compiled", 1), trial("torch", 1.015), spread=0.001)) == "torch"


def test_a_noisy_machine_cannot_find_equal_candidates() -> None:
    wild = Estimate(1.0, Interval(0.5, 2.0))
    unsteady = timed_candidates(trial("compiled", 1), trial("torch", 1.5), control=wild)
    assert "Too noisy" in unsteady.unclear("torch")
    assert timed_candidates(trial("compiled", 1), trial("torch", 3), control=wild).unclear("compiled") == ""
    assert timed_candidates(trial("compiled", 1), trial("torch", 1)).unclear("torch") == ""


def test_the_policy_memory_ranks_by_memory_first() -> None:
    found = timed_candidates(trial("torch", 1, mib=20), trial("compiled", 2, mib=10), trial("liger", 1.5, mib=10.2))
    assert winner(found) == "torch"
    order, why = rank(found, "memory")
    assert order == ("liger", "compiled", "torch")
    assert why.startswith("Of the candidates that are equal in memory, it is the fastest")


def test_unknown_memory_decides_nothing() -> None:
    found = timed_candidates(trial("torch", 1, mib=20), Trial("compiled", seconds=0.5e-3))
    assert winner(found, "memory") == "compiled"


def test_the_policy_accuracy_ranks_by_error_first() -> None:
    found = timed_candidates(
        trial("torch", 3, error=0.3), trial("compiled", 1, error=0.9), trial("liger", 2, error=0.32)
    )
    assert rank(found, "accuracy")[0] == ("liger", "torch", "compiled")


def test_errors_far_below_the_bound_count_as_equal() -> None:
    assert (
        winner(timed_candidates(trial("torch", 3, error=1e-6), trial("compiled", 1, error=0.05)), "accuracy")
        == "compiled"
    )


def test_a_candidate_that_was_dropped_early_loses() -> None:
    found = timed_candidates(trial("torch", 1), trial("compiled", 2))
    short = CandidateTime(found.trials, {**found.samples, "compiled": found.samples["compiled"][:3]}, STEADY)
    assert rank(short, "speed")[0] == ("torch", "compiled")


def test_a_single_candidate_is_reported_as_such() -> None:
    assert rank(timed_candidates(trial("torch", 1)), "speed") == (
        ("torch",),
        "No other candidate can run this call. It takes 1 ms.",
    )
