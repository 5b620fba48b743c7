"""DistributedDataParallel."""

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
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from tools.distributed.model import Block
from tools.distributed.rows import Job, accelerator, adapters, way
from tools.distributed.training import Recipe

try:
    from torch.distributed._composable.replicate import replicate
except ImportError:
    replicate = None


def _wrap(job: Job, model: nn.Module, **options: Any) -> nn.Module:
    return job.after(DistributedDataParallel(job.before(model), **options))


def _after(job: Job, model: nn.Module) -> nn.Module:
    return job.after(DistributedDataParallel(model))


def _autocast(device: str) -> AbstractContextManager[Any]:
    return torch.autocast(device, dtype=torch.bfloat16)


def replicated(device: str) -> str:
    return "" if replicate is not None else "this torch has no replicate"


def _without_sync(model: nn.Module, last: bool) -> AbstractContextManager[Any]:
    return contextlib.nullcontext() if last else model.no_sync()  # type: ignore[operator, no-any-return]


@way("DDP", orders=("before", "after", "midway"))
def plain(job: Job, model: nn.Module) -> nn.Module:
    return _wrap(job, model)


@way("DDP, static_graph")
def static_graph(job: Job, model: nn.Module) -> nn.Module:
    return _wrap(job, model, static_graph=True)


@way("DDP, find_unused_parameters, gradient_as_bucket_view")
def unused(job: Job, model: nn.Module) -> nn.Module:
    return _wrap(job, model, find_unused_parameters=True, gradient_as_bucket_view=True)


@way("DDP, no_sync over 3 micro batches, clipped", recipe=Recipe(micro=3, clip=0.5), quiet=_without_sync)
def accumulated(job: Job, model: nn.Module) -> nn.Module:
    return _wrap(job, model)


@way("DDP, bf16 compress hook", lacks=accelerator, recipe=Recipe(dtype=torch.bfloat16))
def hooked(job: Job, model: nn.Module) -> nn.Module:
    wrapped = DistributedDataParallel(job.before(model))
    wrapped.register_comm_hook(None, default_hooks.bf16_compress_hook)
    return job.after(wrapped)


@way("DDP, allreduce hook of one's own")
def own_hook(job: Job, model: nn.Module) -> nn.Module:
    wrapped = DistributedDataParallel(job.before(model))
    wrapped.register_comm_hook(None, default_hooks.allreduce_hook)
    return job.after(wrapped)


@way("DDP, bf16 autocast", recipe=Recipe(dtype=torch.bfloat16), around=_autocast)
def autocast(job: Job, model: nn.Module) -> nn.Module:
    return _wrap(job, model)


@way("DDP, checkpoint_wrapper per block", expected={"attention": 4, "norm": 9, "silu": 4})
def checkpointed(job: Job, model: nn.Module) -> nn.Module:
    model = job.before(model)
    apply_activation_checkpointing(model, checkpoint_wrapper, check_fn=lambda m: isinstance(m, Block))
    return _after(job, model)


@way("DDP, peft adapters", recipe=Recipe(adapters=True), lacks=adapters)
def low_rank(job: Job, model: nn.Module) -> nn.Module:
    return _wrap(job, model)


@way("DDP, torch.compile of each block", expected={"attention": 2})
def blocks_compiled(job: Job, model: nn.Module) -> nn.Module:
    model = job.before(model)
    for block in model.blocks:
        block.compile(backend="aot_eager")
    return _after(job, model)


@way("replicate", lacks=replicated)
def composable(job: Job, model: nn.Module) -> nn.Module:
    return job.after(replicate(job.before(model)))


@way("DDP, torch.compile(fullgraph) around", expected={"attention": 2})
def compiled(job: Job, model: nn.Module) -> nn.Module:
    wrapped = DistributedDataParallel(job.before(model))
    return torch.compile(job.after(wrapped), backend="aot_eager")  # type: ignore[return-value]
