"""What the instruments said about one step, before it is a profile. Filled by whoever runs the steps: we or a script."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch

from autofuse.profiling.calls import Names
from autofuse.profiling.work import Own
from autofuse.report.profile import Flops, Memory, Power, Probe, Share
from autofuse.traces.trace import Trace


@dataclass
class Measured:
    """Every field but the first four may stay empty: what was not measured is not told, and `notes` may say why.

    seconds, yardstick: of every timed step, with no instrument on. shares: of the timed steps too, where their seconds
    were clocked from outside (the wait for data). trace: of steps under the recorder. own: FLOPs, bytes and operators
    by module and phase, of one step; not seconds. held: bytes at the step's peak by the module that allocated them.
    """

    name: str
    kind: Literal["live", "script"]
    device: torch.device
    names: Names
    seconds: list[float] = field(default_factory=list)
    yardstick: list[float] = field(default_factory=list)
    shares: list[Share] = field(default_factory=list)
    samples: int | None = None
    tokens: int | None = None
    trace: Trace | None = None
    flops: Flops = Flops()
    own: Own = field(default_factory=dict)
    memory: Memory = Memory()
    held: Mapping[str, int] = field(default_factory=dict)
    probe: Probe = Probe()
    power: Power = Power()
    losses: list[float] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
