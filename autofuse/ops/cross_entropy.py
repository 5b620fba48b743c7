"""Cross entropy of logits: one pass over the rows of logits forward, and one backward.

torch saves the log-softmax for the backward pass and writes two tensors of that size there. Our kernels save one number
for each row and write only the gradient.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from autofuse.kernels.class_targets import out_of_range
from autofuse.kernels.operation import Operation
from autofuse.kernels.operators import Kernels, define, differentiate, formula_gradients
from autofuse.kernels.packages import COMPILER, TORCH, TRITON
from autofuse.kernels.provider import Provider
from autofuse.ops.class_lookups import NEVER, as_torch_target, loss_by_lookup, loss_of_logarithms, may_underflow
from autofuse.torch_private import functional as F
from autofuse.torch_private.autocast import is_autocast_on

_REDUCTIONS = ("mean", "sum", "none")
# Number of logits. Measured on one thread, forward and backward: 2**17 logits take 0.47 ms in our loops and 0.20 ms in
# torch's kernels. Choosing, checking targets and dispatching cost 0.3 ms, which pays off from about half a million.
_LEAST = 2**20
KERNELS = Kernels(
    triton="autofuse.kernels.triton.cross_entropy",
    compiled="autofuse.kernels.compiled.cross_entropy",
    torch="autofuse.kernels.cross_entropy_formula",
)  # each module has `losses`, `gradient` and `losses_and_gradient`, with equal signatures


def cross_entropy(
    logits: Tensor, target: Tensor, *, dim: int = 1, weight: Tensor | None = None, ignore_index: int | None = None,
    reduction: str = "mean", label_smoothing: float = 0.0, lookup: str | None = None,
    count: int | None = None, of_probabilities: bool = False,
) -> Tensor:  # fmt: skip
    """-log softmax(logits)[target], as torch defines it, with the classes in any dimension.

    Args:
        logits: has its C classes in dimension `dim`.
        target: class indices, one for each row of logits, in the order of the rows.
        dim: the dimension of the classes. 1 also means the only dimension.
        weight: shape (C,), one weight for each class.
        ignore_index: rows with this target do not count; None means -100.
        reduction: "mean", "sum" or "none".
        label_smoothing: the share of the loss that goes to all classes evenly; Szegedy et al., arXiv:1512.00567.
        lookup: how the program finds the entry of a target: "index" (of `count` rows), "take", "gather", "scatter" or
            "one_hot". With "index" and "take", negative targets count from the end. Every target counts then, and a
            target that is no class raises the error that the program's lookup raises.
        count: the number of rows that "index" goes through; None for all.
        of_probabilities: the program takes the logarithm of a softmax. Where a probability underflows to 0, the
            logarithm is -inf.

    Returns:
        A scalar, or a tensor of target's shape if `reduction` is "none". It has the dtype of logits, or fp32 under
        autocast. Our kernels compute in fp32 and round once.

    Raises:
        ValueError: if `reduction` or `lookup` is unknown.
        IndexError: on a CPU, if a target is out of range.
    """
    check_reduction(reduction)
    if of_probabilities and may_underflow(logits, dim):
        options = (dim, weight, torch_ignore_index(ignore_index), lookup, count, reduction, label_smoothing)
        return loss_of_logarithms(logits, target, *options)
    if lookup is not None:
        return _loss_by_lookup(logits, target, dim, lookup, count, reduction, label_smoothing)
    loss: Tensor = _OP(
        logits, target, dim=dim, weight=weight, ignore_index=ignore_index, reduction=reduction,
        label_smoothing=label_smoothing,
    )  # fmt: skip
    return loss


def _loss_by_lookup(
    logits: Tensor, target: Tensor, dim: int, lookup: str, count: int | None, reduction: str, label_smoothing: float
) -> Tensor:
    """`cross_entropy` if every target counts. Targets that torch's losses do not accept are looked up."""
    classes = logits.shape[dim if logits.ndim > 1 else 0]
    rows = logits.numel() // classes if classes else -1
    options = as_torch_target(target, rows, classes, lookup, count)
    if options is not None:
        try:
            loss: Tensor = _OP(
                logits, options, dim=dim, ignore_index=NEVER, reduction=reduction, label_smoothing=label_smoothing
            )
            return loss
        except (IndexError, ValueError, RuntimeError):  # the program's lookup, below, raises its own error
            pass
    return loss_by_lookup(logits, target, dim, lookup, count, reduction, label_smoothing)


