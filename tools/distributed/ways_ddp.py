"""DistributedDataParallel."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from tools.distributed.rows import Job, accelerator, way
from tools.distributed.training import Recipe


def _wrapped(job: Job, model: nn.Module, **options: Any) -> nn.Module:
    return job.after(DistributedDataParallel(job.before(model), **options))


def _quiet(model: nn.Module, last: bool) -> AbstractContextManager[Any]:
    return contextlib.nullcontext() if last else model.no_sync()  # type: ignore[operator, no-any-return]


@way("DDP", orders=("before", "after", "midway"))
def plain(job: Job, model: nn.Module) -> nn.Module:
    return _wrapped(job, model)


@way("DDP, static_graph")
def static_graph(job: Job, model: nn.Module) -> nn.Module:
    return _wrapped(job, model, static_graph=True)


@way("DDP, find_unused_parameters, gradient_as_bucket_view")
def unused(job: Job, model: nn.Module) -> nn.Module:
    return _wrapped(job, model, find_unused_parameters=True, gradient_as_bucket_view=True)


@way("DDP, no_sync over 3 micro batches, clipped", recipe=Recipe(micro=3, clip=0.5), quiet=_quiet)
def accumulated(job: Job, model: nn.Module) -> nn.Module:
    return _wrapped(job, model)


@way("DDP, bf16 compress hook", lacks=accelerator, recipe=Recipe(dtype=torch.bfloat16))
def hooked(job: Job, model: nn.Module) -> nn.Module:
    wrapped = DistributedDataParallel(job.before(model))
    wrapped.register_comm_hook(None, default_hooks.bf16_compress_hook)
    return job.after(wrapped)


@way("DDP, torch.compile(fullgraph) around", expected={"attention": 2})
def compiled(job: Job, model: nn.Module) -> nn.Module:
    wrapped = DistributedDataParallel(job.before(model))
    return torch.compile(job.after(wrapped), backend="aot_eager")  # type: ignore[return-value]
