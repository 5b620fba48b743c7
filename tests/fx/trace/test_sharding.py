"""Parameters that are elsewhere: on the meta device, sharded, distributed. One process with a group of its own."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import autofuse
from autofuse.fx.session.trials import copy_module
from autofuse.fx.trace.sharding import is_empty, postponed
from autofuse.fx.trace.stand_ins import Form, filled, forms, stand_in
from autofuse.verify.runs import copy_in_double
from tests.fx.conftest import Block, Gpt, assert_same, fused_rules

needs_distributed = pytest.mark.skipif(not dist.is_available(), reason="this torch has no torch.distributed")


@pytest.fixture(scope="module")
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def empty() -> Gpt:
    with torch.device("meta"):
        return Gpt()


def test_a_model_on_the_meta_device_is_captured_once_it_has_numbers(tokens: Tensor) -> None:
    plain, model = Gpt(), empty()
    assert "meta device" in postponed(model) and is_empty(model)
    autofuse.optimize(model, tokens)
    assert not fused_rules(model)
    model.to_empty(device="cpu").load_state_dict(plain.state_dict())
    assert_same(plain, model, tokens)
    assert "AF101" in fused_rules(model)


def test_shapes_inferred_on_the_meta_device_use_up_nothing(tokens: Tensor) -> None:
    plain, model = Gpt(), empty()
    autofuse.optimize(model, tokens)
    for _ in range(10):  # more than the kinds of call that are looked at
        model(tokens.to("meta"))
    model.to_empty(device="cpu").load_state_dict(plain.state_dict())
    assert_same(plain, model, tokens)
    assert "AF101" in fused_rules(model)


def test_verified_when_it_is_captured_late(tokens: Tensor) -> None:
    plain, model = Gpt(), empty()
    autofuse.optimize(model, tokens)
    model.to_empty(device="cpu").load_state_dict(plain.state_dict())
    model(tokens)
    errors = [s.max_error for s in autofuse.report(model) if s.rule == "AF101"]
    assert errors and all(e is not None for e in errors)


@needs_distributed
@pytest.mark.parametrize("kinds", [(Block,), (nn.LayerNorm, nn.Linear)], ids=["per block", "per layer"])
def test_what_fsdp_will_gather_is_known_before_it_does(group: None, kinds: tuple[type, ...], tokens: Tensor) -> None:
    from torch.distributed.fsdp import fully_shard

    plain = Gpt()
    model = copy.deepcopy(plain)
    for module in reversed(list(model.modules())):
        if isinstance(module, kinds):
            fully_shard(module)
    fully_shard(model)
    known = forms([model])
    for (name, was), (_, now) in zip(plain.named_parameters(), model.named_parameters(), strict=True):
        assert known[id(now)].shape == was.shape, name
        assert stand_in(now, FakeTensorMode(), known).shape == was.shape
    autofuse.optimize(model, tokens)
    model(tokens).sum().backward()
    assert "AF101" in fused_rules(model)


@needs_distributed
def test_a_distributed_parameter_is_this_ranks_part(group: None) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    whole = nn.Parameter(torch.ones(4, 2))
    part = nn.Parameter(distribute_tensor(whole, init_device_mesh("cpu", (1,)), [Shard(0)]))
    made = stand_in(part, FakeTensorMode(), {})
    assert isinstance(made, nn.Parameter) and made.shape == (4, 2) and made.requires_grad


def test_numbers_made_up_are_the_same_for_the_same_seed() -> None:
    form = Form(torch.Size((3, 4)), torch.bfloat16, torch.device("cpu"), True)
    assert torch.equal(filled(form, 1), filled(form, 1)) and not torch.equal(filled(form, 1), filled(form, 2))
    assert filled(form, 1).dtype is torch.bfloat16


@needs_distributed
def test_what_fully_shard_keeps_on_a_module_does_not_keep_its_copies_from_running_copy_in_double(group: None) -> None:
    from torch.distributed.fsdp import fully_shard

    block = fully_shard(Block())
    made = copy_in_double(copy_module(block, {}, forms([block])))
    assert {p.dtype for p in made.parameters()} == {torch.float64}
    assert made(torch.randn(1, 8, 16, dtype=torch.float64)).dtype is torch.float64