def nll(
    log_probs: Tensor, target: Tensor, *, dim: int = 1, weight: Tensor | None = None, ignore_index: int | None = None,
    reduction: str = "mean", label_smoothing: float = 0.0, lookup: str | None = None,
    count: int | None = None,
) -> Tensor:  # fmt: skip
    """The negative log likelihood of `target`.

    The same function as `cross_entropy`: log-softmax leaves log-probabilities unchanged.

    Args:
        log_probs: log-probabilities, as `logits` of `cross_entropy`.
        target: as in `cross_entropy`.
        dim: as in `cross_entropy`.
        weight: as in `cross_entropy`.
        ignore_index: as in `cross_entropy`.
        reduction: as in `cross_entropy`.
        label_smoothing: as in `cross_entropy`.
        lookup: as in `cross_entropy`.
        count: as in `cross_entropy`.

    Returns:
        As `cross_entropy`.
    """
    return cross_entropy(
        log_probs, target, dim=dim, weight=weight, ignore_index=ignore_index, reduction=reduction,
        label_smoothing=label_smoothing, lookup=lookup, count=count,
    )  # fmt: skip


def rows(
    logits: Tensor, in_float32: bool = False, scale: float = 1.0, soft_cap: float | None = None, flat: bool = True
) -> Tensor:  # fmt: skip
    """Caps and scales logits, and flattens them to rows. In a rule's `before` it stands for every way to do so.

    Args:
        logits: shape (..., C).
        in_float32: whether to cast to fp32.
        scale: as in `linear_cross_entropy`.
        soft_cap: as in `linear_cross_entropy`.
        flat: whether to flatten them.

    Returns:
        A tensor of shape (rows, C), or (..., C) if they are not flattened.
    """
    changed = capped_and_scaled(logits.reshape(-1, logits.shape[-1]) if flat else logits, scale, soft_cap)
    return changed.float() if in_float32 else changed


def capped_and_scaled(logits: Tensor, scale: float = 1.0, soft_cap: float | None = None) -> Tensor:
    """scale * soft_cap * tanh(logits / soft_cap), of any shape; scale * logits without a cap."""
    if soft_cap is not None:
        logits = torch.tanh(logits / soft_cap) * soft_cap
    return logits if scale == 1.0 else logits * scale


def check_reduction(reduction: str) -> None:
    """Checks that `reduction` is known.

    Raises:
        ValueError: if it is not.
    """
    if reduction not in _REDUCTIONS:
        raise ValueError(f'A loss got the unknown reduction {reduction!r}. Use "mean", "sum" or "none".')


