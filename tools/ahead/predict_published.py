"""Compares the model with published figures of torch's own kernels, Liger, quack and FlashAttention.

The figures are in published.json, with their sources, and the bytes and arithmetic of each kernel. Their machine code
is not available. So only bytes divided by the bandwidth of a copy, arithmetic divided by the rate of matrix products,
and the fixed part of a launch are compared. Figures that the model was fitted to are marked and excluded from the
errors.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from autofuse.profiling.peaks import peak_of
from tools.ahead.predict_gpus import COPY, FIXED

FIGURES = Path(__file__).with_name("published.json")
# The share of the data sheet's peak that large matrix products reach: 770 to 800 of 989 TFLOP/s on an H200.
PRODUCTS = 0.79


def figures() -> list[dict[str, Any]]:
    """Return all published figures."""
    found: list[dict[str, Any]] = json.loads(FIGURES.read_text())["figures"]
    return found


def predicted_microseconds(figure: Mapping[str, Any]) -> float:
    """Predict a published figure. Raises LookupError for a GPU that is not in the peak table."""
    peak = peak_of(figure["device"])
    if peak is None:
        raise LookupError(f"The peak table does not have {figure['device']}.")
    memory = figure["megabytes"] * 1e6 / (COPY * peak.bytes_per_second)
    rate: float = peak.flops["float16" if figure["dtype"] == "float32" else figure["dtype"]]
    return 1e6 * float(figure["launches"] * FIXED + memory + figure["teraflop"] * 1e12 / (PRODUCTS * rate))


def errors(chosen: Iterable[Mapping[str, Any]]) -> dict[str, tuple[int, float, float]]:
    """Return for each group the number of figures, the median of |predicted / published - 1|, and the largest."""
    gaps: dict[str, list[float]] = {}
    for figure in chosen:
        if not figure.get("calibrates"):
            gap = abs(predicted_microseconds(figure) / figure["microseconds"] - 1)
            gaps.setdefault(figure["group"], []).append(gap)
    return {group: (len(found), statistics.median(found), max(found)) for group, found in sorted(gaps.items())}


def as_markdown() -> str:
    """Return both tables: the errors of each group, and all figures."""
    lines = ["| figures of | number | median error | largest |", "| --- | --- | --- | --- |"]
    lines += [f"| {g} | {n} | {m:.0%} | {most:.0%} |" for g, (n, m, most) in errors(figures()).items()]
    lines += ["", "| what | whose | GPU | shape | dtype | published, us | predicted, us | ratio |", "| --- " * 8 + "|"]
    for figure in figures():
        guess = predicted_microseconds(figure)
        named = [figure[key] for key in ("what", "who", "gpu", "shape", "dtype")]
        mark = " (sets the model)" if figure.get("calibrates") else ""
        times = f"{figure['microseconds']:.1f} | {guess:.1f} | {guess / figure['microseconds']:.2f}{mark}"
        lines.append(f"| {' | '.join(named)} | {times} |")
    sources = sorted({figure["source"] for figure in figures()})
    return "\n".join([*lines, "", "Sources:", "", *(f"- {source}" for source in sources)]) + "\n"
