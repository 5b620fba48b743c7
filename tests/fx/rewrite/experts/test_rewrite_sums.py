"""Experts that run on all tokens: the chosen pairs of a token and an expert are computed, and results do not change."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import autofuse
from tests.fx.trace.test_fold_experts import assert_equal_steps, codes
from tests.spellings import all_experts
from tests.spellings.experts import WIDTH

BY_DAY = (all_experts.EinsumOfAll, all_experts.GptOss, all_experts.ComparedWeights)
UNLIKE_BY_DAY = (all_experts.UsedTwice, all_experts.WeightsChanged, all_experts.TokensMixed, all_experts.NotZeroOfZero)


def cells(kinds: tuple[type[nn.Module], ...], by_day: tuple[type[nn.Module], ...]) -> list[object]:
    return [k if k in by_day else pytest.param(k, marks=pytest.mark.night) for k in kinds]


def model_of(kind: type[nn.Module]) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return kind().double(), torch.randn(2, 5, WIDTH, dtype=torch.float64)


def optimized(model: nn.Module, x: Tensor) -> nn.Module:
    return autofuse.optimize(copy.deepcopy(model), (x,), tune=False, verify=False)


def route_to_first(model: nn.Module) -> None:
    """Set the router so that it sends every token to the first experts."""
    with torch.no_grad():
        for p in model.gate.parameters():  # type: ignore[union-attr]
            p.zero_()


@pytest.mark.parametrize("kind", cells(all_experts.FOUND, BY_DAY))
def test_the_chosen_experts_only_are_computed(kind: type[nn.Module]) -> None:
    model, x = model_of(kind)
    fused = optimized(model, x)
    assert ("AF701", "") in codes(fused), str(autofuse.report(fused))
    for training in (True, False):
        assert_equal_steps(model.train(training), fused.train(training), x, 1e-12)
    for shape in ((3, 7), (1, 1), (1, 4)):
        assert_equal_steps(model, fused, torch.randn(*shape, WIDTH, dtype=torch.float64), 1e-12)
    for m in (model, fused):
        route_to_first(m)
    assert_equal_steps(model, fused, x, 1e-12)  # some experts have no tokens


@pytest.mark.parametrize("kind", cells(all_experts.LOOK_ALIKES, UNLIKE_BY_DAY))
def test_a_program_that_needs_all_experts_is_unchanged(kind: type[nn.Module]) -> None:
    model, x = model_of(kind)
    fused = optimized(model, x)
    assert ("AF701", "") not in codes(fused)
    for shape in ((2, 5), (3, 7)):
        assert_equal_steps(model, fused, torch.randn(*shape, WIDTH, dtype=torch.float64), 1e-12)


def test_a_hook_of_an_expert_sees_all_tokens() -> None:
    model, x = model_of(all_experts.StackOfResults)
    fused = optimized(model, x)
    seen: list[int] = []
    for expert in fused.experts:  # type: ignore[union-attr]
        expert.register_forward_hook(lambda m, inputs, out: seen.append(out.shape[:-1].numel()))
    fused(x)
    assert seen == [10, 10, 10, 10]


def test_results_under_autocast_have_the_dtype_of_the_original() -> None:
    torch.manual_seed(0)
    model, x = all_experts.EinsumOfAll(), torch.randn(2, 5, WIDTH)
    with torch.autocast("cpu", torch.bfloat16):
        fused = optimized(model, x)
        expected, made = model(x), fused(x)
    assert made.dtype is expected.dtype
    torch.testing.assert_close(made, expected, rtol=0.05, atol=0.05)
