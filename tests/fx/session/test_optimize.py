"""The guarantees of optimize for a model."""

from __future__ import annotations

import copy
import logging
import random

import pytest
import torch
from torch import Tensor, nn

import autofuse
from autofuse.fx.install.dispatch import is_installed
from tests.fx.conftest import Attention, Block, Gpt, assert_same, fused_rules, optimized


@pytest.mark.fast
def test_a_model_is_fused_verified_and_computes_the_same(tokens: Tensor) -> None:
    model = Gpt()
    fused = autofuse.optimize(copy.deepcopy(model), tokens)
    assert {"AF101", "AF203"} <= fused_rules(fused)
    assert all(s.max_error is not None for s in autofuse.report(fused).with_status("fused"))
    for training in (True, False):
        for shape in ((2, 8), (3, 5), (1, 1)):
            assert_same(model.train(training), fused.train(training), torch.randint(0, 20, shape))


@pytest.mark.fast
def test_the_same_model_is_returned_with_unchanged_state(tokens: Tensor) -> None:
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


@pytest.mark.fast
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


@pytest.mark.fast
def test_optimizing_twice_is_optimizing_once(tokens: Tensor) -> None:
    model = autofuse.optimize(Gpt(), tokens)
    classes, first = [type(m) for m in model.modules()], autofuse.report(model)
    autofuse.optimize(model, torch.randint(0, 20, tokens.shape))
    assert [type(m) for m in model.modules()] == classes
    assert autofuse.report(model).sites == first.sites


def test_other_options_start_again(tokens: Tensor) -> None:
    model = optimized(Gpt(), tokens)
    autofuse.optimize(model, tokens, verify=False, ignore="AF203")
    assert "AF203" not in fused_rules(model)
    assert not any(hasattr(type(m).__mro__[1], "_autofuse_base") for m in model.modules())  # not derived twice


def test_a_changed_model_is_captured_again(tokens: Tensor) -> None:
    model = autofuse.optimize(Gpt(), tokens, verify=False)
    model.blocks.append(Block())
    autofuse.optimize(model, tokens, verify=False)
    assert "blocks.2.attn" in {s.module for s in autofuse.report(model).with_status("fused")}


def test_only_the_chosen_modules_are_rewritten(tokens: Tensor) -> None:
    def fused_modules(modules: object) -> set[str]:
        model = autofuse.optimize(Gpt(), tokens, modules=modules, verify=False)  # type: ignore[arg-type]
        assert_same(autofuse.restore(copy.deepcopy(model)), model, tokens)
        return {s.module for s in autofuse.report(model).with_status("fused")}

    assert fused_modules("blocks.1") == {"blocks.1", "blocks.1.attn"}
    assert fused_modules("blocks.*.attn") == {"blocks.0.attn", "blocks.1.attn"}
    assert fused_modules(["blocks.0.attn", "blocks.1"]) == {"blocks.0.attn", "blocks.1", "blocks.1.attn"}
    assert fused_modules(lambda name, module: isinstance(module, Attention)) == {"blocks.0.attn", "blocks.1.attn"}
    with pytest.raises(ValueError, match=r"is called .block\.0.\. Did you mean .blocks\.0."):
        fused_modules("block.0")
    with pytest.raises(TypeError, match="modules takes names"):
        fused_modules(3)


def test_a_with_block_restores_the_state_from_its_start(tokens: Tensor) -> None:
    plain = Gpt()
    with autofuse.optimized(plain, tokens, verify=False) as model:
        assert model is plain and "AF101" in fused_rules(model)
    assert not any(map(is_installed, plain.modules())) and not autofuse.report(plain).sites

    kept = optimized(Gpt(), tokens)
    with autofuse.optimized(kept, tokens, verify=False, select="AF2"):
        assert fused_rules(kept) == {"AF203"}
    assert "AF101" in fused_rules(kept) and is_installed(kept.blocks[0].attn)
    assert_same(autofuse.restore(copy.deepcopy(kept)), kept, tokens)

    with pytest.raises(RuntimeError), autofuse.optimized(plain, tokens, verify=False):
        raise RuntimeError
    assert not any(map(is_installed, plain.modules()))


