"""autofuse.ops.adamw updates parameters as AdamW does, in one kernel if torch has one for them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.optim import AdamW

from autofuse import ops
from autofuse.ops import reference
from autofuse.ops.adamw import update_of

SETTINGS: list[dict[str, Any]] = [{}, {"lr": 0.1, "betas": (0.8, 0.9), "eps": 1e-4, "weight_decay": 0.3}]
SETTINGS += [{"amsgrad": True}, {"maximize": True}, {"lr": torch.tensor(0.01)}, {"weight_decay": 0.0}]


def parameters(dtype: torch.dtype = torch.float64) -> list[nn.Parameter]:
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(shape).to(dtype)) for shape in ((7, 5), (3,), ())]


def run_steps(make: Callable[..., Any], steps: int = 4, **settings: Any) -> list[Tensor]:
    """Parameters after a few steps. The last one never gets a gradient."""
    made = parameters()
    optimizer = make(made, **settings)
    for step in range(steps):
        for x in made[:2]:
            x.grad = torch.cos(x.detach() * (step + 1))
        optimizer.step()
    return [x.detach() for x in made]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_a_fused_step_follows_the_paper(settings: dict[str, Any]) -> None:
    for a, b in zip(run_steps(ops.adamw, **settings), run_steps(reference.adamw, **settings), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7 if isinstance(settings.get("lr"), Tensor) else 1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_real_parameters_on_a_cpu_are_updated_in_one_kernel(dtype: torch.dtype) -> None:
    given = parameters(dtype)
    optimizer = ops.adamw(given)
    assert isinstance(optimizer, AdamW)
    assert update_of(optimizer) == "torch AdamW, fused"
    given[0].grad = torch.ones_like(given[0])
    before = given[0].detach().clone()
    optimizer.step()
    assert not torch.equal(before, given[0])


def test_parameters_that_torch_does_not_fuse_get_its_default_and_the_reason_is_recorded() -> None:
    for own in (nn.Parameter(torch.randn(3, dtype=torch.complex64)), nn.Parameter(torch.randn(3, device="meta"))):
        groups = [{"params": (x for x in parameters()), "weight_decay": 0.0}, {"params": own}]
        optimizer = ops.adamw(groups, lr=0.5)
        assert update_of(optimizer).startswith("torch AdamW, torch's default way: ")
        assert "floating point" in update_of(optimizer)
        assert [len(group["params"]) for group in optimizer.param_groups] == [3, 1]
        assert [group["weight_decay"] for group in optimizer.param_groups] == [0.0, 1e-2]
        assert not any(group["fused"] for group in optimizer.param_groups)


def test_parameters_may_have_every_form_that_torch_accepts() -> None:
    one, other, _ = parameters()
    ways: list[Callable[[], Any]] = [
        lambda: iter([one, other]),
        lambda: [("one", one), ("other", other)],
        lambda: [{"params": one}, {"params": iter([other]), "lr": 0.5}],
    ]
    for way in ways:
        mine, torchs = ops.adamw(way()), AdamW(way())
        assert [len(g["params"]) for g in mine.param_groups] == [len(g["params"]) for g in torchs.param_groups]
        assert mine.state_dict()["param_groups"][-1]["lr"] == torchs.state_dict()["param_groups"][-1]["lr"]


def test_torchs_errors_are_passed_on() -> None:
    for wrong in (torch.ones(3), []):
        with pytest.raises((TypeError, ValueError)) as torchs:
            AdamW(wrong)
        with pytest.raises(torchs.type) as mine:
            ops.adamw(wrong)
        assert str(mine.value) == str(torchs.value)
    with pytest.raises(ValueError, match="Invalid learning rate"):
        ops.adamw(parameters(), lr=-1.0)


def test_the_callers_groups_stay_unchanged() -> None:
    group = {"params": parameters()}
    before = copy.copy(group)
    ops.adamw([group])
    assert group == before


@pytest.mark.parametrize("options", [{"foreach": True}, {"fused": False}, {"differentiable": True}, {"fused": True}])
def test_an_explicit_option_decides(options: dict[str, bool]) -> None:
    optimizer = ops.adamw(parameters(), **options)
    ((name, value),) = options.items()
    assert optimizer.param_groups[0][name] is value
    assert f"{name}={value}" in update_of(optimizer)


def test_its_state_has_the_form_of_torchs_optimizer() -> None:
    given = parameters()
    for x in given:
        x.grad = torch.ones_like(x)
    mine, torchs = ops.adamw(given), AdamW(given)
    mine.step()
    torchs.load_state_dict(mine.state_dict())
    torchs.step()
    mine.load_state_dict(torchs.state_dict())
    mine.step()
    assert mine.state[given[0]]["step"] == 3


def test_parameters_sharded_by_fsdp_are_updated_in_one_kernel() -> None:
    torch.manual_seed(0)
    plain = nn.Linear(4, 3)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        sharded: Any = fully_shard(copy.deepcopy(plain), mesh=init_device_mesh("cpu", (1,)))
        for model in (plain, sharded):
            optimizer = ops.adamw(model.parameters(), lr=0.1)
            assert update_of(optimizer) == "torch AdamW, fused"
            model(torch.ones(2, 4)).square().sum().backward()
            optimizer.step()
        torch.testing.assert_close(sharded.weight.full_tensor(), plain.weight)
    finally:
        dist.destroy_process_group()


def test_apex_is_used_by_name_and_reports_why_it_is_not_usable() -> None:
    with pytest.raises(RuntimeError, match="cannot use apex's FusedAdam"):
        ops.adamw(parameters(), provider="apex")
    with pytest.raises(ValueError, match="no provider called 'fast'"):
        ops.adamw(parameters(), provider="fast")


def test_another_optimizer_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"describes optimizers from ops\.adamw only"):
        update_of(AdamW(parameters()))
