"""AdamW as a plain formula, one parameter after the other. For reading and for tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


def adamw(
    params: Iterable[Any], lr: float | Tensor = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
    weight_decay: float = 1e-2, amsgrad: bool = False, *, maximize: bool = False, provider: str = "torch",
    **options: Any,
) -> Optimizer:  # fmt: skip
    """Algorithm 2 of Loshchilov and Hutter, arXiv:1711.05101, with the weight decay multiplied by the learning rate."""
    settings = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "amsgrad": amsgrad}
    return _AdamW(params, {**settings, "maximize": maximize})


class _AdamW(Optimizer):
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for x in group["params"]:
                if x.grad is not None:
                    self._update(x, -x.grad if group["maximize"] else x.grad, **group)

    def _update(
        self, x: Tensor, gradient: Tensor, *, lr: float, betas: tuple[float, float], eps: float, weight_decay: float,
        amsgrad: bool, **_: Any,
    ) -> None:  # fmt: skip
        state, zero = self.state[x], torch.zeros_like(x)
        count = state["step"] = state.get("step", 0) + 1
        mean = state["mean"] = betas[0] * state.get("mean", zero) + (1 - betas[0]) * gradient
        square = state["square"] = betas[1] * state.get("square", zero) + (1 - betas[1]) * gradient**2
        if amsgrad:
            square = state["largest"] = torch.maximum(state.get("largest", zero), square)
        unbiased = mean / (1 - betas[0] ** count)
        deviation = torch.sqrt(square / (1 - betas[1] ** count)) + eps
        x.copy_(x - lr * (unbiased / deviation + weight_decay * x))
