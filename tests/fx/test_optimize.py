"""What optimize promises about the model it is given."""

from __future__ import annotations

import copy
import random

import pytest
import torch
from torch import Tensor, nn

import autofuse
from autofuse.fx.install import is_installed
from tests.fx.conftest import Attention, Block, Gpt, assert_same, fused_rules, optimized


def test_a_model_is_fused_verified_and_computes_the_same(tokens: Tensor) -> None:
    model = Gpt()
    fused = autofuse.optimize(copy.deepcopy(model), tokens)
    assert {"AF101", "AF203"} <= fused_rules(fused)
    assert all(s.max_error is not None for s in autofuse.report(fused).with_status("fused"))
    for training in (True, False):
        for shape in ((2, 8), (3, 5), (1, 1)):
            assert_same(model.train(training), fused.train(training), torch.randint(0, 20, shape))


def test_the_same_model_is_returned_as_it_was(tokens: Tensor) -> None:
    model = Gpt(p=0.1).train()
    fired = []
    for m in model.modules():
        m.register_forward_hook(lambda *_: fired.append(1))
    before = copy.deepcopy(model.state_dict())
    torch.manual_seed(3)
    random.seed(3)
    drawn = torch.rand(3), random.random()
    torch.manual_seed(3)
    random.seed(3)
    assert autofuse.optimize(model, tokens) is model
    assert torch.equal(torch.rand(3), drawn[0]) and random.random() == drawn[1]
    assert not fired and model.training
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(a, b) for a, b in zip(before.values(), model.state_dict().values(), strict=True))


def test_batch_statistics_do_not_move() -> None:
    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(4)

        def forward(self, x: Tensor) -> Tensor:
            y = self.norm(x)
            return 0.5 * y * (1.0 + torch.erf(y * 0.7071067811865475))

    model = Normed().train()
    autofuse.optimize(model, torch.randn(8, 4))
    assert fused_rules(model) == {"AF301"}
    assert model.norm.num_batches_tracked == 0 and not model.norm.running_mean.any()


@pytest.mark.parametrize("example", ["tensor", "tuple", "list", "dict", "none"])
def test_example_inputs_come_in_any_of_these_forms(example: str, tokens: Tensor) -> None:
    model = Gpt()
    given = {"tensor": tokens, "tuple": (tokens,), "list": [tokens], "dict": {"tokens": tokens}, "none": None}[example]
    fused = autofuse.optimize(copy.deepcopy(model), given, verify=False)
    assert_same(model, fused, tokens)
    assert "AF101" in fused_rules(fused)


def test_without_example_inputs_each_module_is_captured_and_checked_at_its_first_call(tokens: Tensor) -> None:
    model = Gpt()
    fused = autofuse.optimize(copy.deepcopy(model))
    assert autofuse.report(fused).sites == ()
    assert_same(model, fused, tokens)
    sites = autofuse.report(fused).with_status("fused")
    assert "AF101" in {s.rule for s in sites} and all(s.max_error is not None for s in sites)


def test_optimizing_twice_is_optimizing_once(tokens: Tensor) -> None:
    model = optimized(Gpt(), tokens)
    classes = [type(m).__mro__ for m in model.modules()]
    first = autofuse.report(model).sites
    autofuse.optimize(model, tokens, verify=False)
    assert [len(type(m).__mro__) for m in model.modules()] == [len(c) for c in classes]
    assert autofuse.report(model).sites == first


def test_select_and_ignore_take_prefixes(tokens: Tensor) -> None:
    assert fused_rules(autofuse.optimize(Gpt(), tokens, select="AF1", verify=False)) == {"AF101"}
    assert "AF101" not in fused_rules(autofuse.optimize(Gpt(), tokens, ignore=["AF101"], verify=False))
    with pytest.raises(ValueError, match="No rule has the code"):
        autofuse.optimize(Gpt(), tokens, select="AF999")


def test_wrong_arguments_are_told_in_a_sentence(tokens: Tensor) -> None:
    with pytest.raises(TypeError, match="takes a torch"):
        autofuse.optimize(lambda x: x, tokens)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="select takes codes"):
        autofuse.optimize(nn.Linear(2, 2), select=3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="Pass a tensor, a tuple"):
        autofuse.optimize(Gpt(), 3)  # type: ignore[arg-type]


def test_a_module_registered_twice_and_one_called_with_two_shapes() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = Attention()
            self.second = self.first

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.second(self.first(x)[:, :4])
            return result

    model, x = Shared(), torch.randn(2, 8, 16)
    fused = optimized(model, x)
    assert_same(model, fused, x)
    assert [s.module for s in autofuse.report(fused).with_status("fused")] == ["first"]


def test_a_module_that_is_never_called_is_said_to_be() -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = Attention(), Attention()

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.used(x)
            return result

    sites = autofuse.report(optimized(Half(), torch.randn(2, 8, 16))).sites
    assert [(s.module, s.status, s.reason) for s in sites if s.module == "unused"] == [
        ("unused", "declined", "never called with these inputs")
    ]


def test_equal_layers_share_a_class_and_a_check(tokens: Tensor) -> None:
    model = optimized(Gpt(), tokens)
    assert type(model.blocks[0].attn) is type(model.blocks[1].attn) and is_installed(model.blocks[0].attn)


def test_a_wrapper_of_torch_is_looked_into(tokens: Tensor) -> None:
    model = torch.nn.DataParallel(Gpt())
    autofuse.optimize(model, tokens, verify=False)
    assert "AF101" in fused_rules(model)


def test_a_block_keeps_its_mode(tokens: Tensor) -> None:
    block = Block().eval()
    block.attn.train()
    autofuse.optimize(block, torch.randn(2, 8, 16), verify=False)
    assert not block.training and block.attn.training
