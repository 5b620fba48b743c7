"""Estimates how a model on paper scales: what is sent, what fits, and which strategy to use.

scaling.py computes times, and sharding.py memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import nn

from autofuse.profiling.plan.scaling import (
    BACKWARD,
    STRATEGIES,
    Advice,
    Link,
    Mode,
    StepEstimate,
    StepWork,
    estimate,
    recommend,
)
from autofuse.profiling.plan.sharding import KINDS, blocks, spread
from autofuse.profiling.plan.sharding import STRATEGIES as PLANNED
from autofuse.results.plan import Capacity, Setting
from autofuse.results.profile import Memory

NODE = 8  # devices of a group of hsdp, where there are more


@dataclass(frozen=True)
class Scale:
    """The scaling to estimate.

    Attributes:
        seconds: of a step on one device.
        source: where `seconds` comes from.
        link: between two devices.
        most: largest number of devices.
        constant: part of `seconds` that does not shrink with the batch.
        across: link between groups of 8 devices, if it differs.
        microbatches: of a pipeline.
    """

    seconds: float
    source: str
    link: Link
    most: int
    constant: float = 0.0
    across: Link | None = None
    microbatches: int = 8


def scaling_of(
    model: nn.Module, memory: Memory, setting: Setting, scale: Scale, capacity: Capacity | None, error: float
) -> dict[str, Any]:
    """Every strategy over 2, 4, 8, ... devices, and the recommended one for the most devices, as in docs/json.md.

    Simulated. `memory` is that of a step with the same batch on one device, and `error` its relative error.
    """
    work, notes = _step_work(model, setting, scale)
    counts = _device_counts(scale.most)
    modes: tuple[Mode, ...] = ("strong", "weak")
    estimates = [
        estimate(
            work, strategy, n, _slowest_link(scale, strategy, n), mode=mode, group=_group_size(n), across=scale.across
        )
        for mode in modes
        for n in counts
        for strategy in STRATEGIES
        if strategy not in _impossible_strategies(work, n)
    ]
    bytes_of = {
        s: _device_bytes(model, memory, s, _group_size(scale.most) if s == "hsdp" else scale.most) for s in PLANNED[1:]
    }
    fits = {
        s: None if b is None or capacity is None else b * (1 + error) <= capacity.bytes for s, b in bytes_of.items()
    }
    return {
        "simulated": True,
        "step_seconds": scale.seconds,
        "step_source": scale.source,
        "work": asdict(work),
        "link": asdict(scale.link),
        "across": asdict(scale.across) if scale.across else None,
        "devices": counts,
        "estimates": [asdict(found) for found in estimates],
        "bytes_per_device": bytes_of,
        "advice": asdict(
            _advice_texts([e for e in estimates if e.mode == "weak" and e.devices == counts[-1]], fits, capacity)
        ),
        "formulas": dict(STRATEGIES),
        "notes": [*_assumptions(scale), *notes],
    }


def _step_work(model: nn.Module, setting: Setting, scale: Scale) -> tuple[StepWork, list[str]]:
    trained = [p for p in model.parameters() if p.requires_grad]
    parts = list(blocks(model))
    width = _width(parts)
    notes = []
    activations = 0
    if width and setting.batch and setting.sequence:
        tokens = setting.batch * setting.sequence
        element = 2 if setting.autocast else trained[0].element_size() if trained else 4
        activations = tokens * width * element
        notes.append(f"Activations between blocks: {tokens:,} tokens x {width:,} x {element} bytes.")
    else:
        notes.append(
            "tp and pp are left out: the model has no repeated blocks, or its inputs do not show samples and tokens "
            "(--sequence)."
        )
    return (
        StepWork(
            scale.seconds, sum(p.nbytes for p in model.parameters()), sum(p.nbytes for p in trained), activations,
            len(parts), scale.constant, scale.microbatches,
        ),
        notes,
    )  # fmt: skip


def _width(parts: Sequence[nn.Module]) -> int:
    """The input width of most linear layers in the repeated blocks; 0 without any."""
    sizes = Counter(m.in_features for part in parts for m in part.modules() if isinstance(m, nn.Linear))
    return sizes.most_common(1)[0][0] if sizes else 0


def _impossible_strategies(work: StepWork, devices: int) -> set[str]:
    """Strategies without an estimate: hsdp with one group, more stages than blocks, unknown activations."""
    known = bool(work.activations and work.blocks)
    cannot = {"tp": not known, "pp": not known or devices > work.blocks, "hsdp": devices <= NODE}
    return {strategy for strategy, is_so in cannot.items() if is_so}


def _slowest_link(scale: Scale, strategy: str, devices: int) -> Link:
    """A ring is as fast as its slowest link. With more than 8 devices, that is the link between groups."""
    spans = devices > NODE and strategy != "hsdp"
    return scale.across if spans and scale.across is not None else scale.link


def _device_bytes(model: nn.Module, memory: Memory, strategy: str, devices: int) -> int | None:
    """Bytes of one device at the peak, with the batch of one device on each.

    Under tensor parallelism every device works on all samples, so activations grow with the number of devices before
    they are divided by it.
    """
    if memory.peak_bytes is None:
        return None
    divided = spread(model, Setting(strategy=strategy, devices=devices))
    grows = dict.fromkeys(("activations", "temporaries", "inputs"), devices if strategy == "tp" else 1)
    held: float = sum(
        getattr(memory, kind) * divided.shares.get(kind, 1.0) * grows.get(kind, 1) for kind in KINDS
    )  # fmt: skip
    return round(held) + divided.whole


def _advice_texts(estimates: list[StepEstimate], fits: dict[str, bool | None], capacity: Capacity | None) -> Advice:
    if capacity is None:
        return Advice("", "Which strategy to use depends on what fits: pass the memory of a device.")
    return recommend(estimates, fits)


def _assumptions(scale: Scale) -> list[str]:
    stays = f", of which {scale.constant:.3g} s do not shrink with the batch" if scale.constant else ""
    return [
        f"A step takes {scale.seconds:.3g} s on one device ({scale.source}){stays}.",
        f"The backward takes {BACKWARD:.0%} of the computing. At best, ddp sends all gradients during the backward.",
        "Parameters and gradients are sent in the dtype that they are stored in.",
        "Memory and advice are for the same batch on every device (weak scaling). Devices do not slow each other down, "
        "and smaller pieces of work run as efficiently as large ones: real steps are slower.",
    ]


def _device_counts(most: int) -> list[int]:
    """2, 4, 8, ..., and the most."""
    powers = [2**k for k in range(1, most.bit_length()) if 2**k <= most]
    return powers if most in powers else [*powers, most]


def _group_size(devices: int) -> int:
    """The largest group of at most 8 that divides the devices."""
    return max(size for size in range(1, min(NODE, devices) + 1) if devices % size == 0)
