"""Formats numbers for people: times, bytes, FLOPs, percentages. Unknown numbers are "n/a"."""

from __future__ import annotations

import math
import re

NOT_KNOWN = "n/a"
_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_THOUSANDS = ("", "k", "M", "G", "T", "P", "E")
_BYTES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def duration(seconds: float | None) -> str:
    """Seconds in a fitting unit, with three digits: "254 ms"."""
    if seconds is None or not math.isfinite(seconds):
        return NOT_KNOWN
    factor, unit = next(((f, u) for f, u in _TIMES if abs(seconds) >= f * 0.9995), _TIMES[-1])
    return f"{digits(seconds / factor)} {unit}" if seconds else "0 s"


def percent(fraction: float | None) -> str:
    """A fraction of 1 as "37.2 %"; a positive number is never "0 %"."""
    if fraction is None or not math.isfinite(fraction):
        return NOT_KNOWN
    if 0 < abs(fraction) < 1e-4:
        return "< 0.01 %"
    return f"{digits(100 * fraction)} %"


def percent_within(fraction: float | None, interval: tuple[float, float] | None) -> str:
    """A fraction of 1 with its interval, "37.2 % (36 to 38.1 %)". Without an interval as `percent` formats it."""
    if fraction is None or interval is None:
        return percent(fraction)
    low, high = (digits(100 * max(0.0, end)) for end in interval)
    return f"{percent(fraction)} ({low} to {high} %)"


def size(count: float | None) -> str:
    """Bytes in a fitting binary unit: "202 MiB"."""
    return NOT_KNOWN if count is None else _with_unit(float(count), 1024, _BYTES)


def amount(count: float | None, unit: str) -> str:
    """A number with a decimal prefix: "1.2 TFLOP" for 1.2e12 and the unit "FLOP"."""
    if count is None or not math.isfinite(count):
        return NOT_KNOWN
    return _with_unit(float(count), 1000, tuple(f"{prefix}{unit}" for prefix in _THOUSANDS)).rstrip()


def rate(value: float | None, unit: str) -> str:
    """A rate: "8,063 tokens/s"."""
    if value is None or not math.isfinite(value):
        return NOT_KNOWN
    return f"{digits(value)} {unit}/s"


def gain(ratio: float | None) -> str:
    """Time before / time after: "1.21x"."""
    return NOT_KNOWN if ratio is None or not math.isfinite(ratio) else f"{ratio:.2f}x"


def digits(value: float) -> str:
    """Three significant digits, or all digits before the point: "0.0123", "12.3", "12,345"."""
    if not math.isfinite(value):
        return NOT_KNOWN
    if abs(value) >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value == 0 or abs(value) >= 1e-4 else f"{value:.1e}"


def because(reason: str) -> str:
    """The reason as a clause: "n/a, because ...". A reason that is a sentence loses its full stop."""
    described = reason.rstrip(". ")
    described = described[0].lower() + described[1:] if described[1:2].islower() or described[1:2] == " " else described
    return f"{NOT_KNOWN}, because {described}" if described else NOT_KNOWN


def magnitude(text: str) -> float | None:
    """The number that a formatted quantity shows, to its three digits: "254 ms" is 0.254. None for other text.

    An interval in parentheses is ignored. It is the inverse of the functions above, for sorting tables. A column
    contains quantities of one kind, so units of different kinds are not distinguished.
    """
    found = _QUANTITY.fullmatch(text)
    if found is None:
        return None
    return float(found[1].replace(",", "")) * _FACTORS[found[2] or ""]


_FACTORS = {
    **{unit: factor for factor, unit in _TIMES},
    **{unit: 1024.0**power for power, unit in enumerate(_BYTES)},
    **{f"{prefix}{unit}": 1000.0**power for power, prefix in enumerate(_THOUSANDS) for unit in ("", "FLOP", "FLOP/s")},
    **{f"{prefix}B/s": 1000.0**power for power, prefix in enumerate(_THOUSANDS)},
    "%": 0.01,
    "x": 1.0,
}
_QUANTITY = re.compile(rf"[≤<]? ?(-?[\d,]*\.?\d+(?:e-?\d+)?) ?({'|'.join(map(re.escape, _FACTORS))})(?: \(.*\))?")


def _with_unit(value: float, base: int, units: tuple[str, ...]) -> str:
    power = 0
    while abs(value) >= base * 0.9995 and power < len(units) - 1:
        value, power = value / base, power + 1
    return f"{digits(value)} {units[power]}"
