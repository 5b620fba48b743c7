"""State: checkpoints that one model writes and the other reads, meta devices, full parameters, restore.

The checks after training (`finish`) are made on both models.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from torch.nn.parallel import DistributedDataParallel

import autofuse
from autofuse.fx.session import ranks
from tools.distributed.model import Block, Decoder
from tools.distributed.rows import Job, way
from tools.distributed.seen import Seen, count_fused

_WHOLE = StateDictOptions(full_state_dict=True)


def _fsdp2(model: nn.Module) -> nn.Module:
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    return model


def _fsdp1(model: nn.Module, **options: Any) -> nn.Module:
    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
    return FSDP(model, auto_wrap_policy=policy, device_id=_device(), **options)


def _device() -> Any:
    return torch.cuda.current_device() if dist.get_backend() == "nccl" else torch.device("cpu")


def _logits(job: Job, model: nn.Module) -> tuple[Tensor, Seen]:
    counts: Seen = {}
    with count_fused(counts), torch.no_grad():
        logits = model(job.example())
    return logits, counts


def _same(one: nn.Module, other: nn.Module) -> None:
    a, b = (get_model_state_dict(m, options=_WHOLE) for m in (one, other))
    assert a.keys() == b.keys(), "their state dicts have other keys"
    odd = [n for n in a if not torch.equal(a[n], b[n])]
    assert not odd, f"{odd[0]} is another one after loading"


def _exchange_checkpoints(job: Job, plain: nn.Module, fused: nn.Module) -> None:
    """Checks that each model loads the other's checkpoint exactly, and that the optimized model stays optimized."""
    for source, target in ((fused, plain), (plain, fused)):
        with torch.no_grad():
            for p in source.parameters():
                p.mul_(1.5)
        folder = [tempfile.mkdtemp() if job.rank == 0 else ""]
        dist.broadcast_object_list(folder)
        dcp.save({"model": get_model_state_dict(source)}, checkpoint_id=folder[0])
        state = {"model": get_model_state_dict(target)}
        dcp.load(state, checkpoint_id=folder[0])
        set_model_state_dict(target, state["model"])
        _same(source, target)
    _, counts = _logits(job, fused)
    assert counts, "after loading, the optimized model runs its original code"


@way("FSDP2, DCP between plain and optimized", finish=_exchange_checkpoints)
def fsdp2_checkpoint(job: Job, model: nn.Module) -> nn.Module:
    return job.after(_fsdp2(job.before(model)))


@way("FSDP1, DCP between plain and optimized", finish=_exchange_checkpoints)
def fsdp1_checkpoint(job: Job, model: nn.Module) -> nn.Module:
    return job.after(_fsdp1(job.before(model), use_orig_params=True))


@way("DDP, DCP between plain and optimized", finish=_exchange_checkpoints)
def ddp_checkpoint(job: Job, model: nn.Module) -> nn.Module:
    return job.after(DistributedDataParallel(job.before(model)))


def _check_optimizer_state(job: Job, plain: nn.Module, fused: nn.Module) -> None:
    """Checks get_state_dict and set_state_dict with an optimizer that has momentum."""
    both = [(m, torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)) for m in (plain, fused)]
    for model, optimizer in both:
        model(job.example()).float().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    (source, momenta), (target, others) = reversed(both)
    parameters, state = get_state_dict(source, momenta)
    set_state_dict(target, others, model_state_dict=parameters, optim_state_dict=state)
    _same(source, target)


@way("FSDP2, get_state_dict and set_state_dict with an optimizer", orders=("before",), finish=_check_optimizer_state)
def fsdp2_optimizer(job: Job, model: nn.Module) -> nn.Module:
    return job.after(_fsdp2(job.before(model)))


def _check_full_params(job: Job, plain: nn.Module, fused: nn.Module) -> None:
    """Checks that summon_full_params shows equal tensors under equal names, and that forward works afterwards."""
    for writeback in (False, True):
        with FSDP.summon_full_params(plain, writeback=writeback), FSDP.summon_full_params(fused, writeback=writeback):
            names = [[n for n, _ in m.named_parameters()] for m in (plain, fused)]
        assert names[0] == names[1], "summon_full_params shows other names"
    _, counts = _logits(job, fused)
    assert counts, "behind summon_full_params, the optimized model runs its original code"


@way("FSDP1, summon_full_params", finish=_check_full_params)
def summoned(job: Job, model: nn.Module) -> nn.Module:
    return job.after(_fsdp1(job.before(model)))


