"""Numbers with units, for people."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autofuse.results import units


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.254, "254 ms"), (1.5, "1.5 s"), (0.0000123, "12.3 µs"), (90.0, "90 s"), (1234.0, "1,234 s"), (0.0, "0 s"),
     (3e-10, "0.3 ns"), (0.9999, "1 s"), (None, "n/a"), (math.nan, "n/a")],
)  # fmt: skip
def test_times_have_the_unit_that_suits_them(seconds: float | None, shown: str) -> None:
    assert units.duration(seconds) == shown


@pytest.mark.parametrize(
    ("fraction", "shown"),
    [(1 / 132, "0.758 %"), (0.372, "37.2 %"), (1.0, "100 %"), (0.0, "0 %"), (1e-6, "< 0.01 %"), (None, "n/a"),
     (math.inf, "n/a")],
)  # fmt: skip
def test_a_positive_value_is_never_shown_as_zero(fraction: float | None, shown: str) -> None:
    assert units.percent(fraction) == shown


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0 B"),
        (1023, "1,023 B"),
        (1024, "1 KiB"),
        (202 * 2**20, "202 MiB"),
        (1536 * 2**20, "1.5 GiB"),
        (None, "n/a"),
    ],
)
def test_bytes_are_binary(count: int | None, shown: str) -> None:
    assert units.size(count) == shown


@pytest.mark.parametrize(
    ("count", "shown"), [(8.8e9, "8.8 GFLOP"), (999, "999 FLOP"), (999_999, "1 MFLOP"), (0, "0 FLOP"), (None, "n/a")]
)
def test_operations_are_decimal(count: float | None, shown: str) -> None:
    assert units.amount(count, "FLOP") == shown


def test_rates_and_gains() -> None:
    assert units.rate(8063.2, "tokens") == "8,063 tokens/s"
    assert units.gain(1.2345) == "1.23x"
    assert units.rate(None, "tokens") == units.gain(math.nan) == "n/a"


@given(st.floats(1e-12, 1e12))
def test_any_number_keeps_three_digits(value: float) -> None:
    shown = float(units.digits(value).replace(",", ""))
    assert shown == pytest.approx(value, rel=0.05 if value < 1e-4 else 0.005)


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("It came out at 1.20. That cannot be.", "n/a, because it came out at 1.20. That cannot be"),
        ("NVML is not there.", "n/a, because NVML is not there"), ("A trace has none", "n/a, because a trace has none"),
        ("", "n/a"),
    ],
)  # fmt: skip
def test_a_reason_continues_after_because(reason: str, told: str) -> None:
    assert units.because(reason) == told


@pytest.mark.parametrize("value", [1.5e-9, 2.54e-4, 0.037, 1.0, 12.3, 4567.0])
def test_magnitude_is_the_inverse_of_formatting_to_three_digits(value: float) -> None:
    formatted = {units.duration(value): 1, units.percent(value): 1, units.size(1e6 * value): 1e6}
    formatted |= {units.amount(1e12 * value, "FLOP/s"): 1e12, units.gain(value): 1}
    for text, factor in formatted.items():
        if text.startswith(("<", "0.00x")) or (text.endswith(" B") and value < 1e-6):
            continue  # too small to be written
        tolerance = 0.005 if text.endswith("x") else 0.0
        assert units.magnitude(text) == pytest.approx(factor * value, rel=0.006, abs=tolerance), text


@pytest.mark.parametrize("text", ["", "n/a", "AF101 applies: 1.39x", "h.*.attn ×12", "12 apples", "compute"])
def test_other_text_has_no_magnitude(text: str) -> None:
    assert units.magnitude(text) is None


def test_a_share_has_its_interval_and_is_sorted_by_its_value() -> None:
    text = units.percent_within(0.372, (0.36, 0.381))
    assert text == "37.2 % (36 to 38.1 %)" and units.magnitude(text) == pytest.approx(0.372)
    assert units.percent_within(0.372, None) == "37.2 %" and units.percent_within(None, None) == "n/a"
