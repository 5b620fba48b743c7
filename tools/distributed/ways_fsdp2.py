"""fully_shard."""

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

from tools.distributed.model import Attention, Block, Decoder, Gated, RootMeanSquare
from tools.distributed.rows import Job, way
from tools.distributed.training import Recipe


def _sharded(model: nn.Module, *classes: type[nn.Module], **options: Any) -> nn.Module:
    for module in reversed(list(model.modules())):  # children first
        if isinstance(module, classes):
            fully_shard(module, **options)
    fully_shard(model, **options)
    return model


def _wrapped(job: Job, model: nn.Module, *classes: type[nn.Module], **options: Any) -> nn.Module:
    return job.after(_sharded(job.before(model), *classes, **options))


class _Quiet(contextlib.ContextDecorator):
    def __init__(self, model: nn.Module, last: bool) -> None:
        assert isinstance(model, FSDPModule)
        model.set_requires_gradient_sync(last)

    def __enter__(self) -> None: ...
    def __exit__(self, *error: object) -> None: ...


def _quiet(model: nn.Module, last: bool) -> AbstractContextManager[Any]:
    return _Quiet(model, last)


@way("FSDP2 per block", orders=("before", "after", "midway"))
def per_block(job: Job, model: nn.Module) -> nn.Module:
    return _wrapped(job, model, Block)


@way("FSDP2 per block, reshard_after_forward=False")
def kept(job: Job, model: nn.Module) -> nn.Module:
    return _wrapped(job, model, Block, reshard_after_forward=False)


@way("FSDP2 at the root only")
def root(job: Job, model: nn.Module) -> nn.Module:
    return _wrapped(job, model)


@way("FSDP2 per attention, MLP and norm")
def per_child(job: Job, model: nn.Module) -> nn.Module:
    return _wrapped(job, model, Attention, Gated, RootMeanSquare)


@way("FSDP2 per linear layer", expected={"attention": 2, "norm": 5, "silu": 2})
def per_linear(job: Job, model: nn.Module) -> nn.Module:
    return _wrapped(job, model, nn.Linear, RootMeanSquare)


@way("FSDP2 per block, bf16 MixedPrecisionPolicy", recipe=Recipe(dtype=torch.bfloat16))
def mixed(job: Job, model: nn.Module) -> nn.Module:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return _wrapped(job, model, Block, mp_policy=policy)


@way("FSDP2 per block, CPUOffloadPolicy")
def offload(job: Job, model: nn.Module) -> nn.Module:
    return _wrapped(job, model, Block, offload_policy=CPUOffloadPolicy(pin_memory=False))


@way("FSDP2 per block, 3 micro batches without sync, clipped", recipe=Recipe(micro=3, clip=0.5), quiet=_quiet)
def accumulated(job: Job, model: nn.Module) -> nn.Module:
    return _wrapped(job, model, Block)


@way("FSDP2 per block, checkpoint_wrapper", expected={"attention": 4, "norm": 9, "silu": 4})
def checkpointed(job: Job, model: nn.Module) -> nn.Module:
    model = job.before(model)
    apply_activation_checkpointing(model, checkpoint_wrapper, check_fn=lambda m: isinstance(m, Block))
    return job.after(_sharded(model, Block))


@way("FSDP2 per block, meta device, to_empty, load")
def meta(job: Job, model: nn.Module) -> nn.Module:
    with torch.device("meta"):
        empty: nn.Module = Decoder()
    sharded = _sharded(job.before(empty), Block)
    sharded.to_empty(device=job.device)
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

    options = StateDictOptions(full_state_dict=True)
    set_model_state_dict(sharded, model.state_dict(), options=options)
    return job.after(sharded)
