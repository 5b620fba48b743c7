"""Describes the differences between two snapshots."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from tests.adversary.values import Numbers


def differences(before: Any, after: Any, tolerance: float, where: str = "") -> Iterator[str]:
    """Yields one line for each place where `after` differs from `before`. A NaN in `before` may become anything."""
    if isinstance(before, Numbers) and isinstance(after, Numbers):
        yield from _of_numbers(before, after, tolerance, where)
    elif type(before) is not type(after):
        yield f"{where}: {_short(before)} is {_short(after)}"
    elif isinstance(before, dict):
        for key in {**before, **after}:
            if key not in after or key not in before:
                yield f"{where}.{key}: {'is gone' if key in before else 'is new'}"
            else:
                yield from differences(before[key], after[key], tolerance, f"{where}.{key}")
    elif isinstance(before, list | tuple) and not isinstance(before, torch.Size):
        if len(before) != len(after):
            yield f"{where}: has {len(before)} entries, and {len(after)} after optimize"
        for i, (b, a) in enumerate(zip(before, after, strict=False)):
            yield from differences(b, a, tolerance, f"{where}[{i}]")
    elif isinstance(before, float):
        if not (before == after or abs(before - after) <= tolerance * max(1.0, abs(before)) or before != before):
            yield f"{where}: {before} is {after}"
    elif before != after:
        yield f"{where}: {_short(before)} is {_short(after)}"


def _of_numbers(before: Numbers, after: Numbers, tolerance: float, where: str) -> Iterator[str]:
    if before.kind != after.kind:
        yield f"{where}: {before.kind} is {after.kind}"
        return
    b, a = before.values, after.values
    if not b.numel() or torch.equal(a, b):
        return
    known = ~torch.isnan(b)
    b, a = b[known].to(torch.float64), a[known].to(torch.float64)
    if not b.numel() or torch.equal(a, b):
        return
    largest = b[torch.isfinite(b)].abs().max().item() if torch.isfinite(b).any() else 1.0
    off = torch.where(a == b, 0.0, (a - b).abs())
    if not bool((off <= tolerance * max(1.0, largest)).all()):
        yield f"{where}: differs by {off.max().item():.3g} where the largest is {largest:.3g}"


def _short(value: Any) -> str:
    text = value.kind if isinstance(value, Numbers) else str(value)
    return text if len(text) < 60 else text[:57] + "..."
