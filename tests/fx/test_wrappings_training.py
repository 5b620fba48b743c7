"""The wrappings of training jobs keep the fused operators running: checkpointing, casting, offloading."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import autofuse
from tests.fx.wrapped import (
    ORDERS,
    Wrapping,
    assert_close,
    assert_wrapped,
    expected_operators,
    fused_run,
    prepare,
    tokens,
    trained,
)
from tests.fx.wrapped_models import BLOCKS, model_of


class Checkpointed(nn.Module):
    """A block that is recomputed in the backward pass."""

    def __init__(self, block: nn.Module, **options: Any) -> None:
        super().__init__()
        self.block, self.options = block, options

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.block, x, **self.options)  # type: ignore[no-any-return]


def checkpointed(**options: Any) -> Callable[[nn.Module], nn.Module]:
    def wrap(model: nn.Module) -> nn.Module:
        model.blocks = nn.ModuleList([Checkpointed(b, **options) for b in model.blocks])
        return model

    return wrap


def by_class(model: nn.Module) -> nn.Module:
    apply_activation_checkpointing(model, check_fn=lambda m: isinstance(m, tuple(BLOCKS.values())))
    return model


def policy(context: object, operator: object, *args: object, **kwargs: object) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if "mm" in str(operator) else CheckpointPolicy.PREFER_RECOMPUTE


def selective() -> Any:
    return create_selective_checkpoint_contexts(policy)


def hooks_that_copy() -> saved_tensors_hooks:
    return saved_tensors_hooks(lambda x: (x.clone(),), lambda kept: kept[0])


ATTENTION = ("scaled_dot_product_attention",)  # under a dispatch mode others are counted twice
WRAPPINGS = (
    Wrapping("nothing"),
    Wrapping("reentrant checkpoint", checkpointed(use_reentrant=True), forwards=2),
    Wrapping("checkpoint", checkpointed(use_reentrant=False), forwards=2),
    Wrapping(
        "selective checkpoint", checkpointed(use_reentrant=False, context_fn=selective), forwards=2, operators=ATTENTION
    ),
    Wrapping("checkpoint_wrapper", by_class, forwards=2),
    Wrapping("saved-tensor hooks", around=hooks_that_copy),
    Wrapping("save_on_cpu", around=save_on_cpu),
    Wrapping("anomaly mode", around=functools.partial(torch.autograd.set_detect_anomaly, True)),
    Wrapping("default device", around=lambda: torch.device("cpu")),
)


def in_turn() -> list[Any]:
    """Every wrapping in every order. By day, one order for each wrapping, except for the two commonest."""
    every = [(i, w, order) for i, w in enumerate(WRAPPINGS) for order in ORDERS]
    day = [w.name in ("nothing", "checkpoint") or order == ORDERS[i % len(ORDERS)] for i, w, order in every]
    return [
        pytest.param(w, order, id=f"{w}-{order}", marks=() if by_day else pytest.mark.night)
        for (_, w, order), by_day in zip(every, day, strict=True)
    ]


@pytest.mark.parametrize(("wrapping", "order"), in_turn())
def test_a_wrapped_model_trains_as_before_and_runs_the_fused_operators(wrapping: Wrapping, order: str) -> None:
    for name in ("bert", "gpt", "llama") if wrapping.name == "nothing" else ("gpt",):
        assert_wrapped(name, wrapping, order)


def bf16() -> torch.autocast:
    return torch.autocast("cpu", torch.bfloat16)


@pytest.mark.parametrize(
    ("name", "order"), [("gpt", "before"), pytest.param("llama", "at the first call", marks=pytest.mark.night)]
)
def test_under_autocast_the_error_stays_that_of_the_original(name: str, order: str) -> None:
    """Also if the example ran without autocast, and inside of a checkpoint."""
    for wrap in (WRAPPINGS[0].wrap, checkpointed(use_reentrant=False)):
        casting = Wrapping("autocast", wrap, bf16, forwards=1 if wrap is WRAPPINGS[0].wrap else 2)
        exact, _ = trained(model_of(name).double(), WRAPPINGS[0], steps=1)
        plain, _ = trained(wrap(model_of(name)), casting, steps=1)
        model = prepare(name, casting, order)
        found, _ = trained(model, casting, steps=1)
        for place, true in exact[0].gradients.items():
            error = (plain[0].gradients[place] - true).norm()
            assert (found[0].gradients[place] - true).norm() <= 2 * error + 1e-6 * true.norm()
        _, ran = trained(model, casting, steps=2)
        expected = expected_operators(name, casting)
        assert {operator: ran[operator] for operator in expected} == expected


def test_a_gradient_scaler_skips_and_steps_as_before() -> None:
    def losses(model: nn.Module) -> list[float]:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        scaler, kept = torch.amp.GradScaler("cpu", init_scale=2.0**40, growth_interval=2), []
        for _ in range(16):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                loss = F.cross_entropy(model(tokens()).flatten(0, 1), tokens().flatten())
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            kept.append(loss.item())
        return kept

    plain, model = model_of("gpt"), autofuse.optimize(model_of("gpt"), tokens(), verify=False)
    torch.testing.assert_close(losses(model), losses(plain), atol=0, rtol=8 * torch.finfo(torch.float16).eps)
    with torch.autocast("cpu", torch.float16):
        assert fused_run(lambda: model(tokens()))["scaled_dot_product_attention"] == 2


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_dropout_draws_the_same_in_the_recomputation(use_reentrant: bool) -> None:
    """Otherwise the gradient would belong to another loss."""
    model = checkpointed(use_reentrant=use_reentrant)(autofuse.optimize(model_of("gpt", 0.3), tokens(), verify=False))
    without = copy.deepcopy(model)
    for block in without.blocks:
        block.forward = block.block  # type: ignore[method-assign]
    (one,), (other,) = trained(model, WRAPPINGS[0], 1)[0], trained(without, WRAPPINGS[0], 1)[0]
    for place, gradient in one.gradients.items():
        assert_close(gradient, other.gradients[place])
