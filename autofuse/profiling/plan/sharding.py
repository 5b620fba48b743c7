"""The memory that one device needs if a model is distributed over several: formulas with their sources.

The formulas are derived, not measured. Nothing runs here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from torch import nn

from autofuse.results.plan import Setting

KINDS = ("parameters", "buffers", "gradients", "optimizer", "activations", "inputs", "temporaries")
STATES = ("parameters", "gradients", "optimizer")
STRATEGIES = ("none", "ddp", "zero1", "zero2", "fsdp", "hsdp", "tp")
OFFLOADS = ("none", "optimizer", "parameters")
_SHARDED: Mapping[str, tuple[str, ...]] = {
    "zero1": ("optimizer",), "zero2": ("gradients", "optimizer"), "fsdp": STATES, "hsdp": STATES,
}  # fmt: skip
_MASTER_BYTES = 4

SOURCES: Mapping[str, str] = {
    "none": "",
    "ddp": "every device holds everything, and DDP's buckets hold a second copy of the gradients (torch's "
    "DistributedDataParallel, gradient_as_bucket_view=False)",
    "zero1": "the optimizer's state is divided (ZeRO stage 1, Rajbhandari et al. 2020)",
    "zero2": "gradients and the optimizer's state are divided (ZeRO stage 2, Rajbhandari et al. 2020); the whole "
    "gradients of one block are held on top",
    "fsdp": "parameters, gradients and optimizer state are divided (ZeRO stage 3, Rajbhandari et al. 2020); as in "
    "torch's fully_shard, three more parts are whole during the step: everything outside of blocks, two blocks (one "
    "runs, one is fetched), and the gradients of one block",
    "hsdp": "as fsdp, within a group of this number of devices; each group holds the same",
    "tp": "parameters, gradients, optimizer state, activations and temporaries are divided, as in tensor parallelism "
    "with sequence parallelism (Korthikanti et al. 2022)",
    "pipeline": "the first of p stages: 1/p of the blocks, everything outside of blocks, and the activations of min(p, "
    "microbatches) microbatches, as in the 1F1B schedule (Narayanan et al. 2021); the batch is one microbatch",
    "context": "inputs, activations and temporaries are divided along the sequence (ring attention, Liu et al. 2023); "
    "sharded states are divided by these devices too, as in torchtitan",
    "master": "parameters and gradients in half precision; the optimizer keeps float32 copies of the parameters and "
    "float32 moments (mixed-precision training, Micikevicius et al. 2018): 16 bytes a parameter with Adam",
    "master, fsdp": "shards of parameters, gradients and moments in float32, gathered in half precision, as in "
    "fully_shard's MixedPrecisionPolicy: 16 bytes a parameter with Adam, before they are divided",
    "offload": "what is offloaded is in the host's memory all through the step; buffers for transfers are not counted",
}


@dataclass(frozen=True)
class Spread:
    """The conversion of the memory of a whole step to that of one device.

    Attributes:
        shares: factor for the bytes of a kind; 1 if a kind is missing.
        added: bytes on top of a kind, all through the step.
        whole: bytes of gathered parameters and gradients on top, all through the step.
        host: factor for the bytes of a kind that are in the host's memory instead.
        host_added: bytes of `added` that are in the host's memory instead.
    """

    shares: Mapping[str, float] = field(default_factory=dict)
    whole: int = 0
    added: Mapping[str, int] = field(default_factory=dict)
    host: Mapping[str, float] = field(default_factory=dict)
    host_added: int = 0

    @property
    def changes_nothing(self) -> bool:
        """Whether the device holds what one device without any spreading holds."""
        return not (self.shares or self.whole or self.added or self.host)

    def device_bytes(self, kind: str, bytes_: int) -> int:
        """The part of `bytes_` of a kind that one device holds."""
        return int(bytes_ * self.shares.get(kind, 1.0)) + self.added.get(kind, 0)


def spread(model: nn.Module, setting: Setting) -> Spread:
    """The distribution of a step's memory under a setting.

    Args:
        model: the model. Its parameters have the dtype of the computation.
        setting: the strategy, the number of devices, and the other choices.

    Raises:
        ValueError: an unknown strategy.
    """
    if setting.strategy not in STRATEGIES:
        raise ValueError(f"There is no strategy {setting.strategy!r}. Use one of {', '.join(STRATEGIES)}.")
    shares = _shares_by_kind(model, setting)
    factor = master_factor(model) if setting.master else 1.0
    added: dict[str, int] = {}
    if setting.master:
        kinds = STATES if _SHARDED.get(setting.strategy) == STATES else ("optimizer",)
        for kind in kinds:
            shares[kind] *= factor
        if kinds != STATES:
            trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
            added["optimizer"] = int(trained * _MASTER_BYTES * shares["optimizer"] / factor)
    offloaded = {"none": (), "optimizer": ("optimizer",), "parameters": STATES}[setting.offload]
    host = {kind: shares[kind] for kind in offloaded}
    host_added = sum(added.pop(kind, 0) for kind in offloaded)
    shares |= dict.fromkeys(offloaded, 0.0)
    changed = {kind: share for kind, share in shares.items() if share != 1.0}
    return Spread(changed, _gathered_bytes(model, setting), added, host, host_added)


def master_factor(model: nn.Module) -> float:
    """The size of a float32 value / the size of a trained parameter's value."""
    trained = [p for p in model.parameters() if p.requires_grad]
    return _MASTER_BYTES * sum(p.numel() for p in trained) / max(1, sum(p.nbytes for p in trained))


