"""MFU, HFU, the ideal step and the limits of layers, against numbers computed by hand."""

from __future__ import annotations

import pytest

from autofuse.profiling.live.roofline import levels, regime_of, regimes
from autofuse.profiling.live.roofs import Roofs
from autofuse.results.comparison import Estimate, Interval
from autofuse.results.profile import Flops, Layer, Probe, Roof, Work

TOY = Roofs("toy", ((0, 10.0),), 5.0, 0.5, {"float32": 100.0}, flops_source="its data sheet", bytes_source="a sheet")


def layer(work: Work, fqn: str = "block") -> Layer:
    return Layer(fqn, "Block", 1, work, Work(), work, Work())


def test_utilisation_is_flops_over_seconds_over_the_peak() -> None:
    works = {("a", "forward"): Work(0, 600, 50, 2, ideal_seconds=8.0), ("a", "backward"): Work(0, 0, 0, 1, 2.0)}

    found = levels(Flops(model=400, hardware=600, dtype="float32"), 20.0, TOY, works)  # type: ignore[arg-type]

    assert found["mfu"].value == pytest.approx(0.2)
    assert found["hfu"].value == pytest.approx(0.3)
    assert found["ideal"].value == pytest.approx(0.5)
    assert "its data sheet" in found["mfu"].basis


def test_more_than_the_peak_is_an_error_in_the_inputs_and_no_number() -> None:
    found = levels(Flops(model=400, hardware=600, dtype="float32"), 5.0, TOY, {("a", "forward"): Work(0, 0, 0, 1, 6.0)})

    assert found["mfu"].value == pytest.approx(0.8)
    assert found["hfu"].value is None
    assert "result is 1.20" in found["hfu"].reason
    assert "its data sheet" in found["hfu"].reason
    assert found["ideal"].value is None
    assert "result is 1.20" in found["ideal"].reason


def test_a_measured_peak_that_is_too_low_is_measured_again() -> None:
    again = iter([100.0, 300.0])
    busy = Roofs("toy", ((0, 10.0),), 5.0, 0.5, measure=lambda dtype: next(again))

    found = levels(Flops(model=600, hardware=600, dtype="float32"), 4.0, busy, {})

    assert found["hfu"].value == found["mfu"].value == pytest.approx(0.5)


def test_without_a_peak_in_the_dtype_there_is_no_share() -> None:
    found = levels(Flops(model=400, hardware=600, dtype="float8_e4m3fn"), 20.0, TOY, {})

    assert found["mfu"].value is found["hfu"].value is None
    assert "float8_e4m3fn" in found["mfu"].reason


def test_without_a_count_there_is_no_number() -> None:
    found = levels(Flops(reason="A trace holds no FLOPs."), 1.0, TOY, {})

    assert found["mfu"].value is None
    assert found["mfu"].reason == "A trace holds no FLOPs."
    assert found["ideal"].value is None
    assert levels(Flops(model=0, hardware=0, basis="one step"), 1.0, TOY, {})["mfu"].value is None


@pytest.mark.parametrize(
    ("work", "regime"),
    [
        (Work(10.0, 1000, 99, 1), "compute"),
        (Work(10.0, 1000, 101, 1), "memory"),
        (Work(10.0, 0, 5, 1), "memory"),
        (Work(10.0, 1000, 99, 10), "overhead"),
        (Work(10.0, 0, 0, 1), "unknown"),
    ],
)
def test_the_intensity_decides_the_regime_unless_launches_limit(work: Work, regime: str) -> None:
    assert regime_of(work, Roof(100.0, 10.0), launch=0.5)[0] == regime


def test_a_layers_position_is_its_ideal_time_divided_by_its_time() -> None:
    (found,) = regimes([layer(Work(20.0, 1000, 50, 2, ideal_seconds=10.0))], TOY, Probe())

    assert found.roofline == pytest.approx(0.5)
    assert found.regime == "compute"
    assert "50%" in found.why


def test_a_layer_faster_than_the_roofs_has_a_reason_and_no_position() -> None:
    (found,) = regimes([layer(Work(5.0, 0, 100, 1, ideal_seconds=10.0))], TOY, Probe())

    assert found.roofline is None
    assert found.regime == "memory"
    assert "cache" in found.why


def test_a_layer_without_time_or_operators_is_not_judged() -> None:
    timeless, empty = regimes([layer(Work(0.0, 10, 10, 1)), layer(Work(1.0))], TOY, Probe())

    assert timeless.regime == empty.regime == "unknown"
    assert timeless.why
    assert empty.why


@pytest.mark.parametrize("work", [Work(1.0, 1000, 99, 1), Work(1.0, 0, 50, 0), Work(1.0, 1000, 0, 1)])
def test_a_layer_with_any_count_gets_a_regime(work: Work) -> None:
    (found,) = regimes([layer(work)], TOY, Probe())
    assert "No operator" not in found.why


def test_the_probe_decides_for_the_whole_model() -> None:
    probe = Probe(1.2, Interval(1.1, 1.3), "overhead", "Twice the batch takes 1.2 times as long.")
    work = Work(20.0, 1000, 50, 2, ideal_seconds=10.0)

    whole, part = regimes([layer(work, ""), layer(work, "block")], TOY, probe)

    assert (whole.regime, part.regime) == ("overhead", "compute")
    assert whole.why.startswith(probe.reason)


@pytest.mark.parametrize(
    ("ratio", "interval", "regime"),
    [(1.1, (1.0, 1.3), "overhead"), (1.4, (1.2, 1.7), "inconclusive"), (1.9, (1.3, 2.2), "compute")],
)
def test_a_layers_own_probe_decides_whether_overhead_limits_it(
    ratio: float, interval: tuple[float, float], regime: str
) -> None:
    computing = layer(Work(20.0, 1000, 50, 2, ideal_seconds=10.0), "block")
    grown = {"block": Estimate(ratio, Interval(*interval))}
    (found,) = regimes([computing], TOY, Probe(), grown=grown)
    assert found.regime == regime
    assert (found.doubled, found.doubled_interval) == (ratio, interval)
    assert f"{ratio:.2f} times as long" in found.why
