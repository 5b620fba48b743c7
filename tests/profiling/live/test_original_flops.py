"""The FLOPs of a model's own code, counted while autofuse's rewrites are off."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

import autofuse
from autofuse.demo.gpt import GPT, Config
from autofuse.measure.step import training_step
from autofuse.profiling.live.counting import Counting
from autofuse.profiling.live.module_calls import ModuleNames
from autofuse.profiling.live.original_flops import as_written, is_rewritten, model_flops_of_original

CONFIG = Config(vocab_size=40, block_size=16, n_layer=2, n_head=4, n_embd=32)
BATCH, LENGTH = 3, 16
OF_GPT = BATCH * LENGTH * (6 * (2 * 12 * 32**2 + 32 * 40) + 12 * 2 * 32 * LENGTH)  # 6N + 12 L d T a token


@pytest.fixture
def gpt() -> GPT:
    torch.manual_seed(0)
    return GPT(CONFIG)


@pytest.fixture
def ids() -> Tensor:
    return torch.randint(0, CONFIG.vocab_size, (BATCH, LENGTH))


def counted(model: nn.Module, ids: Tensor) -> int | None:
    with Counting(ModuleNames({"": model})) as counting:
        training_step(model, (ids,))
    return counting.flops.model


def test_optimizing_does_not_change_the_model_flops(gpt: GPT, ids: Tensor) -> None:
    after = autofuse.optimize(deepcopy(gpt), example_inputs=(ids,))
    classes = [type(module) for module in after.modules()]

    assert counted(after, ids) == OF_GPT
    assert model_flops_of_original(after, (ids,)).model == OF_GPT
    assert model_flops_of_original(after, (ids,), lambda m, i: training_step(m, i)).model == OF_GPT
    assert [type(module) for module in after.modules()] == classes


def test_counting_the_original_on_fakes_touches_nothing(gpt: GPT, ids: Tensor) -> None:
    before = {name: value.clone() for name, value in gpt.state_dict().items()}
    state = torch.get_rng_state()

    model_flops_of_original(gpt, {"idx": ids})

    assert all(torch.equal(value, before[name]) for name, value in gpt.state_dict().items())
    assert all(parameter.grad is None for parameter in gpt.parameters())
    assert torch.equal(torch.get_rng_state(), state)


def test_a_step_that_looks_at_values_is_counted_for_real() -> None:
    class Deciding(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) if x.sum() > 0 else x

    assert model_flops_of_original(Deciding(8, 8), torch.ones(4, 8)).model == 2 * 2 * 4 * 8 * 8


def test_rewrites_are_removed_and_restored_also_after_an_error(gpt: GPT, ids: Tensor) -> None:
    after = autofuse.optimize(gpt, example_inputs=(ids,))
    classes = [type(module) for module in after.modules()]

    with pytest.raises(ZeroDivisionError), as_written([after]):
        assert not is_rewritten([after])
        1 / 0  # noqa: B018

    assert is_rewritten([after])
    assert [type(module) for module in after.modules()] == classes
