"""Functions of the distribution that a linear layer's output defines, without forming all logits at once.

The distribution of a row is softmax(x @ weight.T + bias). Its divergence from another distribution (distillation), its
entropy (policy gradients) and the logarithm of its normalizer (a z-loss) are sums over the classes. They are computed
for a block of rows at a time, and so are their gradients (autofuse/ops/row_losses.py).
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from autofuse.kernels.operation import is_plain
from autofuse.ops.cross_entropy import capped_and_scaled, wide_dtype
from autofuse.ops.row_losses import logsumexp_after, weighed_rows
from autofuse.torch_private import FakeTensor
from autofuse.torch_private import functional as F
from autofuse.torch_private.autocast import is_autocast_on

_LEAST = 2**16  # logits; fewer are formed at once
KINDS = ("kl", "reverse_kl", "cross_entropy")
REDUCTIONS = ("rows", "sum", "mean", "batchmean")


def linear_divergence(
    x: Tensor, weight: Tensor, target: Tensor, *, bias: Tensor | None = None, kind: str = "kl",
    log_target: bool = False, reduction: str = "rows", in_float32: bool = False, scale: float = 1.0,
    soft_cap: float | None = None,
) -> Tensor:  # fmt: skip
    """`divergence(log_softmax(x @ weight.T + bias), target)`, with the logits of one block of rows in memory at a time.

    All logits are formed if the target requires a gradient or does not have one entry for each logit.

    Args:
        x: shape (..., D).
        weight: shape (C, D).
        target: as in `divergence`, with the rows of x in any shape.
        bias: shape (C,), or None.
        kind: as in `divergence`.
        log_target: as in `divergence`.
        reduction: as in `divergence`.
        in_float32: as in `linear_cross_entropy`.
        scale: as in `linear_cross_entropy`.
        soft_cap: as in `linear_cross_entropy`.

    Returns:
        As `divergence`.

    Raises:
        ValueError: if `kind` or `reduction` is unknown.
    """
    _check_options(kind, reduction)
    arithmetic = partial(capped_and_scaled, scale=scale, soft_cap=soft_cap)
    has_rows = target.shape[-1:] == weight.shape[:1] and target.numel() == x.shape[:-1].numel() * weight.shape[0]
    is_constant = target.is_floating_point() and not (target.requires_grad and torch.is_grad_enabled())
    if not has_rows or not is_constant or not target.numel() or _forms_all(x, weight, target, bias):
        log_probs = F.log_softmax(_logits(x, weight, bias, arithmetic, in_float32), -1)
        log_probs = log_probs.reshape(target.shape) if has_rows else log_probs
        return divergence(log_probs, target, kind=kind, log_target=log_target, reduction=reduction)
    dtype = torch.promote_types(_result_dtype(x, in_float32), target.dtype)
    x, weight, bias = _autocast_operands(x, weight, bias)
    wide = wide_dtype(x.dtype)

    def of_row(logits: Tensor, part: Tensor) -> Tensor:
        return _of_rows(F.log_softmax(logits, -1), part.to(wide), kind, log_target)

    divisor = _divisor(target, reduction)
    total = None if divisor == 1 else torch.full((), float(divisor), device=x.device)
    targets = target.reshape(-1, target.shape[-1])
    made = weighed_rows(
        [arithmetic], x.reshape(-1, x.shape[-1]), weight, bias, targets, of_row, total, reduction != "rows"
    )
    return (made.reshape(target.shape[:-1]) if reduction == "rows" else made).to(dtype)


def linear_entropy(
    x: Tensor, weight: Tensor, *, bias: Tensor | None = None, in_float32: bool = False, scale: float = 1.0,
    soft_cap: float | None = None, flat: bool = False,
) -> Tensor:  # fmt: skip
    """The entropy of softmax(x @ weight.T + bias) for each row, in natural units.

    Args:
        x: shape (..., D).
        weight: shape (C, D).
        bias: shape (C,), or None.
        in_float32: as in `linear_cross_entropy`.
        scale: as in `linear_cross_entropy`.
        soft_cap: as in `linear_cross_entropy`.
        flat: whether the result has one dimension.

    Returns:
        Shape (...), or (N,) if `flat`, in the dtype of `log_softmax`.
    """
    arithmetic = partial(capped_and_scaled, scale=scale, soft_cap=soft_cap)
    if _forms_all(x, weight, bias):
        made = entropy(F.log_softmax(_logits(x, weight, bias, arithmetic, in_float32), -1))
        return made.flatten() if flat else made
    dtype, shape = _result_dtype(x, in_float32), x.shape[:-1]
    x, weight, bias = _autocast_operands(x, weight, bias)
    rows = x.reshape(-1, x.shape[-1])
    made = weighed_rows([arithmetic], rows, weight, bias, x.new_zeros(rows.shape[0]), _entropy_of_logits, None, False)
    return (made if flat else made.reshape(shape)).to(dtype)


def linear_logsumexp(
    x: Tensor, weight: Tensor, *, bias: Tensor | None = None, keepdim: bool = False, in_float32: bool = False,
    scale: float = 1.0, soft_cap: float | None = None, flat: bool = False,
) -> Tensor:  # fmt: skip
    """torch.logsumexp(x @ weight.T + bias, -1), with the logits of one block of rows in memory at a time.

    Args:
        x: shape (..., D).
        weight: shape (C, D).
        bias: shape (C,), or None.
        keepdim: whether the result has a last dimension of size 1.
        in_float32: as in `linear_cross_entropy`.
        scale: as in `linear_cross_entropy`.
        soft_cap: as in `linear_cross_entropy`.
        flat: whether all other dimensions are one.

    Returns:
        Shape (...) or (N,), with a last dimension of size 1 if `keepdim`.
    """
    arithmetic, shape = partial(capped_and_scaled, scale=scale, soft_cap=soft_cap), x.shape[:-1]
    if _forms_all(x, weight, bias):
        made = torch.logsumexp(_logits(x, weight, bias, arithmetic, in_float32), -1)
    else:
        dtype = _result_dtype(x, in_float32)
        x, weight, bias = _autocast_operands(x, weight, bias)
        made = logsumexp_after([arithmetic], x.reshape(-1, x.shape[-1]), weight, bias).reshape(shape).to(dtype)
    made = made.flatten() if flat else made
    return made.unsqueeze(-1) if keepdim else made


def divergence(
    log_probs: Tensor, target: Tensor, *, kind: str = "kl", log_target: bool = False, reduction: str = "rows"
) -> Tensor:
    """A divergence between two distributions over the classes, in the last dimension.

    With q = exp(log_probs), and p the target:

    - "kl" is KL(p || q), the sum of p * (log p - log q), as in `F.kl_div`.
    - "reverse_kl" is KL(q || p), the sum of q * (log q - log p).
    - "cross_entropy" is the sum of -p * log q.

    Args:
        log_probs: shape (..., C).
        target: shape (..., C).
        kind: "kl", "reverse_kl" or "cross_entropy".
        log_target: whether the target holds log p.
        reduction: "rows" for one number for each row; otherwise as in `F.kl_div`: "sum", "mean" or "batchmean".

    Returns:
        Shape (...) for "rows", otherwise a scalar.

    Raises:
        ValueError: if `kind` or `reduction` is unknown.
    """
    _check_options(kind, reduction)
    rows = _of_rows(log_probs, target, kind, log_target)
    if reduction == "mean":  # torch warns that "batchmean" is the mathematical definition
        F.kl_div(torch.zeros(1, 1), torch.zeros(1, 1), reduction="mean")
    return rows if reduction == "rows" else rows.sum() / _divisor(target, reduction)


def entropy(log_probs: Tensor) -> Tensor:
    """The entropy of each row of log-probabilities (..., C). Shape (...)."""
    return -(log_probs.exp() * log_probs).sum(-1)


def _of_rows(log_probs: Tensor, target: Tensor, kind: str, log_target: bool) -> Tensor:
    if kind == "kl":
        return F.kl_div(log_probs, target, reduction="none", log_target=log_target).sum(-1)
    if kind == "reverse_kl":
        return (log_probs.exp() * (log_probs - (target if log_target else target.log()))).sum(-1)
    return -((target.exp() if log_target else target) * log_probs).sum(-1)


def _entropy_of_logits(logits: Tensor, _: Tensor) -> Tensor:
    return entropy(F.log_softmax(logits, -1))


def _divisor(target: Tensor, reduction: str) -> int:
    return {"batchmean": target.shape[0] if target.ndim else 1, "mean": target.numel()}.get(reduction, 1)


def _check_options(kind: str, reduction: str) -> None:
    if kind not in KINDS:
        raise ValueError(f"divergence takes the kinds {', '.join(KINDS)}, and not {kind!r}.")
    if reduction not in REDUCTIONS:
        raise ValueError(f"divergence takes the reductions {', '.join(REDUCTIONS)}, and not {reduction!r}.")


def _forms_all(x: Tensor, weight: Tensor, *others: Tensor | None) -> bool:
    """Whether all logits are formed: they are few, or a compiler, a transform or a subclass must see each operation."""
    if x.shape[:-1].numel() * weight.shape[0] < _LEAST or torch.compiler.is_compiling():
        return True
    return not is_plain(*(None if type(t) is FakeTensor else t for t in (x, weight, *others)))


def _logits(
    x: Tensor, weight: Tensor, bias: Tensor | None, arithmetic: partial[Tensor], in_float32: bool
) -> Tensor:  # fmt: skip
    logits = arithmetic(F.linear(x, weight, bias))
    return logits.to(wide_dtype(logits.dtype)) if in_float32 else logits


def _result_dtype(x: Tensor, in_float32: bool) -> torch.dtype:
    """The dtype of log-probabilities, which are float32 under autocast."""
    return wide_dtype(x.dtype) if in_float32 or is_autocast_on(x.device.type) else x.dtype


def _autocast_operands(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """The operands as autocast gives them to a linear layer."""
    if not is_autocast_on(x.device.type) or x.dtype is torch.float64:
        return x, weight, bias
    lower = torch.get_autocast_dtype(x.device.type)
    return x.to(lower), weight.to(lower), None if bias is None else bias.to(lower)
