"""Memory at the peak of a step: exact for small steps, and compared with MemTracker and with a process's size."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.utils.checkpoint import checkpoint

import autofuse
from autofuse.demo.gpt import GPT, Config
from autofuse.measure.memory import allocation_events_peak
from autofuse.profiling.live.memory import PeakHoldings
from autofuse.profiling.live.module_calls import ModuleNames
from autofuse.results.profile import OUTSIDE, Memory

KINDS = ("parameters", "buffers", "gradients", "optimizer", "activations", "inputs", "temporaries")
FLOAT = 4
Step = Callable[[], object]


def held_bytes(
    model: nn.Module, step: Step, optimizer: torch.optim.Optimizer | None = None, inputs: Any = None
) -> PeakHoldings:
    with PeakHoldings(ModuleNames({"": model}), () if optimizer is None else (optimizer,), inputs=inputs) as holding:
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


def adds_up(holding: PeakHoldings) -> bool:
    total = sum(getattr(holding.memory, kind) for kind in KINDS)
    return total == holding.memory.peak_bytes == sum(holding.by_layer.values())


def test_the_memory_of_a_linear_layer_equals_the_count_by_hand() -> None:
    model, x = nn.Linear(30, 50), torch.randn(20, 30)

    def step() -> None:
        model(x).square().sum().backward()

    found = held_bytes(model, step, inputs=x).memory
    # At the peak: the output y and the loss; 2 y and the 1 that it is multiplied by are made, and their product.
    y = 20 * 50 * FLOAT
    assert found == Memory(
        peak_bytes=found.peak_bytes, parameters=(30 * 50 + 50) * FLOAT, inputs=20 * 30 * FLOAT, source=found.source,
        activations=found.activations, temporaries=found.temporaries,
    )  # fmt: skip
    assert y <= found.activations <= y + 16
    assert found.temporaries % y <= 16


def test_it_agrees_with_mem_tracker_on_the_first_and_a_later_step() -> None:
    model, x = gpt()
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        model(x).logsumexp(-1).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    first = held_bytes(model, step, optimizer, x)
    later = held_bytes(model, step, optimizer, x)
    assert adds_up(first) and adds_up(later)
    assert later.memory.peak_bytes == pytest.approx(tracked(model, step, optimizer, x), rel=1e-4)
    assert later.memory.optimizer == 2 * later.memory.parameters + FLOAT * len(list(model.parameters()))
    assert first.memory.optimizer == 0  # at the peak, which the first backward reaches, there is none yet


def step_of(model: nn.Module, x: Tensor) -> Step:
    def step() -> None:
        model(x).logsumexp(-1).mean().backward()
        model.zero_grad()

    return step


def test_gradients_that_accumulate_stand_when_the_next_backward_begins() -> None:
    model, x = gpt()

    def step() -> None:
        model(x).logsumexp(-1).mean().backward()

    step()
    found = held_bytes(model, step, inputs=x)
    assert found.memory.gradients == found.memory.parameters
    assert found.memory.peak_bytes == pytest.approx(tracked(model, step, x), rel=1e-4)


class Checkpointed(nn.Module):
    def __init__(self, model: GPT, reentrant: bool) -> None:
        super().__init__()
        self.inside, self.reentrant = model, reentrant

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.inside.wte(tokens)
        for block in self.inside.h:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        return self.inside.lm_head(x)


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputed_activations_belong_to_the_module_that_computes_them(reentrant: bool) -> None:
    model = Checkpointed(gpt(vocab_size=8, n_layer=3)[0], reentrant)
    x = torch.randint(0, 8, (4, 64))
    found = held_bytes(model, step_of(model, x), inputs=x)
    whole = held_bytes(model.inside, step_of(model.inside, x), inputs=x)
    assert adds_up(found)
    assert found.memory.peak_bytes == pytest.approx(tracked(model, step_of(model, x), x), rel=0.005)
    assert found.memory.activations < 0.6 * whole.memory.activations
    assert found.by_layer["inside.h.0.attn"] > 10 * found.by_layer["inside.h.2.attn"]  # one block is whole at a time


def test_autocast_keeps_casts_of_weights_for_the_backward() -> None:
    model, x = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256)), torch.randn(1024, 256)

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(x).float().square().sum()
        loss.backward()
        model.zero_grad()

    found = held_bytes(model, step, inputs=x)
    assert found.by_layer["2"] >= 256 * 256 * (FLOAT + 2)  # its weight, and what the weight was cast to
    assert found.memory.peak_bytes == pytest.approx(tracked(model, step, x), rel=1e-3)


def test_fake_tensors_give_the_same_memory_and_compute_nothing() -> None:
    def build() -> PeakHoldings:
        model, x = gpt()
        return held_bytes(model, step_of(model, x), inputs=x)

    with FakeTensorMode():
        fake = build()
    real = build()
    assert replace(fake.memory, source="") == replace(real.memory, source="")
    assert fake.by_layer == real.by_layer
    assert "without the memory that kernels take" in fake.memory.source


def test_an_optimized_model_runs_as_optimized_and_workspaces_within_operators_count() -> None:
    model, x = gpt(n_embd=256, block_size=128)
    before = held_bytes(model, step_of(model, x), inputs=x)
    autofuse.optimize(model, x, verify=False, tune=False)
    fallbacks = autofuse.report(model).fallbacks
    after = held_bytes(model, step_of(model, x), inputs=x)
    assert autofuse.report(model).fallbacks == fallbacks
    assert adds_up(after)
    assert after.memory.activations < 0.6 * before.memory.activations
    stood = sum(p.nbytes for p in model.parameters()) + sum(b.nbytes for b in model.buffers()) + x.nbytes
    assert after.memory.peak_bytes == pytest.approx(stood + allocation_events_peak(step_of(model, x)), rel=1e-3)


def test_layers_have_their_parameters_and_what_their_forward_keeps() -> None:
    model = nn.ModuleDict({"first": nn.Linear(64, 64, bias=False), "second": nn.Linear(64, 64, bias=False)})
    x = torch.randn(512, 64)

    def step() -> None:
        model["second"](model["first"](x).relu()).sum().backward()

    found = held_bytes(model, step, inputs=x)
    weight, output = 64 * 64 * FLOAT, 512 * 64 * FLOAT
    assert found.by_layer["second"] >= weight
    assert found.by_layer["first"] >= weight
    assert sum(found.by_layer.values()) == found.memory.peak_bytes
    assert found.by_layer[OUTSIDE] >= x.nbytes + output  # inputs, and the ReLU that no module owns


def test_modules_keep_no_hooks_and_parameters_neither() -> None:
    model, x = gpt()
    held_bytes(model, step_of(model, x))
    assert all(not m._forward_hooks and not m._forward_pre_hooks and not m._backward_hooks for m in model.modules())
    assert all(not p._post_accumulate_grad_hooks for p in model.parameters())


def test_a_forward_alone_keeps_nothing_for_a_backward() -> None:
    model, x = gpt()

    def step() -> None:
        with torch.no_grad():
            model(x)

    found = held_bytes(model, step, inputs=x).memory
    assert found.activations == found.gradients == 0
    assert found.temporaries > 0


def test_another_profiler_continues_and_only_workspaces_are_missing() -> None:
    model, x = gpt()
    with torch.profiler.profile() as profiler:
        found = held_bytes(model, step_of(model, x), inputs=x)
    assert "without the memory that kernels take" in found.memory.source
    assert any(event.key == "aten::bmm" for event in profiler.key_averages())


def test_an_error_in_the_step_comes_through_and_leaves_nothing_behind() -> None:
    model, x = gpt()
    with pytest.raises(IndexError), PeakHoldings(ModuleNames({"": model})):
        model(x + 1000)
    assert adds_up(held_bytes(model, step_of(model, x), inputs=x))


_PROCESS = """
import gc, torch
from autofuse.demo.gpt import GPT, Config
from autofuse.measure.memory import allocation_events_peak
from autofuse.profiling.live.module_calls import ModuleNames
from autofuse.profiling.live.memory import PeakHoldings

