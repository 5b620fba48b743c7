"""What one device holds of a model that is spread, counted on paper."""

from __future__ import annotations

import pytest
from torch import nn

from autofuse.profiling.plan.sharding import blocks, spread

WEIGHT = 8 * 8 * 4


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Linear(8, 8, bias=False)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8, bias=False), nn.ReLU()) for _ in range(3))


def test_blocks_are_the_repeated_parts_and_not_what_lies_in_them() -> None:
    model = Stack()
    assert list(blocks(model)) == list(model.layers)
    assert list(blocks(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))) == []


def test_one_device_holds_everything() -> None:
    assert spread(Stack(), "none", 1) == spread(Stack(), "fsdp", 1)
    assert spread(Stack(), "none", 1).whole == 0


def test_ddp_divides_nothing_and_has_the_gradients_once_more_in_buckets() -> None:
    found = spread(Stack(), "ddp", 4)
    assert dict(found.shares) == {}
    assert found.whole == 4 * WEIGHT


@pytest.mark.parametrize("strategy", ["fsdp", "hsdp"])
def test_fsdp_divides_what_stands_and_holds_the_rest_two_blocks_and_the_gradients_of_one_whole(strategy: str) -> None:
    found = spread(Stack(), strategy, 4)
    assert dict(found.shares) == {"parameters": 0.25, "gradients": 0.25, "optimizer": 0.25}
    assert found.whole == WEIGHT + 2 * WEIGHT + WEIGHT


def test_tensor_parallelism_divides_activations_too() -> None:
    assert spread(Stack(), "tp", 2).shares["activations"] == 0.5


def test_another_strategy_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"'magic'.*fsdp"):
        spread(Stack(), "magic", 2)
