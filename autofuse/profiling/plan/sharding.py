"""What one device holds of a step's memory where the model is spread over several. Formulas, with their sources.

Knows kinds of memory and units of a model; runs nothing. These are derived, not measured: see SOURCES.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import nn

KINDS = ("parameters", "buffers", "gradients", "optimizer", "activations", "inputs", "temporaries")
STRATEGIES = ("none", "ddp", "fsdp", "hsdp", "tp")

SOURCES: Mapping[str, str] = {
    "none": "",
    "ddp": "every device holds everything, and DDP's buckets a second copy of the gradients (torch's "
    "DistributedDataParallel, gradient_as_bucket_view=False)",
    "fsdp": "parameters, gradients and optimizer state are divided (ZeRO stage 3, Rajbhandari et al. 2020); on top, as "
    "torch's fully_shard does it, what belongs to no block is whole all through the step, of blocks two are (one runs, "
    "one is fetched), and one block's whole gradients",
    "hsdp": "as fsdp, within a group of that many devices; groups hold the same",
    "tp": "parameters, gradients, optimizer state, activations and temporaries are divided, as tensor parallelism with "
    "sequence parallelism does it (Korthikanti et al. 2022)",
}


@dataclass(frozen=True)
class Spread:
    """shares: what of each kind one device holds, 1 where it is not said. whole: bytes on top, all through the step."""

    shares: Mapping[str, float]
    whole: int = 0


def spread(model: nn.Module, strategy: str, devices: int) -> Spread:
    """What `strategy` makes of a step of `model` on so many devices. Raises ValueError for another strategy."""
    if strategy not in STRATEGIES:
        raise ValueError(f"There is no strategy {strategy!r}: {', '.join(STRATEGIES)}.")
    if strategy == "none" or devices == 1:
        return Spread({})
    if strategy == "ddp":
        return Spread({}, sum(p.nbytes for p in model.parameters() if p.requires_grad))
    kinds = ["parameters", "gradients", "optimizer"]
    if strategy == "tp":
        return Spread(dict.fromkeys([*kinds, "activations", "temporaries"], 1 / devices))
    sizes = [_bytes(block) for block in blocks(model)]
    largest = max(sizes, default=0)
    rest = _bytes(model) - sum(sizes)
    return Spread(dict.fromkeys(kinds, 1 / devices), rest + 3 * largest)


def blocks(model: nn.Module) -> Iterator[nn.Module]:
    """The repeated parts of a model: children of the outermost lists of two or more modules of one class."""
    for child in model.children():
        parts = list(child.children())
        if isinstance(child, (nn.ModuleList, nn.Sequential)) and len(parts) > 1 and len({type(p) for p in parts}) == 1:
            yield from parts
        else:
            yield from blocks(child)


def _bytes(module: nn.Module) -> int:
    return sum(p.nbytes for p in module.parameters())
