"""The memory of one device if a model is distributed, compared with counts by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from autofuse.profiling.plan.sharding import blocks, sources, spread
from autofuse.results.plan import Setting

WEIGHT = 8 * 8 * 4


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Linear(8, 8, bias=False)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8, bias=False), nn.ReLU()) for _ in range(3))


def setting(strategy: str = "none", devices: int = 1, **options: Any) -> Setting:
    return Setting(strategy=strategy, devices=devices, **options)


def test_blocks_are_the_outermost_repeated_parts() -> None:
    model = Stack()
    assert list(blocks(model)) == list(model.layers)
    assert list(blocks(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))) == []


def test_one_device_holds_everything() -> None:
    assert spread(Stack(), setting()) == spread(Stack(), setting("fsdp", 1))
    assert spread(Stack(), setting()).changes_nothing
    assert sources(setting()) == ()


def test_ddp_divides_nothing_and_has_the_gradients_once_more_in_buckets() -> None:
    found = spread(Stack(), setting("ddp", 4))
    assert dict(found.shares) == {}
    assert found.whole == 4 * WEIGHT


@pytest.mark.parametrize("strategy", ["fsdp", "hsdp"])
def test_fsdp_divides_the_states_and_keeps_the_rest_two_blocks_and_one_blocks_gradients_undivided(
    strategy: str,
) -> None:
    found = spread(Stack(), setting(strategy, 4))
    assert dict(found.shares) == {"parameters": 0.25, "gradients": 0.25, "optimizer": 0.25}
    assert found.whole == WEIGHT + 2 * WEIGHT + WEIGHT


def test_the_stages_of_zero_divide_the_optimizer_and_then_the_gradients() -> None:
    assert dict(spread(Stack(), setting("zero1", 4)).shares) == {"optimizer": 0.25}
    found = spread(Stack(), setting("zero2", 4))
    assert dict(found.shares) == {"gradients": 0.25, "optimizer": 0.25}
    assert found.whole == WEIGHT


def test_tensor_parallelism_divides_activations_too_and_combines_with_sharding() -> None:
    assert spread(Stack(), setting("tp", 2)).shares["activations"] == 0.5
    assert spread(Stack(), setting("tp", 2)) == spread(Stack(), setting(tensor=2))
    both = spread(Stack(), setting("fsdp", 4, tensor=2))
    assert both.shares["parameters"] == 1 / 8 and both.shares["activations"] == 0.5
    assert both.whole == 2 * WEIGHT
    assert len(sources(setting("fsdp", 4, tensor=2))) == 2


def test_the_first_stage_of_a_pipeline_holds_its_blocks_the_rest_and_microbatches_in_flight() -> None:
    found = spread(Stack(), setting(pipeline=3, microbatches=8))
    assert found.shares["parameters"] == (1 + 1) / 4  # one of three blocks, and the embedding
    assert "activations" not in found.shares  # three microbatches in flight, a third of the blocks each
    assert spread(Stack(), setting(pipeline=3, microbatches=2)).shares["activations"] == pytest.approx(2 / 3)


def test_context_parallelism_divides_the_sequence_and_what_is_sharded() -> None:
    found = spread(Stack(), setting("fsdp", 4, context=2))
    assert found.shares["activations"] == found.shares["inputs"] == 0.5
    assert found.shares["parameters"] == 1 / 8
    assert "parameters" not in spread(Stack(), setting(context=2)).shares


def test_float32_masters_are_added_and_shards_are_float32() -> None:
    model = Stack().to(torch.bfloat16)
    numbers = sum(p.numel() for p in model.parameters())
    alone = spread(model, setting(master=True))
    assert dict(alone.shares) == {"optimizer": 2.0} and alone.added == {"optimizer": 4 * numbers}
    assert spread(model, setting("zero1", 4, master=True)).added == {"optimizer": numbers}
    sharded = spread(model, setting("fsdp", 4, master=True))
    assert dict(sharded.shares) == {"parameters": 0.5, "gradients": 0.5, "optimizer": 0.5} and not sharded.added
    assert sharded.whole == 4 * WEIGHT // 2


def test_offloaded_states_are_in_the_hosts_memory_and_not_on_the_device() -> None:
    model = Stack().to(torch.bfloat16)
    found = spread(model, setting(master=True, offload="optimizer"))
    assert found.shares["optimizer"] == 0 and not found.added
    assert found.host == {"optimizer": 2.0} and found.host_added == 4 * sum(p.numel() for p in model.parameters())
    everything = spread(model, setting("fsdp", 4, offload="parameters"))
    assert {everything.shares[kind] for kind in ("parameters", "gradients", "optimizer")} == {0.0}
    assert everything.whole == 4 * WEIGHT // 2


def test_another_strategy_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"'magic'.*fsdp"):
        spread(Stack(), setting("magic", 2))