def torch_ignore_index(ignore_index: int | None) -> int:
    """torch's `ignore_index`: -100 for None."""
    return -100 if ignore_index is None else ignore_index


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of sums and exponentials of values in `dtype`."""
    return torch.float64 if dtype is torch.float64 else torch.float32


# torch's kernels.


def _by_torch(
    logits: Tensor, target: Tensor, *, dim: int = 1, weight: Tensor | None = None, ignore_index: int | None = None,
    reduction: str = "mean", label_smoothing: float = 0.0,
) -> Tensor:  # fmt: skip
    flat, targets = logits, target
    if dim != 1 and logits.ndim != 1 - dim:
        flat, targets = logits.movedim(dim, -1).reshape(-1, logits.shape[dim]), target.reshape(-1)
    loss = F.cross_entropy(
        flat,
        targets,
        weight,
        ignore_index=torch_ignore_index(ignore_index),
        reduction=reduction,
        label_smoothing=label_smoothing,
    )
    return loss.reshape(target.shape) if reduction == "none" else loss


# Our operator and its gradient.


def _cross_entropy(
    logits: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, label_smoothing: float, reduction: str,
    dtype: torch.dtype, kernel: str,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The loss in `dtype`, the log-sum-exp of each row, and the divisor of the mean.

    logits has shape (rows, C), target (rows,).
    """
    losses, normalizers = KERNELS[kernel].losses(logits, target, weight, ignore_index, label_smoothing)
    if reduction == "none":
        return losses.to(dtype, copy=True), normalizers, losses.new_ones(())
    loss = losses.sum()
    if reduction == "sum":
        return loss.to(dtype), normalizers, torch.ones_like(loss)
    total = _divisor(target, weight, ignore_index).to(losses.dtype)
    return (loss / total).to(dtype), normalizers, total


def _divisor(target: Tensor, weight: Tensor | None, ignore_index: int) -> Tensor:
    """The number of rows that count, or the sum of the weights of their classes."""
    counts = target != ignore_index
    if weight is None:
        return counts.sum()
    return weight[target.clamp(0, weight.shape[0] - 1)].where(counts, 0.0).sum(dtype=wide_dtype(weight.dtype))


