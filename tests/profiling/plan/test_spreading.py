"""From a model to the bytes that are sent, the strategies that fit, and the recommended one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from autofuse.display.scaling import scaling_sentences, scaling_tables
from autofuse.profiling.plan.plan import plan
from autofuse.profiling.plan.scaling import Link
from autofuse.profiling.plan.spreading import Scale, scaling_of
from autofuse.results.plan import Capacity, Setting
from autofuse.results.profile import Memory


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 32, bias=False), nn.Linear(32, 8, bias=False)
        self.out = nn.Linear(8, 8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.out(self.down(torch.relu(self.up(x))))
        return made


class Model(nn.Module):
    """Four blocks of 576 float32 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(4)])

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


BYTES = 4 * 576 * 4
SETTING = Setting(batch=2, sequence=5)
SCALE = Scale(0.1, "as given", Link(1e9), 16, across=Link(1e6))
MEMORY = Memory(4 * BYTES + 1000, BYTES, 0, BYTES, 2 * BYTES, 1000)


def find_state(model: nn.Module, scale: Scale = SCALE, room: int | None = 10**6) -> dict[str, Any]:
    return scaling_of(model, MEMORY, SETTING, scale, None if room is None else Capacity(room), 0.0)


def of(result: dict[str, Any], strategy: str, devices: int, mode: str = "strong") -> dict[str, Any]:
    chosen: dict[str, Any]
    (chosen,) = (
        e for e in result["estimates"] if (e["strategy"], e["devices"], e["mode"]) == (strategy, devices, mode)
    )
    return chosen


def test_the_bytes_sent_follow_from_the_models_parameters_and_activations() -> None:
    result = find_state(Model())
    assert of(result, "ddp", 4)["sent"] == pytest.approx(2 * 3 / 4 * BYTES)
    assert of(result, "tp", 2)["sent"] == pytest.approx(4 * 4 * 2 * 1 / 2 * (2 * 5 * 8 * 4))
    assert result["devices"] == [2, 4, 8, 16]
    assert all(e["simulated"] for e in result["estimates"])


def test_parameters_that_do_not_learn_are_gathered_and_have_no_gradients() -> None:
    model = Model().requires_grad_(False)
    model.blocks[0].requires_grad_(True)
    result = find_state(model)
    assert result["work"]["parameters"] == BYTES and result["work"]["gradients"] == BYTES // 4


def test_beyond_eight_devices_the_slower_link_counts_unless_groups_keep_within() -> None:
    result = find_state(Model())
    assert of(result, "fsdp", 8)["communication"] == pytest.approx(7 / 8 * 3 * BYTES / 1e9)
    assert of(result, "fsdp", 16)["communication"] == pytest.approx(15 / 16 * 3 * BYTES / 1e6)
    across = 2 * 1 / 2 * BYTES / 8 / 1e6
    assert of(result, "hsdp", 16)["communication"] == pytest.approx(7 / 8 * 3 * BYTES / 1e9 + across)


def test_a_pipeline_has_at_most_one_stage_per_block_and_hsdp_at_least_two_groups() -> None:
    names = {(e["strategy"], e["devices"]) for e in find_state(Model())["estimates"]}
    assert ("pp", 4) in names and ("pp", 8) not in names
    assert ("hsdp", 16) in names and ("hsdp", 8) not in names


def test_a_model_without_blocks_is_not_said_to_be_split_along_them() -> None:
    result = find_state(nn.Linear(3, 3))  # type: ignore[arg-type]
    assert {e["strategy"] for e in result["estimates"]} == {"ddp", "fsdp", "hsdp"}
    assert any("left out" in note for note in result["notes"])


def test_memory_decides_which_split_is_advised() -> None:
    held = find_state(Model())["bytes_per_device"]
    assert held["ddp"] == 4 * BYTES + 1000 + BYTES  # buckets
    assert held["tp"] == 4 * BYTES // 16 + 1000  # the activations of sixteen times the samples, divided by sixteen
    assert find_state(Model(), room=held["ddp"])["advice"]["strategy"] in ("ddp", "hsdp")
    assert find_state(Model(), room=held["tp"])["advice"]["strategy"] == "tp"
    assert find_state(Model(), room=10)["advice"]["strategy"] == ""
    assert "the memory of a device" in find_state(Model(), room=None)["advice"]["why"]


def test_a_number_of_devices_that_is_not_a_power_of_two_comes_last() -> None:
    result = find_state(Model(), replace(SCALE, most=12))
    assert result["devices"] == [2, 4, 8, 12]
    assert of(result, "hsdp", 12)["communication"] > 0  # in two groups of six


def test_the_tables_and_sentences_say_that_they_are_simulated() -> None:
    result = find_state(Model())
    assert all("(simulated)" in table.title and table.rows for table in scaling_tables(result))
    assert any("0.1 s on one device (as given)" in sentence for sentence in scaling_sentences(result))


def test_a_plan_contains_scaling_if_it_was_requested() -> None:
    model = nn.Sequential(nn.Embedding(10, 8), Model())
    planned = plan(model, (torch.zeros(2, 5, dtype=torch.long),), fuse=False, scale=SCALE)
    assert planned.scaling is not None
    assert planned.scaling["work"]["activations"] == 2 * 5 * 8 * 4
    assert "weak scaling" in str(planned)
    with pytest.raises(ValueError, match="from one device"):
        plan(Model(), (torch.zeros(2, 5, 8),), strategy="fsdp", devices=2, scale=SCALE)
