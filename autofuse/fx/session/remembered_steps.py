"""Stores the times of whole steps, and the sites that made a step slower, for later processes.

Only clear verdicts are stored. The key covers the code of all rewritten forwards (remembered_times.step_key). A site is
stored with its module, rule and line. If it is not found again, the step is timed again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from autofuse.fx.session import remembered_times
from autofuse.results.comparison import Estimate, Interval
from autofuse.results.step_times import StepMode, StepTime

_SLOWER = " slower"  # follows the key of the step
SitePlace = tuple[str, str, str, int]  # the module's name, the rule, the file and the line


@dataclass(frozen=True)
class _Kept:
    """A step that was not slower, as the timing cache stores it."""

    before: float = 0.0
    after: float = 0.0
    ratio: float = 0.0
    low: float = 0.0
    high: float = 0.0
    verdict: str = ""
    pairs: int = 0
    clock: str = "wall"
    layers: str = ""
    busy: float = -1.0  # -1: unknown


@dataclass(frozen=True)
class _Slower:
    """The sites of a step that was slower, as the timing cache stores them. `sites` is JSON."""

    ratio: float = 0.0
    low: float = 0.0
    high: float = 0.0
    sites: str = ""


def load_step(key: str, device: torch.device, mode: StepMode) -> StepTime | None:
    """The stored time of a step that was not slower."""
    kept = remembered_times.load(key, device, _Kept)
    if kept is None:
        return None
    return StepTime(mode, kept.before, kept.after, kept.ratio, Interval(kept.low, kept.high), kept.verdict,  # type: ignore[arg-type]
                    kept.pairs, kept.clock, remembered=True, layers=kept.layers,  # type: ignore[arg-type]
                    busy=kept.busy if kept.busy >= 0 else None)  # fmt: skip


def store_step(key: str, device: torch.device, time: StepTime) -> None:
    """Store the time of a step that was not slower."""
    low, high = time.interval or (0.0, 0.0)
    kept = _Kept(time.before_seconds or 0.0, time.after_seconds or 0.0, time.ratio or 0.0, low, high,
                 str(time.verdict), time.pairs, time.clock, time.layers,
                 -1.0 if time.busy is None else time.busy)  # fmt: skip
    remembered_times.store(key, device, kept)


def load_slower_sites(key: str, device: torch.device) -> tuple[list[SitePlace], Estimate] | None:
    """The stored sites that made a step slower, with the ratio of the step."""
    stored = remembered_times.load(key and key + _SLOWER, device, _Slower)
    if stored is None:
        return None
    try:
        sites = [(str(m), str(r), str(f), int(n)) for m, r, f, n in json.loads(stored.sites)]
    except (ValueError, TypeError):  # the file is damaged
        return None
    return (sites, Estimate(stored.ratio, Interval(stored.low, stored.high))) if sites else None


def store_slower_sites(key: str, device: torch.device, sites: Sequence[SitePlace], ratio: Estimate) -> None:
    """Store the sites that made a step slower by this ratio."""
    low, high = ratio.interval
    stored = _Slower(ratio.ratio, low, high, json.dumps(sites))
    remembered_times.store(key and key + _SLOWER, device, stored)
