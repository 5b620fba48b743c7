"""A profile's layers and kernels as CSV, with one row each. All numbers are exact and in SI units."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence

from autofuse.results.profile import Layer, Profile

_LAYER_COLUMNS = (
    "layer", "class", "calls", "seconds", "own_seconds", "own_forward_seconds", "own_backward_seconds", "share",
    "flops", "bytes", "operators", "roofline", "limit", "sm_efficiency", "peak_bytes", "rules",
    "predicted_saving_seconds",
)  # fmt: skip
_KERNEL_COLUMNS = ("kernel", "category", "count", "seconds", "share")


def layers_csv(profile: Profile) -> str:
    """One row for each layer, in the model's order. An unknown number is an empty cell."""
    return _csv(_LAYER_COLUMNS, map(_layer_row, profile.layers))


def kernels_csv(profile: Profile) -> str:
    """One row for each kernel, on a CPU for each operator, the longest first. share: of the step's time."""
    step = profile.timing.median if profile.timing.seconds else 0.0
    rows = (
        (kernel.name, kernel.category, kernel.count, kernel.seconds, kernel.seconds / step if step else None)
        for kernel in profile.kernels
    )
    return _csv(_KERNEL_COLUMNS, rows)


def _layer_row(layer: Layer) -> Sequence[object]:
    work = layer.own_forward + layer.own_backward
    savings = [place.predicted_saving for place in layer.places if place.predicted_saving is not None]
    return (
        layer.fqn, layer.kind, layer.calls, layer.seconds, layer.own_seconds, layer.own_forward.seconds,
        layer.own_backward.seconds, layer.share, work.flops or None, work.bytes or None, work.operators or None,
        layer.roofline, "" if layer.regime == "unknown" else layer.regime, layer.sm_efficiency, layer.peak_bytes,
        "; ".join(f"{place.rule} {place.status}" for place in layer.places), sum(savings) if savings else None,
    )  # fmt: skip


def _csv(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_safe_cell(value) for value in row] for row in rows)
    return file.getvalue()


def _safe_cell(value: object) -> object:
    """The text of a cell. If a spreadsheet would run it as a formula, an apostrophe is put in front."""
    if value is None:
        return ""
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return f"'{value}"
    return value