def sources(setting: Setting) -> tuple[str, ...]:
    """A sentence for each part of the setting that a formula describes."""
    by_shards = "master, fsdp" if _SHARDED.get(setting.strategy) == STATES else "master"
    used = (
        (setting.strategy, setting.strategy != "none"), ("tp", setting.tensor > 1 and setting.strategy != "tp"),
        ("pipeline", setting.pipeline > 1), ("context", setting.context > 1), (by_shards, setting.master),
        ("offload", setting.offload != "none"),
    )  # fmt: skip
    return tuple(SOURCES[name] for name, is_used in used if is_used)


def blocks(model: nn.Module) -> Iterator[nn.Module]:
    """The repeated parts of a model: children of the outermost lists of two or more modules of one class."""
    for child in model.children():
        parts = list(child.children())
        if isinstance(child, (nn.ModuleList, nn.Sequential)) and len(parts) > 1 and len({type(p) for p in parts}) == 1:
            yield from parts
        else:
            yield from blocks(child)


def _shares_by_kind(model: nn.Module, setting: Setting) -> dict[str, float]:
    tensor = setting.tensor * (setting.devices if setting.strategy == "tp" else 1)
    stage = _stage_share(model, setting.pipeline)
    shards = setting.devices * setting.context
    in_flight = min(setting.pipeline, setting.microbatches) / setting.pipeline
    shares = dict.fromkeys(STATES, stage / tensor)
    for kind in _SHARDED.get(setting.strategy, ()):
        shares[kind] /= shards
    shares["activations"] = in_flight / (tensor * setting.context)
    shares["temporaries"] = 1 / (tensor * setting.context)
    shares["inputs"] = 1 / setting.context
    return shares


def _stage_share(model: nn.Module, stages: int) -> float:
    """The fraction of the parameters in the first stage of a pipeline, which holds everything outside of blocks too."""
    total = _parameter_bytes(model)
    if stages == 1 or not total:
        return 1.0
    in_blocks = sum(map(_parameter_bytes, blocks(model)))
    return (in_blocks / stages + total - in_blocks) / total


def _gathered_bytes(model: nn.Module, setting: Setting) -> int:
    """Bytes on top of the shares, in the dtype that the model computes in."""
    if setting.devices * setting.context == 1 or setting.strategy in ("none", "zero1", "tp"):
        return 0
    sizes = [_parameter_bytes(block) for block in blocks(model)]
    largest, rest = max(sizes, default=0), _parameter_bytes(model) - sum(sizes)
    trained = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    bytes_ = {
        "ddp": trained * _stage_share(model, setting.pipeline), "zero2": largest, "fsdp": rest + 3 * largest,
        "hsdp": rest + 3 * largest,
    }  # fmt: skip
    return int(bytes_[setting.strategy] / setting.tensor)


def _parameter_bytes(module: nn.Module) -> int:
    return sum(p.nbytes for p in module.parameters())