def _compare_restored(job: Job, plain: nn.Module, fused: nn.Module) -> None:
    """restore gives every module its own class back, in every wrapping."""
    set_model_state_dict(fused, get_model_state_dict(plain, options=_WHOLE), options=_WHOLE)
    autofuse.restore(fused)
    expected, _ = _logits(job, plain)
    found, counts = _logits(job, fused)
    assert not counts, f"restored, it still runs fused operators: {counts}"
    assert torch.equal(expected, found), "restored, it computes something else"


def _add_restore_way(name: str, wrap: Callable[[nn.Module], nn.Module]) -> None:
    @way(f"{name}, restore", finish=_compare_restored)
    def restore_optimized(job: Job, model: nn.Module) -> nn.Module:
        return job.after(wrap(job.before(model)))


_add_restore_way("DDP", DistributedDataParallel)
_add_restore_way("FSDP1", _fsdp1)
_add_restore_way("FSDP2", _fsdp2)


def _empty() -> nn.Module:
    with torch.device("meta"):
        return Decoder()


@way("FSDP2, meta device, to_empty, load", orders=("before", "after"))
def fsdp2_meta(job: Job, model: nn.Module) -> nn.Module:
    sharded = job.after(_fsdp2(job.before(_empty())))
    sharded.to_empty(device=job.device)
    set_model_state_dict(sharded, model.state_dict(), options=_WHOLE)
    return sharded


@way("FSDP1, meta device, param_init_fn, load", orders=("before", "after"))
def fsdp1_meta(job: Job, model: nn.Module) -> nn.Module:
    def materialized(module: nn.Module) -> None:
        module.to_empty(device=job.device, recurse=False)

    sharded = job.after(_fsdp1(job.before(_empty()), param_init_fn=materialized, use_orig_params=True))
    set_model_state_dict(sharded, model.state_dict(), options=_WHOLE)
    return sharded


@way("DDP, meta device, to_empty, load", orders=("before",))
def ddp_meta(job: Job, model: nn.Module) -> nn.Module:
    empty = job.before(_empty()).to_empty(device=job.device)
    empty.load_state_dict(model.state_dict())
    return DistributedDataParallel(empty)


def _agreement(job: Job, plain: nn.Module, fused: nn.Module) -> None:
    """Rank 0 decides at optimize, later the first rank does. A rank that cannot follow, or waits too long, raises."""
    tokens, none = job.example(), job.rank == 0
    followed = autofuse.optimize(job.start(), tokens, ignore=["AF303"] if none else [])
    described = {
        s.rule: s.reason for s in autofuse.report(followed) if s.module == "blocks.0.mlp" and s.status != "fused"
    }
    assert none or described.get("AF303", "").startswith("rank 0 did not fuse it"), (
        f"rank {job.rank} was told {described}"
    )
    _in_turn(job, lambda: _raises(job, lambda: autofuse.optimize(job.start(), tokens, ignore=_but_rank_0(job))))
    late = autofuse.optimize(job.start(), ignore=_but_rank_0(job))
    _in_turn(job, lambda: _raises(job, lambda: late(tokens)))
    patience, ranks.PATIENCE = ranks.PATIENCE, 1.0
    try:
        _in_turn(job, lambda: _raises(job, lambda: autofuse.optimize(job.start(), tokens)), zero_first=False)
    finally:
        ranks.PATIENCE = patience


def _but_rank_0(job: Job) -> list[str]:
    return [] if job.rank == 0 else ["AF101"]


def _in_turn(job: Job, act: Callable[[], None], zero_first: bool = True) -> None:
    """Runs a function on rank 0 before the other ranks, or after them."""
    if (job.rank == 0) != zero_first:
        dist.barrier()
    act()
    if (job.rank == 0) == zero_first:
        dist.barrier()


def _raises(job: Job, act: Callable[[], object]) -> None:
    """Checks that every rank except 0 raises an error."""
    if job.rank == 0:
        act()
        return
    try:
        act()
    except ranks.Disagreement as error:
        assert "rank 0" in str(error), str(error)
    else:
        raise AssertionError(f"rank {job.rank} did otherwise than rank 0, and said nothing")


@way("ranks that would decide otherwise", orders=("before",), finish=_agreement)
def disagreeing(job: Job, model: nn.Module) -> nn.Module:
    return job.after(DistributedDataParallel(job.before(model)))