def status(key):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(key))

def made(width, batch):
    model = GPT(Config(vocab_size=64, block_size=256, n_layer=4, n_head=8, n_embd=width))
    tokens, optimizer = torch.randint(0, 64, (batch, 256)), torch.optim.AdamW(model.parameters())
    def step():
        model(tokens).logsumexp(-1).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, tokens, optimizer, step

def warm():
    made(32, 1)[-1]()

warm()
gc.collect()
stood = status("VmRSS")
model, tokens, optimizer, step = made(256, 4)
step()
step()
grown = status("VmHWM") - stood
with PeakHoldings(ModuleNames({"": model}), (optimizer,), inputs=tokens) as holding:
    step()
print(holding.memory.peak_bytes, grown)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the size of a process is read from /proc")
def test_it_equals_the_growth_of_a_process() -> None:
    # glibc keeps freed memory in unused gaps, which do not belong to the step; below this size it gives all back.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", _PROCESS], env=environment, capture_output=True, text=True, check=True)
    peak, grown = map(int, done.stdout.split())
    assert peak > 100 * 2**20
    assert peak == pytest.approx(grown, rel=0.1)


def test_stderr_of_the_step_is_kept_and_the_allocators_warnings_are_removed(capfd: Any) -> None:
    model, x = gpt()
    kept = [torch.randn(100)]

    def step() -> None:
        kept.clear()  # memory from before the profile
        os.write(2, b"said\n")

    held_bytes(model, step, inputs=x)
    assert capfd.readouterr().err == "said\n"
