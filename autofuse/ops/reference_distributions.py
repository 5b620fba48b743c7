"""The plain formulas of the functions of autofuse/ops/linear_distributions.py."""

from __future__ import annotations

import torch
from torch import Tensor


def divergence(
    log_probs: Tensor, target: Tensor, *, kind: str = "kl", log_target: bool = False, reduction: str = "rows"
) -> Tensor:
    """The sum over the classes, as its kind says."""
    p = target.exp() if log_target else target
    log_p = target if log_target else target.clamp_min(torch.finfo(target.dtype).tiny).log()
    of_class = {
        "kl": p * (log_p - log_probs),
        "reverse_kl": log_probs.exp() * (log_probs - log_p),
        "cross_entropy": -p * log_probs,
    }[kind]
    if reduction == "mean":
        return of_class.mean()
    rows = of_class.sum(-1)
    return rows if reduction == "rows" else rows.sum() / (target.shape[0] if reduction == "batchmean" else 1)


def entropy(log_probs: Tensor) -> Tensor:
    """The sum over the classes of -p * log p."""
    return -(log_probs.exp() * log_probs).sum(-1)


def linear_divergence(
    x: Tensor, weight: Tensor, target: Tensor, *, bias: Tensor | None = None, kind: str = "kl",
    log_target: bool = False, reduction: str = "rows", in_float32: bool = False, scale: float = 1.0,
    soft_cap: float | None = None,
) -> Tensor:  # fmt: skip
    """divergence(log_softmax(x @ weight.T + bias), target)."""
    log_probs = _log_softmax(_logits(x, weight, bias, in_float32, scale, soft_cap)).reshape(target.shape)
    return divergence(log_probs, target, kind=kind, log_target=log_target, reduction=reduction)


def linear_entropy(
    x: Tensor, weight: Tensor, *, bias: Tensor | None = None, in_float32: bool = False, scale: float = 1.0,
    soft_cap: float | None = None, flat: bool = False,
) -> Tensor:  # fmt: skip
    """entropy(log_softmax(x @ weight.T + bias))."""
    made = entropy(_log_softmax(_logits(x, weight, bias, in_float32, scale, soft_cap)))
    return made.flatten() if flat else made


def linear_logsumexp(
    x: Tensor, weight: Tensor, *, bias: Tensor | None = None, keepdim: bool = False, in_float32: bool = False,
    scale: float = 1.0, soft_cap: float | None = None, flat: bool = False,
) -> Tensor:  # fmt: skip
    """The logarithm of the sum over the classes of exp(x @ weight.T + bias)."""
    made = _logsumexp(_logits(x, weight, bias, in_float32, scale, soft_cap))
    made = made.flatten(0, -2) if flat else made
    return made if keepdim else made.squeeze(-1)


def _logits(
    x: Tensor, weight: Tensor, bias: Tensor | None, in_float32: bool, scale: float, soft_cap: float | None
) -> Tensor:
    logits = torch.matmul(x, weight.mT)
    logits = logits if bias is None else logits + bias
    logits = logits if soft_cap is None else torch.tanh(logits / soft_cap) * soft_cap
    logits = logits * scale
    return logits.float() if in_float32 and logits.dtype is not torch.float64 else logits


def _logsumexp(x: Tensor) -> Tensor:
    largest = x.amax(-1, keepdim=True)
    return largest + (x - largest).exp().sum(-1, keepdim=True).log()


def _log_softmax(x: Tensor) -> Tensor:
    return x - _logsumexp(x)
