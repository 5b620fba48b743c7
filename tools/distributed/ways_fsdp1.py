"""FullyShardedDataParallel (FSDP1)."""

from __future__ import annotations

import contextlib
import functools
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
    checkpoint_wrapper,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffload, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

from tools.distributed.model import Attention, Block, RootMeanSquare
from tools.distributed.rows import Job, accelerator, adapters, way
from tools.distributed.training import Recipe


def _wrap(job: Job, model: nn.Module, *classes: type[nn.Module], **options: Any) -> nn.Module:
    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls=set(classes or (Block,)))
    device = torch.device(job.device) if job.device == "cpu" else torch.cuda.current_device()
    wrapped = FSDP(job.before(model), auto_wrap_policy=policy, device_id=device, **options)
    return job.after(wrapped)


def _clip(model: nn.Module, norm: float) -> None:
    model.clip_grad_norm_(norm)  # type: ignore[operator]


def _without_sync(model: nn.Module, last: bool) -> AbstractContextManager[Any]:
    return contextlib.nullcontext() if last else model.no_sync()  # type: ignore[operator, no-any-return]


@way("FSDP1 per block, use_orig_params=True", orders=("before", "after", "midway"))
def originals(job: Job, model: nn.Module) -> nn.Module:
    return _wrap(job, model, use_orig_params=True)


@way("FSDP1 per block, use_orig_params=False", orders=("before", "after", "midway"))
def flat(job: Job, model: nn.Module) -> nn.Module:
    return _wrap(job, model)


@way("FSDP1 at the root only")
def root(job: Job, model: nn.Module) -> nn.Module:
    return job.after(FSDP(job.before(model), use_orig_params=True, device_id=torch.device("cpu")))


@way("FSDP1 per block, attention and norm, use_orig_params=True")
def nested(job: Job, model: nn.Module) -> nn.Module:
    return _wrap(job, model, Block, Attention, RootMeanSquare, use_orig_params=True)


@way("FSDP1 per block, attention and norm, use_orig_params=False")
def nested_flat(job: Job, model: nn.Module) -> nn.Module:
    return _wrap(job, model, Block, Attention, RootMeanSquare)


@way("FSDP1, SHARD_GRAD_OP")
def grad_op(job: Job, model: nn.Module) -> nn.Module:
    return _wrap(job, model, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP, use_orig_params=True)


@way("FSDP1, NO_SHARD")
def no_shard(job: Job, model: nn.Module) -> nn.Module:
    return _wrap(job, model, sharding_strategy=ShardingStrategy.NO_SHARD, use_orig_params=True)


@way("FSDP1, CPUOffload", lacks=accelerator)
def offload(job: Job, model: nn.Module) -> nn.Module:
    return _wrap(job, model, cpu_offload=CPUOffload(offload_params=True))


@way("FSDP1, bf16 MixedPrecision", recipe=Recipe(dtype=torch.bfloat16))
def mixed_precision_blocks(job: Job, model: nn.Module) -> nn.Module:
    return _wrap(job, model, mixed_precision=MixedPrecision(param_dtype=torch.bfloat16), use_orig_params=True)


@way(
    "FSDP1, no_sync over 3 micro batches, clip_grad_norm_",
    recipe=Recipe(micro=3, clip=0.5),
    clip=_clip,
    quiet=_without_sync,
)
def accumulated(job: Job, model: nn.Module) -> nn.Module:
    return _wrap(job, model, use_orig_params=True)


@way("FSDP1, checkpoint_wrapper per block", expected={"attention": 4, "norm": 9, "silu": 4})
def checkpointed(job: Job, model: nn.Module) -> nn.Module:
    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
    wrapped = FSDP(job.before(model), auto_wrap_policy=policy, use_orig_params=True, device_id=torch.device("cpu"))
    apply_activation_checkpointing(wrapped, checkpoint_wrapper, check_fn=lambda m: isinstance(m, Block))
    return job.after(wrapped)


@way("FSDP1, ignored_modules")
def ignore_norms(job: Job, model: nn.Module) -> nn.Module:
    model = job.before(model)
    norms = [m for m in model.modules() if isinstance(m, RootMeanSquare)]
    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
    device = torch.device(job.device) if job.device == "cpu" else torch.cuda.current_device()
    return job.after(FSDP(model, auto_wrap_policy=policy, ignored_modules=norms, device_id=device))


@way("FSDP1, peft adapters, use_orig_params=True", recipe=Recipe(adapters=True), lacks=adapters)
def low_rank(job: Job, model: nn.Module) -> nn.Module:
    return _wrap(job, model, use_orig_params=True)


@way("FSDP1, HYBRID_SHARD (2 x 2)", ranks=4)
def hybrid(job: Job, model: nn.Module) -> nn.Module:
    mesh = init_device_mesh(job.device, (2, job.world // 2), mesh_dim_names=("replicate", "shard"))
    return _wrap(job, model, sharding_strategy=ShardingStrategy.HYBRID_SHARD, device_mesh=mesh, use_orig_params=True)
