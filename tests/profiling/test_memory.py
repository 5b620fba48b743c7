"""Memory at the peak of a step: known to the byte for small steps, and held against MemTracker and a process's size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed._tools.mem_tracker import MemTracker

from autofuse.demo.gpt import GPT, Config
from autofuse.profiling.calls import Names
from autofuse.profiling.memory import Holding
from autofuse.report.profile import Memory

KINDS = ("parameters", "buffers", "gradients", "optimizer", "activations", "inputs", "temporaries")
FLOAT = 4
Step = Callable[[], object]


def held(model: nn.Module, step: Step, optimizer: torch.optim.Optimizer | None = None, inputs: Any = None) -> Holding:
    with Holding(Names({"": model}), () if optimizer is None else (optimizer,), inputs=inputs) as holding:
        step()
    return holding


def tracked(model: nn.Module, step: Step, *known: Any) -> int:
    tracker = MemTracker()
    tracker.track_external(model, *known)
    with tracker:
        step()
    return tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]  # type: ignore[index]


def gpt(**sizes: int) -> tuple[GPT, Tensor]:
    config = Config(**{"vocab_size": 64, "block_size": 64, "n_layer": 2, "n_head": 4, "n_embd": 64, **sizes})
    return GPT(config), torch.randint(0, config.vocab_size, (2, config.block_size))


def adds_up(holding: Holding) -> bool:
    total = sum(getattr(holding.memory, kind) for kind in KINDS)
    return total == holding.memory.peak_bytes == sum(holding.by_layer.values())


def test_a_linear_layer_holds_what_can_be_counted_on_paper() -> None:
    model, x = nn.Linear(30, 50), torch.randn(20, 30)

    def step() -> None:
        model(x).square().sum().backward()

    found = held(model, step, inputs=x).memory
    # At the peak: the output y and the loss; 2 y and the 1 that it is multiplied by are made, and their product.
    y = 20 * 50 * FLOAT
    assert found == Memory(
        peak_bytes=found.peak_bytes, parameters=(30 * 50 + 50) * FLOAT, inputs=20 * 30 * FLOAT, source=found.source,
        activations=found.activations, temporaries=found.temporaries,
    )  # fmt: skip
    assert y <= found.activations <= y + 16
    assert found.temporaries % y <= 16


def test_it_is_what_mem_tracker_says_of_a_first_step_and_of_a_later_one() -> None:
    model, x = gpt()
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        model(x).logsumexp(-1).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    first = held(model, step, optimizer, x)
    later = held(model, step, optimizer, x)
    assert adds_up(first) and adds_up(later)
    assert later.memory.peak_bytes == pytest.approx(tracked(model, step, optimizer, x), rel=1e-4)
    assert later.memory.optimizer == 2 * later.memory.parameters + FLOAT * len(list(model.parameters()))
    assert first.memory.optimizer == 0  # at the peak, which the first backward reaches, there is none yet
