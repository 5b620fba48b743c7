"""Run by test_distributed.py under torchrun: an optimized model trains as the original does, wrapped or sharded."""

from __future__ import annotations

import copy
import os
import sys
import warnings

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import autofuse
from tests.fx.conftest import Block, Gpt

warnings.filterwarnings("ignore")


def trained(model: nn.Module, batches: list[Tensor]) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for tokens in batches:
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def sharded(model: nn.Module, per_child: bool) -> nn.Module:
    for module in reversed(list(model.modules())):  # children first
        if isinstance(module, Block) or per_child and isinstance(module, nn.LayerNorm):
            fully_shard(module)
    return fully_shard(model)


def main(kind: str) -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    plain, tokens = Gpt(), torch.randint(0, 20, (2, 8))
    torch.manual_seed(dist.get_rank())
    batches = [torch.randint(0, 20, (2, 8)) for _ in range(3)]
    expected = trained(DistributedDataParallel(copy.deepcopy(plain)), batches)
    if kind == "ddp":
        model: nn.Module = DistributedDataParallel(autofuse.optimize(plain, tokens, verify=False))
    elif kind == "late":
        model = autofuse.optimize(sharded(plain, False), tokens)
    else:
        model = sharded(autofuse.optimize(plain, tokens, verify=False), kind == "per_child")
    found = trained(model, batches)
    assert all(abs(a - b) < 1e-4 for a, b in zip(expected, found, strict=True)), (expected, found)
    inner = plain if kind != "ddp" else model
    assert any(s.rule == "AF101" for s in autofuse.report(inner).with_status("fused"))
    autofuse.restore(inner)
    trained(model, batches)
    dist.destroy_process_group()
    os._exit(0)  # DDP's reducer holds the GIL while it waits for a gloo thread that may need it: not torn down here


if __name__ == "__main__":
    main(sys.argv[1])