def test_the_environment_can_switch_it_off(
    tokens: Tensor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AUTOFUSE_DISABLE", "1")
    with caplog.at_level(logging.INFO, "autofuse"):
        model = autofuse.optimize(Gpt(), tokens)
    assert not any(map(is_installed, model.modules())) and "AUTOFUSE_DISABLE is set" in caplog.text
    monkeypatch.setenv("AUTOFUSE_DISABLE", "0")
    assert "AF101" in fused_rules(autofuse.optimize(model, tokens, verify=False))


def test_the_log_has_a_summary(tokens: Tensor, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "autofuse"):
        autofuse.optimize(Gpt(), tokens, verify=False)
    told = [(r.levelname, r.getMessage()) for r in caplog.records if r.name == "autofuse"]
    assert any(level == "INFO" and message.startswith("Gpt: 6 fused") for level, message in told), told
    assert any(level == "DEBUG" and "blocks.0.attn AF101 fused" in message for level, message in told), told


def test_a_part_or_a_wrapper_of_a_model_has_its_report(tokens: Tensor) -> None:
    model = optimized(Gpt(), tokens)
    assert {s.module for s in autofuse.report(model.blocks[1])} == {"blocks.1", "blocks.1.attn"}
    assert autofuse.report(nn.Sequential(model)).sites == autofuse.report(model).sites


def test_select_and_ignore_take_prefixes(tokens: Tensor) -> None:
    assert fused_rules(autofuse.optimize(Gpt(), tokens, select="AF1", verify=False)) == {"AF101"}
    assert "AF101" not in fused_rules(autofuse.optimize(Gpt(), tokens, ignore=["AF101"], verify=False))
    with pytest.raises(ValueError, match="No rule has the code"):
        autofuse.optimize(Gpt(), tokens, select="AF999")


@pytest.mark.fast
def test_wrong_arguments_raise_an_error_with_advice(tokens: Tensor) -> None:
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


def test_the_report_names_a_module_that_is_never_called() -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = Attention(), Attention()

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.used(x)
            return result

    model = optimized(Half(), torch.randn(2, 8, 16))
    (site,) = [s for s in autofuse.report(model) if s.module == "unused"]
    assert site.status == "declined" and site.reason.startswith("never called with these inputs")
    assert site.reason_code == "never-called" and site.advice.startswith("pass example inputs for which it runs")
    model.unused(torch.randn(2, 8, 16))
    assert [(s.rule, s.status) for s in autofuse.report(model) if s.module == "unused"] == [("AF101", "fused")]


def test_equal_layers_share_a_class_and_a_check(tokens: Tensor) -> None:
    model = optimized(Gpt(), tokens)
    assert type(model.blocks[0].attn) is type(model.blocks[1].attn) and is_installed(model.blocks[0].attn)


def test_a_model_in_a_wrapper_of_torch_is_optimized(tokens: Tensor) -> None:
    model = torch.nn.DataParallel(Gpt())
    autofuse.optimize(model, tokens, verify=False)
    assert "AF101" in fused_rules(model)


def test_a_block_keeps_its_mode(tokens: Tensor) -> None:
    block = Block().eval()
    block.attn.train()
    autofuse.optimize(block, torch.randn(2, 8, 16), verify=False)
    assert not block.training and block.attn.training


def test_a_norm_of_torch_is_not_reported() -> None:
    class Modulated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.positions = nn.LayerNorm(8), nn.Parameter(torch.randn(6, 8))

        def forward(self, x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
            placed = self.norm(x) + self.positions
            return self.norm(placed) * (1 + scale[:, None]) + shift[:, None]

    model = autofuse.optimize(Modulated(), (torch.randn(2, 6, 8), torch.randn(2, 8), torch.randn(2, 8)))
    assert not [s for s in autofuse.report(model).sites if s.rule == "AF201"]
