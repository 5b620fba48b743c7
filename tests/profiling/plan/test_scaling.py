"""Simulated scaling, compared with numbers computed by hand."""

from __future__ import annotations

import pytest

from autofuse.profiling.plan.scaling import BUCKET, STRATEGIES, Link, StepEstimate, StepWork, estimate, recommend

# 1 s; 1 GB of parameters and of gradients; 10 MB of activations at each of 10 blocks. 10 GB/s.
WORK = StepWork(1.0, 10**9, 10**9, 10**7, 10, microbatches=6)
LINK = Link(1e10)


@pytest.mark.parametrize(
    "strategy, sent",
    [
        ("ddp", 2 * 3 / 4 * 10**9),
        ("fsdp", 3 / 4 * 3 * 10**9),
        ("tp", 40 * 2 * 3 / 4 * 10**7),
        ("pp", 2 * 10**7),
    ],
)
def test_each_strategy_sends_what_its_formula_says(strategy: str, sent: float) -> None:
    found = estimate(WORK, strategy, 4, LINK)
    assert found.sent == pytest.approx(sent)
    assert found.communication == pytest.approx(sent / 1e10)


def test_groups_send_within_and_across() -> None:
    """8 devices in groups of 4: 3/4 x 3 GB within, and 2 x 1/2 x 250 MB with the one peer in the other group."""
    found = estimate(WORK, "hsdp", 8, LINK, group=4, across=Link(1e9))
    assert found.sent == pytest.approx(2.25e9 + 0.25e9)
    assert found.communication == pytest.approx(0.225 + 0.25)


def test_one_group_of_all_is_fsdp_and_groups_of_one_send_what_ddp_does() -> None:
    assert estimate(WORK, "hsdp", 4, LINK, group=4).sent == estimate(WORK, "fsdp", 4, LINK).sent
    assert estimate(WORK, "hsdp", 4, LINK, group=1).sent == estimate(WORK, "ddp", 4, LINK).sent


def test_strong_scaling_of_ddp_by_hand() -> None:
    """Computing takes 0.25 s. 2/3 of it can hide all of the 0.15 s of sending. At worst the step takes 0.4 s."""
    found = estimate(WORK, "ddp", 4, LINK)
    assert (found.computing, found.best, found.worst) == pytest.approx((0.25, 0.25, 0.40))
    assert (found.efficiency_best, found.efficiency_worst) == pytest.approx((1.0, 0.625))


def test_communication_longer_than_the_backward_also_counts_in_the_best_case() -> None:
    """1 GB/s: 1.5 s of sending, 1/6 s of it hidden."""
    assert estimate(WORK, "ddp", 4, Link(1e9)).best == pytest.approx(0.25 + 1.5 - 0.25 * 2 / 3)


def test_weak_scaling_keeps_the_batch_of_each_device() -> None:
    found = estimate(WORK, "fsdp", 4, LINK, mode="weak")
    assert (found.computing, found.best, found.worst) == pytest.approx((1.0, 1.0, 1.225))
    assert found.efficiency_worst == pytest.approx(1 / 1.225)
    assert estimate(WORK, "tp", 4, LINK, mode="weak").sent == pytest.approx(4 * 6e8)  # of four times the samples


def test_a_pipeline_is_idle_while_it_fills_and_drains() -> None:
    """3 stages, 6 microbatches: 2 of 8 slots are empty, so the step takes 8/6 of its computing."""
    found = estimate(WORK, "pp", 3, Link(1e15))
    assert found.computing == pytest.approx(1 / 3 * 8 / 6)
    assert found.efficiency_best == pytest.approx(6 / 8, rel=1e-6)


def test_latency_counts_once_a_message() -> None:
    slow = Link(1e15, 1e-3)
    assert estimate(WORK, "fsdp", 4, slow).messages == 3 * 3 * 10
    assert estimate(WORK, "fsdp", 4, slow).communication == pytest.approx(0.09, rel=1e-3)
    assert estimate(WORK, "tp", 2, slow).messages == 2 * 40
    assert estimate(StepWork(1.0, 0, 3 * BUCKET), "ddp", 2, slow).messages == 2 * 3


def test_the_constant_part_of_a_step_limits_strong_scaling_by_amdahls_law() -> None:
    stays = StepWork(1.0, 0, 0, constant=0.2)
    assert estimate(stays, "ddp", 4, LINK).best == pytest.approx(0.4)
    assert estimate(stays, "ddp", 4, LINK, mode="weak").best == pytest.approx(1.0)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("mode", ["strong", "weak"])
def test_a_single_device_keeps_its_speed(strategy: str, mode: str) -> None:
    found = estimate(WORK, strategy, 1, LINK, mode=mode)  # type: ignore[arg-type]
    assert (found.sent, found.best, found.efficiency_worst) == (0, 1.0, 1.0)


def of(strategy: str, worst: float) -> StepEstimate:
    return StepEstimate(strategy, 4, "strong", 0, 0, 1, 0, 1, 1, 1.0, worst)


def test_memory_decides_before_speed() -> None:
    advice = recommend([of("ddp", 0.9), of("fsdp", 0.7), of("tp", 0.5)], {"ddp": False, "fsdp": True, "tp": True})
    assert advice.strategy == "fsdp"
    assert "ddp would not fit" in advice.why and "70%" in advice.why


def test_of_equal_strategies_the_simpler_one_is_recommended_and_unknown_ones_never() -> None:
    assert recommend([of("ddp", 0.897), of("fsdp", 0.9)], {"ddp": True, "fsdp": True}).strategy == "ddp"
    assert recommend([of("pp", 0.9), of("ddp", 0.5)], {"pp": None, "ddp": True}).strategy == "ddp"
    assert recommend([of("pp", 0.9)], {"pp": None}).strategy == ""


def test_numbers_that_make_no_sense_are_refused() -> None:
    for wrong in (
        lambda: estimate(WORK, "magic", 2, LINK), lambda: estimate(WORK, "ddp", 0, LINK),
        lambda: estimate(WORK, "hsdp", 8, LINK, group=3), lambda: Link(0.0), lambda: Link(1.0, -1.0),
        lambda: StepWork(0.0, 1, 1), lambda: StepWork(1.0, 1, 1, constant=2.0), lambda: StepWork(1.0, -1, 1),
        lambda: recommend([], {}),
    ):  # fmt: skip
        with pytest.raises(ValueError):
            wrong()