def _fake_loss(
    logits: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, label_smoothing: float, reduction: str,
    dtype: torch.dtype, kernel: str,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    shape = (logits.shape[0],) if reduction == "none" else ()
    normalizers = logits.new_empty(logits.shape[0], dtype=wide_dtype(logits.dtype))
    return logits.new_empty(shape, dtype=dtype), normalizers, normalizers.new_empty(())


def _cross_entropy_backward(
    gradient: Tensor, logits: Tensor, target: Tensor, weight: Tensor | None, normalizers: Tensor, total: Tensor,
    ignore_index: int, label_smoothing: float, reduction: str, kernel: str,
) -> Tensor:  # fmt: skip
    """The gradient of the logits, from the gradient of the loss."""
    row_gradient = gradient.to(normalizers.dtype)
    if reduction == "mean":
        row_gradient = row_gradient / total
    row_gradient = row_gradient.expand(logits.shape[0]).contiguous()
    result: Tensor = KERNELS[kernel].gradient(
        logits, target, weight, row_gradient, normalizers, ignore_index, label_smoothing
    )
    return result


def _fake_gradient(
    gradient: Tensor, logits: Tensor, target: Tensor, weight: Tensor | None, normalizers: Tensor, total: Tensor,
    ignore_index: int, label_smoothing: float, reduction: str, kernel: str,
) -> Tensor:  # fmt: skip
    return logits.new_empty(logits.shape)


def _formula(
    logits: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, label_smoothing: float, reduction: str,
    dtype: torch.dtype, kernel: str,
) -> Tensor:  # fmt: skip
    """The same computation in torch's functions, which have derivatives of every order."""
    exact, of_class = (
        logits.to(wide_dtype(logits.dtype)),
        None if weight is None else weight.to(wide_dtype(logits.dtype)),
    )
    return F.cross_entropy(
        exact, target, of_class, ignore_index=ignore_index, reduction=reduction, label_smoothing=label_smoothing
    ).to(dtype)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    logits, target, weight, *ctx.rest = inputs
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(*output[1:])
    ctx.save_for_backward(logits, target, weight, *output[1:])


def _backward(ctx: Any, gradient: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    nothing = (None,) * 7
    if gradient is None:
        return None, *nothing
    logits, target, weight, normalizers, total = ctx.saved_tensors
    if torch.is_grad_enabled():
        needed = [True] + [False] * 7
        return tuple(formula_gradients(_formula, (logits, target, weight, *ctx.rest), [gradient], needed))
    ignore_index, label_smoothing, reduction, _dtype, kernel = ctx.rest
    result = _gradient(
        gradient, logits, target, weight, normalizers, total, ignore_index, label_smoothing, reduction, kernel
    )
    return result, *nothing


_loss = define(_cross_entropy, _fake_loss)
_gradient = define(_cross_entropy_backward, _fake_gradient)
differentiate(_loss, _backward, _save)


# The providers.


def _refusal(
    logits: Tensor, target: Tensor, *, dim: int = 1, weight: Tensor | None = None, ignore_index: int | None = None,
    reduction: str = "mean", label_smoothing: float = 0.0,
) -> str:  # fmt: skip
    """The reason why our kernels do not take a call. torch takes invalid calls: its error messages are well known."""
    dim = 0 if logits.ndim == 1 else dim
    if target.dtype is not torch.int64:
        return f"Targets are {target.dtype}, and it takes class indices in torch.int64."
    if logits.ndim < 1 or logits.stride(dim) != 1:
        return "The classes are not contiguous in memory."
    classes = logits.shape[dim]
    expected = (*logits.shape[: dim % logits.ndim], *logits.shape[dim % logits.ndim + 1 :])
    if target.numel() * classes != logits.numel() or dim == 1 and target.shape != expected:
        return f"There are {target.numel()} targets for logits of shape {tuple(logits.shape)}."
    if target.device != logits.device or not 0.0 <= label_smoothing <= 1.0:
        return "The targets are on another device, or label_smoothing is not between 0 and 1."
    if weight is not None and (
        weight.shape != (classes,)
        or weight.device != logits.device
        or weight.dtype is not logits.dtype
        or weight.requires_grad
    ):
        return "The weights have another shape, dtype or device than the logits, or require a gradient."
    if out_of_range(target, classes, torch_ignore_index(ignore_index)) is not None:
        return "A target is out of range."
    return ""


def _run_with(kernel: str) -> Any:
    def run(
        logits: Tensor, target: Tensor, *, dim: int = 1, weight: Tensor | None = None, ignore_index: int | None = None,
        reduction: str = "mean", label_smoothing: float = 0.0,
    ) -> Tensor:  # fmt: skip
        flat, dtype = logits, logits.dtype
        if logits.ndim != 2 or dim not in (1, -1):
            moved = logits if logits.ndim == 1 else logits.movedim(dim, -1)
            flat = moved.reshape(-1, moved.shape[-1])
        if is_autocast_on(logits.device.type):
            dtype = wide_dtype(dtype)
        # Without a gradient the dispatcher is not needed. It costs 0.1 ms when caches are cold.
        compute = _loss if torch.is_grad_enabled() and logits.requires_grad else _cross_entropy
        loss: Tensor = compute(
            flat,
            target.reshape(-1),
            weight,
            torch_ignore_index(ignore_index),
            label_smoothing,
            reduction,
            dtype,
            kernel,
        )[0]
        return loss.reshape(target.shape) if reduction == "none" else loss

    return run


def _sizes(logits: Tensor, target: Tensor, *, dim: int = 1, **_: Any) -> tuple[int, ...]:
    """The key of a measurement: elements, rounded up to a power of two, and classes."""
    return logits.numel().bit_length(), logits.shape[dim if logits.ndim > 1 else 0]


_RECOMPUTED = "Our own: the softmax is computed again from the saved log-sum-exp of each row."
_OP = Operation(
    "cross_entropy",
    (
        Provider(
            "cross_entropy", "triton", TRITON, _run_with("triton"), "One pass over each row, of any length.",
            _RECOMPUTED, _refusal, ("cuda",), default=True,
        ),
        Provider(
            "cross_entropy", "compiled", COMPILER, _run_with("compiled"),
            "One loop over each row that Inductor compiles.", _RECOMPUTED, _refusal, ("cpu",), default=True,
        ),
        Provider(
            "cross_entropy", "torch", TORCH, _by_torch, "torch's log_softmax and nll_loss.",
            "torch's own, from the saved log-softmax.", default=True,
        ),
    ),
    least=_LEAST,
    sizes=_sizes,
)  # fmt: skip
