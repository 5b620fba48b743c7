"""Loops over experts in the spellings that people use, compared with the fused model."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import autofuse
from tests.spellings import counted_experts as counted
from tests.spellings import sorted_experts
from tests.spellings.experts import (
    EXPERTS,
    FOUND,
    LOOK_ALIKES,
    WIDTH,
    Chained,
    DecayingInPlace,
    DecayingTensor,
    EachChoice,
    MaskOfTokens,
    MistralReference,
    OlderMixtral,
    Stacked,
)


def codes(model: nn.Module) -> set[tuple[str, str]]:
    return {(s.rule, s.module) for s in autofuse.report(model).sites if s.status == "fused"}


def step(model: nn.Module, x: Tensor) -> list[Tensor | None]:
    x = x.detach().clone().requires_grad_()
    model.zero_grad()
    torch.manual_seed(1)
    out = model(x)
    out.square().mean().backward()
    return [out.detach(), x.grad, *(None if p.grad is None else p.grad.clone() for p in model.parameters())]


def assert_equal_steps(original: nn.Module, fused: nn.Module, x: Tensor, tolerance: float) -> None:
    """Compare outputs and gradients. A gradient that is None must be None for both."""
    for a, b in zip(step(original, x), step(fused, x), strict=True):
        if a is None or b is None:
            assert a is b
            continue
        assert a.dtype is b.dtype
        assert (a.double() - b.double()).abs().max() <= tolerance * max(a.double().abs().max().item(), 1e-6)


def inputs(flat: bool, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(10, WIDTH, dtype=dtype) if flat else torch.randn(2, 5, WIDTH, dtype=dtype)


def send_all_to_first(model: nn.Module) -> None:
    """Set the router so that every token goes to the first expert, and in second place to the second expert."""
    with torch.no_grad():
        model.gate.weight.zero_()  # type: ignore[union-attr, operator]


def optimized(model: nn.Module, x: Tensor) -> nn.Module:
    return autofuse.optimize(copy.deepcopy(model), (x,), tune=False, verify=False)


BY_DAY = (MistralReference, Stacked, MaskOfTokens, EachChoice, counted.DeepSeekV3, counted.CapacityLoop)
BY_DAY += (
    sorted_experts.SequentialExperts, sorted_experts.CountsOfScatter, sorted_experts.EndsOfBincount,
    sorted_experts.SplitByHistogram,
)  # fmt: skip
ALL_FOUND = (*FOUND, *counted.FOUND, *sorted_experts.FOUND)
ALL_LOOK_ALIKES = (*LOOK_ALIKES, *counted.LOOK_ALIKES, *sorted_experts.LOOK_ALIKES)
UNLIKE_BY_DAY = (
    Chained, DecayingInPlace, DecayingTensor, counted.TestedAlone, counted.CountsOfThePrevious, counted.EmptyAddsOne,
    sorted_experts.EmptyGetsOne, sorted_experts.WrittenSegments,
)  # fmt: skip


@pytest.mark.parametrize("kind", [k if k in BY_DAY else pytest.param(k, marks=pytest.mark.night) for k in ALL_FOUND])
def test_a_loop_over_experts_is_fused_and_computes_the_same(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model, x = kind().double(), inputs(False, torch.float64)
    fused = optimized(model, x)
    assert ("AF701", "") in codes(fused)
    for training in (True, False):
        assert_equal_steps(model.train(training), fused.train(training), x, 1e-12)
    assert_equal_steps(model, fused, torch.randn(3, 7, WIDTH, dtype=torch.float64), 1e-12)
    for m in (model, fused):
        send_all_to_first(m)
    assert_equal_steps(model, fused, x, 1e-12)  # two experts have no tokens, and one has all


@pytest.mark.night
@pytest.mark.parametrize("kind", ALL_FOUND)
@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_five_steps_are_equal_for_any_number_of_choices(kind: type[nn.Module], k: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model, x = kind(k).to(dtype), inputs(False, dtype)  # type: ignore[call-arg]
    fused = optimized(model, x)
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 0.05}[dtype]
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.05) for m in (model, fused)]
    for _ in range(5):
        x = inputs(False, dtype)
        assert_equal_steps(model, fused, x, tolerance)
        for optimizer in optimizers:
            optimizer.step()


@pytest.mark.parametrize(
    "kind",
    [k if k in UNLIKE_BY_DAY else pytest.param(k, marks=pytest.mark.night) for k in ALL_LOOK_ALIKES],
)
def test_a_program_that_only_looks_like_such_a_loop_is_unchanged(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model, x = kind(), inputs(True)
    fused = optimized(model, x)
    assert ("AF701", "") not in codes(fused)
    assert_equal_steps(model, fused, x, 1e-6)
    for m in (model, fused):
        send_all_to_first(m)
    assert_equal_steps(model, fused, x, 1e-6)  # two experts have no tokens


def test_a_loop_without_gradients_that_writes_in_place_is_fused() -> None:
    torch.manual_seed(0)
    model, x = sorted_experts.ReducedRows(), inputs(True)
    with torch.no_grad():
        fused = optimized(model.eval(), x)
        assert ("AF701", "") in codes(fused)
        for _ in range(2):
            torch.testing.assert_close(fused(x), model(x))
            for m in (model, fused):
                send_all_to_first(m)


def test_an_expert_without_tokens_is_called_if_the_loop_calls_it() -> None:
    for kind, called in ((MistralReference, EXPERTS), (OlderMixtral, 2)):
        torch.manual_seed(0)
        model, x = kind(), inputs(False)
        fused = optimized(model, x)
        send_all_to_first(fused)
        seen: list[int] = []
        for expert in fused.experts:  # type: ignore[union-attr]
            expert.register_forward_hook(lambda m, inputs, out, seen=seen: seen.append(len(out)))
        fused(x)
        assert len(seen) == called
        assert sum(seen) == 20


@pytest.mark.night
def test_a_change_of_the_experts_is_noticed() -> None:
    torch.manual_seed(0)
    model, x = MistralReference(), inputs(False)
    fused = optimized(model, x)
    for m in (model, fused):
        torch.manual_seed(2)
        m.experts.append(type(m.experts[0])())  # type: ignore[union-attr]
        m.experts[1] = nn.Linear(WIDTH, WIDTH)  # type: ignore[union-attr]
    assert_equal_steps(model, fused, x, 1e-5)


@pytest.mark.night
def test_results_under_autocast_are_unchanged() -> None:
    torch.manual_seed(0)
    model, x = Stacked(), inputs(False)
    with torch.autocast("cpu", torch.bfloat16):
        fused = optimized(model, x)
        assert_equal_steps(model, fused, x, 0.05)
    assert_equal_steps(model, fused, x, 1e-5)
