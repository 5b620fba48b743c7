"""Tensor and sequence parallelism, alone and with data parallelism on a mesh of two dimensions."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
    checkpoint_wrapper,
)
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.experimental import implicit_replication
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from tools.distributed.model import Block
from tools.distributed.rows import Job, way
from tools.distributed.training import Recipe


def _parallel(model: nn.Module, mesh: DeviceMesh) -> None:
    plan = {f"attention.{n}": ColwiseParallel() for n in ("query", "key", "value")}
    plan |= {"attention.out": RowwiseParallel(), "mlp.gate": ColwiseParallel(), "mlp.up": ColwiseParallel()}
    plan |= {"mlp.down": RowwiseParallel()}
    for block in model.blocks:
        parallelize_module(block, mesh, plan)


def _sequences(model: nn.Module, mesh: DeviceMesh) -> None:
    root = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    parallelize_module(model, mesh, root)
    plan = {
        "attention_norm": SequenceParallel(),
        "attention": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
        "mlp_norm": SequenceParallel(),
        "mlp": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
        "attention.out": RowwiseParallel(output_layouts=Shard(1)),
        "mlp.down": RowwiseParallel(output_layouts=Shard(1)),
    } | {f"attention.{n}": ColwiseParallel() for n in ("query", "key", "value")}
    plan |= {"mlp.gate": ColwiseParallel(), "mlp.up": ColwiseParallel()}
    for block in model.blocks:
        parallelize_module(block, mesh, plan)


def _one(world: int) -> int:
    return 1


def _first(rank: int) -> int:
    return 0


@way("tensor parallel", replicas=_one, replica=_first, orders=("before", "after", "midway"))
def tensor(job: Job, model: nn.Module) -> nn.Module:
    model = job.before(model)
    _parallel(model, init_device_mesh(job.device, (job.world,)))
    return job.after(model)


@way("sequence parallel", replicas=_one, replica=_first)
def sequence(job: Job, model: nn.Module) -> nn.Module:
    model = job.before(model)
    _sequences(model, init_device_mesh(job.device, (job.world,)))
    return job.after(model)


@way("FSDP2 x tensor parallel (2 x 2)", ranks=4, replicas=lambda w: w // 2, replica=lambda r: r // 2)
def two_dimensions(job: Job, model: nn.Module) -> nn.Module:
    model = job.before(model)
    mesh = init_device_mesh(job.device, (job.world // 2, 2), mesh_dim_names=("dp", "tp"))
    _parallel(model, mesh["tp"])
    for module in model.blocks:
        fully_shard(module, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    return job.after(model)


@way("FSDP2, HSDP (2 x 2)", ranks=4)
def hybrid(job: Job, model: nn.Module) -> nn.Module:
    model = job.before(model)
    mesh = init_device_mesh(job.device, (2, job.world // 2), mesh_dim_names=("replicate", "shard"))
    for module in reversed(list(model.modules())):
        if isinstance(module, Block):
            fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return job.after(model)


@way(
    "tensor parallel, projections that return DTensors", replicas=_one, replica=_first,
    throughout=implicit_replication, expected={"attention": 2, "norm": 5, "silu": 4},
    note="The profiler sees SiLU twice, on the DTensor and on the rank's part of it.",
)  # fmt: skip
def distributed_outputs(job: Job, model: nn.Module) -> nn.Module:
    model, mesh = job.before(model), init_device_mesh(job.device, (job.world,))
    split = ColwiseParallel(use_local_output=False)
    plan = {f"attention.{n}": split for n in ("query", "key", "value")} | {"mlp.gate": split, "mlp.up": split}
    plan |= {"attention.out": RowwiseParallel(), "mlp.down": RowwiseParallel()}
    for block in model.blocks:
        parallelize_module(block, mesh, plan)
    return job.after(model)


@way("FSDP2 x tensor parallel (2 x 2), checkpoint_wrapper, bf16 MixedPrecisionPolicy", ranks=4,
     replicas=lambda w: w // 2, replica=lambda r: r // 2, recipe=Recipe(dtype=torch.bfloat16),
     expected={"attention": 4, "norm": 9, "silu": 4})  # fmt: skip
def two_dimensions_checkpointed(job: Job, model: nn.Module) -> nn.Module:
    model = job.before(model)
    mesh = init_device_mesh(job.device, (job.world // 2, 2), mesh_dim_names=("dp", "tp"))
    _parallel(model, mesh["tp"])
    apply_activation_checkpointing(model, checkpoint_wrapper, check_fn=lambda m: isinstance(m, Block))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    for module in model.blocks:
        fully_shard(module, mesh=mesh["dp"], mp_policy=policy)
    fully_shard(model, mesh=mesh["dp"], mp_policy=policy)
    return job.after(model)


@way("FSDP2 x sequence parallel (2 x 2)", ranks=4, replicas=lambda w: w // 2, replica=lambda r: r // 2)
def two_dimensions_of_sequences(job: Job, model: nn.Module) -> nn.Module:
    model = job.before(model)
    mesh = init_device_mesh(job.device, (job.world // 2, 2), mesh_dim_names=("dp", "tp"))
    _sequences(model, mesh["tp"])
    for module in model.blocks:
        fully_shard(module, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    return job.after(model)
