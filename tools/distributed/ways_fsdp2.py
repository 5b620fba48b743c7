"""fully_shard (FSDP2)."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
    checkpoint_wrapper,
)
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard

from tools.distributed.model import Attention, Block, Gated, RootMeanSquare
from tools.distributed.rows import Job, adapters, way
from tools.distributed.training import Recipe


def _shard(model: nn.Module, *classes: type[nn.Module], **options: Any) -> nn.Module:
    for module in reversed(list(model.modules())):  # children first
        if isinstance(module, classes):
            fully_shard(module, **options)
    fully_shard(model, **options)
    return model


def _wrap(job: Job, model: nn.Module, *classes: type[nn.Module], **options: Any) -> nn.Module:
    return job.after(_shard(job.before(model), *classes, **options))


class _Quiet(contextlib.ContextDecorator):
    def __init__(self, model: nn.Module, last: bool) -> None:
        assert isinstance(model, FSDPModule)
        model.set_requires_gradient_sync(last)

    def __enter__(self) -> None: ...
    def __exit__(self, *error: object) -> None: ...


def _without_sync(model: nn.Module, last: bool) -> AbstractContextManager[Any]:
    return _Quiet(model, last)


@way("FSDP2 per block", orders=("before", "after", "midway"))
def per_block(job: Job, model: nn.Module) -> nn.Module:
    return _wrap(job, model, Block)


@way("FSDP2 per block, reshard_after_forward=False")
def without_resharding(job: Job, model: nn.Module) -> nn.Module:
    return _wrap(job, model, Block, reshard_after_forward=False)


@way("FSDP2 at the root only")
def root(job: Job, model: nn.Module) -> nn.Module:
    return _wrap(job, model)


@way("FSDP2 per attention, MLP and norm")
def per_child(job: Job, model: nn.Module) -> nn.Module:
    return _wrap(job, model, Attention, Gated, RootMeanSquare)


@way("FSDP2 per linear layer", expected={"attention": 2, "norm": 5, "silu": 2})
def per_linear(job: Job, model: nn.Module) -> nn.Module:
    return _wrap(job, model, nn.Linear, RootMeanSquare)


@way("FSDP2 per block, bf16 MixedPrecisionPolicy", recipe=Recipe(dtype=torch.bfloat16))
def mixed_precision_blocks(job: Job, model: nn.Module) -> nn.Module:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return _wrap(job, model, Block, mp_policy=policy)


@way("FSDP2 per block, CPUOffloadPolicy")
def offload(job: Job, model: nn.Module) -> nn.Module:
    return _wrap(job, model, Block, offload_policy=CPUOffloadPolicy(pin_memory=False))


@way("FSDP2 per block, 3 micro batches without sync, clipped", recipe=Recipe(micro=3, clip=0.5), quiet=_without_sync)
def accumulated(job: Job, model: nn.Module) -> nn.Module:
    return _wrap(job, model, Block)


@way("FSDP2 per block, checkpoint_wrapper", expected={"attention": 4, "norm": 9, "silu": 4})
def checkpointed(job: Job, model: nn.Module) -> nn.Module:
    model = job.before(model)
    apply_activation_checkpointing(model, checkpoint_wrapper, check_fn=lambda m: isinstance(m, Block))
    return job.after(_shard(model, Block))


@way("FSDP2 per block, checkpoint_wrapper, bf16 MixedPrecisionPolicy, 2 micro batches",
     recipe=Recipe(micro=2, dtype=torch.bfloat16), expected={"attention": 4, "norm": 9, "silu": 4})  # fmt: skip
def everything(job: Job, model: nn.Module) -> nn.Module:
    model = job.before(model)
    apply_activation_checkpointing(model, checkpoint_wrapper, check_fn=lambda m: isinstance(m, Block))
    return job.after(_shard(model, Block, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16)))


@way(
    "FSDP2 per block, torch.compile of each block", expected={"attention": 2}, orders=("before",),
    note="Optimize first. A sharded model is captured at its first calls, but calls inside a compiler are not "
    "captured. So a model that is optimized after both runs its original code, and `autofuse.report` says so.",
)  # fmt: skip
def compiled(job: Job, model: nn.Module) -> nn.Module:
    model = job.before(model)
    for block in model.blocks:
        block.compile(backend="aot_eager")
    return job.after(_shard(model, Block))


@way("FSDP2 per block, peft adapters", recipe=Recipe(adapters=True), lacks=adapters)
def low_rank(job: Job, model: nn.Module) -> nn.Module:
    return _wrap(job, model, Block)


@way("FSDP2 per block, ignored_params")
def ignore_norms(job: Job, model: nn.Module) -> nn.Module:
    model = job.before(model)
    norms = {p for m in model.modules() if isinstance(m, RootMeanSquare) for p in m.parameters()}
    return job.after(_shard(model, Block, ignored_params=norms))


@way("FSDP2 per block, sharded along the last dimension")
def last_dimension(job: Job, model: nn.Module) -> nn.Module:
    return _wrap(job, model, Block, shard_placement_fn=lambda p: Shard(p.ndim - 1))


@way("FSDP2 per block, blocks prefetched")
def prefetched(job: Job, model: nn.Module) -> nn.Module:
    model = job.before(model)
    _shard(model, Block)
    first, second = model.blocks
    first.set_modules_to_forward_prefetch([second])
    second.set_modules_to_backward_prefetch([first])
    return job.after(model)
