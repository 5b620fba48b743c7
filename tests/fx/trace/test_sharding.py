"""Tests of parameters on the meta device, sharded and distributed, in one process with its own process group."""

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
from autofuse.fx.trace.sharding import has_meta_tensors, why_not_yet_traceable
from autofuse.fx.trace.stand_ins import Form, forms, random_tensor, stand_in
from autofuse.verify.runs import copy_in_double
from tests.fx.conftest import Block, Gpt, assert_same, fused_rules

needs_distributed = pytest.mark.skipif(not dist.is_available(), reason="this torch has no torch.distributed")


@pytest.fixture(scope="module")
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def meta_model() -> Gpt:
    with torch.device("meta"):
        return Gpt()


def test_a_model_on_the_meta_device_is_captured_after_its_weights_are_loaded(tokens: Tensor) -> None:
    plain, model = Gpt(), meta_model()
    assert "meta device" in why_not_yet_traceable(model) and has_meta_tensors(model)
    autofuse.optimize(model, tokens)
    assert not fused_rules(model)
    model.to_empty(device="cpu").load_state_dict(plain.state_dict())
    assert_same(plain, model, tokens)
    assert "AF101" in fused_rules(model)


def test_calls_on_the_meta_device_do_not_count_as_captured_kinds_of_call(tokens: Tensor) -> None:
    plain, model = Gpt(), meta_model()
    autofuse.optimize(model, tokens)
    for _ in range(10):  # more calls than the number of kinds of call that are captured
        model(tokens.to("meta"))
    model.to_empty(device="cpu").load_state_dict(plain.state_dict())
    assert_same(plain, model, tokens)
    assert "AF101" in fused_rules(model)


def test_a_model_that_is_captured_late_is_verified(tokens: Tensor) -> None:
    plain, model = Gpt(), meta_model()
    autofuse.optimize(model, tokens)
    model.to_empty(device="cpu").load_state_dict(plain.state_dict())
    model(tokens)
    errors = [s.max_error for s in autofuse.report(model) if s.rule == "AF101"]
    assert errors and all(e is not None for e in errors)


@needs_distributed
@pytest.mark.parametrize("kinds", [(Block,), (nn.LayerNorm, nn.Linear)], ids=["per block", "per layer"])
def test_the_shapes_that_fsdp_will_gather_are_known_before_it_gathers(
    group: None, kinds: tuple[type, ...], tokens: Tensor
) -> None:
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
def test_the_stand_in_of_a_distributed_parameter_is_this_ranks_shard(group: None) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    parameter = nn.Parameter(torch.ones(4, 2))
    part = nn.Parameter(distribute_tensor(parameter, init_device_mesh("cpu", (1,)), [Shard(0)]))
    fake = stand_in(part, FakeTensorMode(), {})
    assert isinstance(fake, nn.Parameter) and fake.shape == (4, 2) and fake.requires_grad


def test_random_numbers_are_the_same_for_the_same_seed() -> None:
    form = Form(torch.Size((3, 4)), torch.bfloat16, torch.device("cpu"), True)
    assert torch.equal(random_tensor(form, 1), random_tensor(form, 1)) and not torch.equal(
        random_tensor(form, 1), random_tensor(form, 2)
    )
    assert random_tensor(form, 1).dtype is torch.bfloat16


@needs_distributed
def test_a_copy_of_a_fully_sharded_module_runs_in_double(group: None) -> None:
    from torch.distributed.fsdp import fully_shard

    block = fully_shard(Block())
    double_block = copy_in_double(copy_module(block, {}, forms([block])))
    assert {p.dtype for p in double_block.parameters()} == {torch.float64}
    assert double_block(torch.randn(1, 8, 16, dtype=torch.float64)).dtype is torch.float64
