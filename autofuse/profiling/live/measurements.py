"""The results of the instruments for one step, before they become a profile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch

from autofuse.measure.core_queue import CoreQueue
from autofuse.profiling.live.module_calls import ModuleNames
from autofuse.profiling.live.rule_places import Reading
from autofuse.profiling.trace.overhead import DEFAULT_COST, RecordingCost
from autofuse.profiling.trace.trace import Trace
from autofuse.profiling.trace.work import Own
from autofuse.results.comparison import Estimate, Interval
from autofuse.results.ladder import Level
from autofuse.results.profile import Flops, Memory, Power, Probe, Share


@dataclass
class Measurements:
    """The measurements of a step. Every field but the first four may stay empty, and `notes` may say why.

    seconds, yardstick: of every timed step, with no instrument on.
    shares: of the timed steps, if their seconds were clocked from outside (the wait for data).
    rest: the 95 % interval of the share that remains for everything else.
    trace: of recorded steps. `save` writes it to a file. `cost` is what recording took.
    own: FLOPs, bytes and operators of one step by module and phase, without seconds.
    held: bytes at the step's peak by the module that allocated them.
    grown: by module, its time with twice the batch / its time.
    counters: levels that the hardware itself counted.
    readings: which rules apply where, one reading per model.
    cores: how long timed and recorded steps waited for a core.
    """

    name: str
    kind: Literal["live", "script"]
    device: torch.device
    names: ModuleNames
    seconds: list[float] = field(default_factory=list)
    yardstick: list[float] = field(default_factory=list)
    shares: list[Share] = field(default_factory=list)
    rest: Interval | None = None
    samples: int | None = None
    tokens: int | None = None
    trace: Trace | None = None
    save: Callable[[Path], None] | None = None
    cost: RecordingCost = DEFAULT_COST
    flops: Flops = field(default_factory=Flops)
    own: Own = field(default_factory=dict)
    memory: Memory = field(default_factory=Memory)
    held: Mapping[str, int] = field(default_factory=dict)
    probe: Probe = field(default_factory=Probe)
    grown: Mapping[str, Estimate] = field(default_factory=dict)
    power: Power = field(default_factory=Power)
    counters: Mapping[str, Level] = field(default_factory=dict)
    readings: list[Reading] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    cores: CoreQueue = field(default_factory=CoreQueue)
