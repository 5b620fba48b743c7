"""Cross entropy of logits: rows of logits in, one pass over them forward and one backward.

Where torch keeps the log-softmax from one pass to the other and writes two tensors of that size in the backward pass,
our own kernels keep a number for each row and write the gradient alone. Must not know where the logits come from.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from autofuse.kernels.class_targets import out_of_range
from autofuse.kernels.operation import Operation
from autofuse.kernels.operators import Kernels, by_formula, define, differentiate
from autofuse.kernels.packages import COMPILER, TORCH, TRITON
from autofuse.kernels.provider import Provider
from autofuse.ops.class_lookups import NEVER, as_torch_target, loss_by_lookup, loss_of_logarithms, may_underflow

_REDUCTIONS = ("mean", "sum", "none")
# Logits. Measured on one thread: 2**17 of them take 0.47 ms forward and backward in our loops, 0.20 in torch's kernels;
# what choosing, checking targets and dispatching cost (0.3 ms) is won back from about half a million.
_LEAST = 2**20
KERNELS = Kernels(
    triton="autofuse.kernels.triton.cross_entropy",
    compiled="autofuse.kernels.compiled.cross_entropy",
    torch="autofuse.kernels.cross_entropy_formula",
)  # `losses`, `gradient`, `losses_and_gradient`, of equal signatures


def cross_entropy(
    logits: Tensor, target: Tensor, *, dim: int = 1, weight: Tensor | None = None, ignore_index: int | None = None,
    reduction: str = "mean", label_smoothing: float = 0.0, lookup: str | None = None,
    count: int | None = None, of_probabilities: bool = False,
) -> Tensor:  # fmt: skip
    """-log softmax(logits)[target], as torch defines it, with the classes in any dimension.

    Shapes: logits has its C classes in dimension `dim`; 1 means the only one where there is no other. target holds
    class indices, one for each row of logits, in the order in which those lie; weight is (C,). The result is a scalar,
    or of target's shape where `reduction` is "none". Rows whose target is `ignore_index` (None: -100) do not count.
    lookup: how the program finds what stands at a target: "index" (of `count` rows) and "take", to which negative
    targets count from the end, "gather", "scatter" or "one_hot". Every target counts then, and one that is no class is
    the error that the lookup raises.
    of_probabilities: the program takes the logarithm of a softmax; where a probability underflows to 0, it is -inf.
    Dtypes: the result has that of logits, under autocast fp32; our own kernels compute in fp32 and round once.
    Source of label smoothing: Szegedy et al., arXiv:1512.00567. Raises ValueError for another `reduction`, and on CPU
    IndexError for a target out of range.
    """
    check_reduction(reduction)
    if of_probabilities and may_underflow(logits, dim):
        taken = (dim, weight, ignored(ignore_index), lookup, count, reduction, label_smoothing)
        return loss_of_logarithms(logits, target, *taken)
    if lookup is not None:
        return _looked_up(logits, target, dim, lookup, count, reduction, label_smoothing)
    loss: Tensor = _OP(
        logits, target, dim=dim, weight=weight, ignore_index=ignore_index, reduction=reduction,
        label_smoothing=label_smoothing,
    )  # fmt: skip
    return loss


def _looked_up(
    logits: Tensor, target: Tensor, dim: int, lookup: str, count: int | None, reduction: str, label_smoothing: float
) -> Tensor:
    """The same where every target counts; what torch's losses do not take is looked up."""
    classes = logits.shape[dim if logits.ndim > 1 else 0]
    rows = logits.numel() // classes if classes else -1
    taken = as_torch_target(target, rows, classes, lookup, count)
    if taken is not None:
        try:
            loss: Tensor = _OP(
                logits, taken, dim=dim, ignore_index=NEVER, reduction=reduction, label_smoothing=label_smoothing
            )
            return loss
        except (IndexError, ValueError, RuntimeError):  # which the lookup raises in its own words
            pass
    return loss_by_lookup(logits, target, dim, lookup, count, reduction, label_smoothing)


def nll(
    log_probs: Tensor, target: Tensor, *, dim: int = 1, weight: Tensor | None = None, ignore_index: int | None = None,
    reduction: str = "mean", label_smoothing: float = 0.0, lookup: str | None = None,
    count: int | None = None,
) -> Tensor:  # fmt: skip
    """The negative log likelihood of `target`, its arguments and its result those of `cross_entropy`.

    It is that function: log-softmax of log-probabilities changes nothing.
    """
    return cross_entropy(
        log_probs, target, dim=dim, weight=weight, ignore_index=ignore_index, reduction=reduction,
        label_smoothing=label_smoothing, lookup=lookup, count=count,
    )  # fmt: skip


def log_likelihood(
    logits: Tensor, target: Tensor, *, dim: int = 1, weight: Tensor | None = None, ignore_index: int | None = None,
    reduction: str = "mean", label_smoothing: float = 0.0, lookup: str | None = None,
    count: int | None = None, of_probabilities: bool = False,
) -> Tensor:  # fmt: skip
    """log softmax(logits)[target]: cross_entropy with the other sign."""
    return -cross_entropy(
        logits, target, dim=dim, weight=weight, ignore_index=ignore_index, reduction=reduction,
        label_smoothing=label_smoothing, lookup=lookup, count=count, of_probabilities=of_probabilities,
    )  # fmt: skip


def rows(logits: Tensor, in_float32: bool = False) -> Tensor:
    """Logits (..., C) as (rows, C), in fp32 if `in_float32`. In a rule's `before` it stands for every arrangement."""
    flat = logits.reshape(-1, logits.shape[-1])
    return flat.float() if in_float32 else flat


def check_reduction(reduction: str) -> None:
    if reduction not in _REDUCTIONS:
        raise ValueError(f'A loss was asked for the reduction {reduction!r}. Use "mean", "sum" or "none".')


def ignored(ignore_index: int | None) -> int:
    return -100 if ignore_index is None else ignore_index


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype of sums and exponentials."""
    return torch.float64 if dtype is torch.float64 else torch.float32


def autocast_is_on(device: str) -> bool:
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)


# Torch's kernels.


def _by_torch(
    logits: Tensor, target: Tensor, *, dim: int = 1, weight: Tensor | None = None, ignore_index: int | None = None,
    reduction: str = "mean", label_smoothing: float = 0.0,
) -> Tensor:  # fmt: skip
    flat, targets = logits, target
    if dim != 1 and logits.ndim != 1 - dim:
        flat, targets = logits.movedim(dim, -1).reshape(-1, logits.shape[dim]), target.reshape(-1)
    loss = F.cross_entropy(
        flat, targets, weight, ignore_index=ignored(ignore_index), reduction=reduction, label_smoothing=label_smoothing
    )
    return loss.reshape(target.shape) if reduction == "none" else loss


# Our own: the registered operator and its gradient.


def _cross_entropy(
    logits: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, label_smoothing: float, reduction: str,
    dtype: torch.dtype, kernel: str,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The loss in `dtype`, each row's log-sum-exp, and what the mean divides by. logits: (rows, C), target: (rows,)."""
    losses, normalizers = KERNELS[kernel].losses(logits, target, weight, ignore_index, label_smoothing)
    if reduction == "none":
        return losses.to(dtype, copy=True), normalizers, losses.new_ones(())
    loss = losses.sum()
    if reduction == "sum":
        return loss.to(dtype), normalizers, torch.ones_like(loss)
    total = _counted(target, weight, ignore_index).to(losses.dtype)
    return (loss / total).to(dtype), normalizers, total


def _counted(target: Tensor, weight: Tensor | None, ignore_index: int) -> Tensor:
    """The number of rows that count, or the sum of their classes' weights."""
    counted = target != ignore_index
    if weight is None:
        return counted.sum()
    return weight[target.clamp(0, weight.shape[0] - 1)].where(counted, 0.0).sum(dtype=wide(weight.dtype))


def _fake_loss(
    logits: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, label_smoothing: float, reduction: str,
    dtype: torch.dtype, kernel: str,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    shape = (logits.shape[0],) if reduction == "none" else ()
    normalizers = logits.new_empty(logits.shape[0], dtype=wide(logits.dtype))
    return logits.new_empty(shape, dtype=dtype), normalizers, normalizers.new_empty(())


def _cross_entropy_backward(
    gradient: Tensor, logits: Tensor, target: Tensor, weight: Tensor | None, normalizers: Tensor, total: Tensor,
    ignore_index: int, label_smoothing: float, reduction: str, kernel: str,
) -> Tensor:  # fmt: skip
    """The gradient of the logits, from that of the loss."""
    share = gradient.to(normalizers.dtype)
    if reduction == "mean":
        share = share / total
    share = share.expand(logits.shape[0]).contiguous()
    made: Tensor = KERNELS[kernel].gradient(logits, target, weight, share, normalizers, ignore_index, label_smoothing)
    return made


def _fake_gradient(
    gradient: Tensor, logits: Tensor, target: Tensor, weight: Tensor | None, normalizers: Tensor, total: Tensor,
    ignore_index: int, label_smoothing: float, reduction: str, kernel: str,
) -> Tensor:  # fmt: skip
    return logits.new_empty(logits.shape)


def _formula(
    logits: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, label_smoothing: float, reduction: str,
    dtype: torch.dtype, kernel: str,
) -> Tensor:  # fmt: skip
    """What the operator computes, in torch's terms."""
    exact, of_class = logits.to(wide(logits.dtype)), None if weight is None else weight.to(wide(logits.dtype))
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
        wanted = [True] + [False] * 7
        return tuple(by_formula(_formula, (logits, target, weight, *ctx.rest), [gradient], wanted))
    ignore_index, label_smoothing, reduction, _dtype, kernel = ctx.rest
    made = _gradient(
        gradient, logits, target, weight, normalizers, total, ignore_index, label_smoothing, reduction, kernel
    )
    return made, *nothing


_loss = define(_cross_entropy, _fake_loss)
_gradient = define(_cross_entropy_backward, _fake_gradient)
differentiate(_loss, _backward, _save)


# What takes which call.


def _refusal(
    logits: Tensor, target: Tensor, *, dim: int = 1, weight: Tensor | None = None, ignore_index: int | None = None,
    reduction: str = "mean", label_smoothing: float = 0.0,
) -> str:  # fmt: skip
    """Why our kernels cannot take a call. What torch refuses goes to torch, whose words for it are known."""
    dim = 0 if logits.ndim == 1 else dim
    if target.dtype is not torch.int64:
        return f"Targets are {target.dtype}, and it takes class indices in torch.int64."
    if logits.ndim < 1 or logits.stride(dim) != 1:
        return "The classes do not lie next to each other in memory."
    classes = logits.shape[dim]
    expected = (*logits.shape[: dim % logits.ndim], *logits.shape[dim % logits.ndim + 1 :])
    if target.numel() * classes != logits.numel() or dim == 1 and target.shape != expected:
        return f"There are {target.numel()} targets for logits of shape {tuple(logits.shape)}."
    if target.device != logits.device or not 0.0 <= label_smoothing <= 1.0:
        return "The targets are on another device, or the smoothing is no share."
    if weight is not None and (
        weight.shape != (classes,)
        or weight.device != logits.device
        or weight.dtype is not logits.dtype
        or weight.requires_grad
    ):
        return "The weights have another shape, dtype or device than the classes, or a gradient is wanted for them."
    if out_of_range(target, classes, ignored(ignore_index)) is not None:
        return "A target is out of range."
    return ""


def _by(kernel: str) -> Any:
    def run(
        logits: Tensor, target: Tensor, *, dim: int = 1, weight: Tensor | None = None, ignore_index: int | None = None,
        reduction: str = "mean", label_smoothing: float = 0.0,
    ) -> Tensor:  # fmt: skip
        flat, dtype = logits, logits.dtype
        if logits.ndim != 2 or dim not in (1, -1):
            moved = logits if logits.ndim == 1 else logits.movedim(dim, -1)
            flat = moved.reshape(-1, moved.shape[-1])
        if autocast_is_on(logits.device.type):
            dtype = wide(dtype)
        # without a gradient nobody needs the dispatcher, which costs 0.1 ms when caches are cold
        compute = _loss if torch.is_grad_enabled() and logits.requires_grad else _cross_entropy
        loss: Tensor = compute(
            flat, target.reshape(-1), weight, ignored(ignore_index), label_smoothing, reduction, dtype, kernel
        )[0]
        return loss.reshape(target.shape) if reduction == "none" else loss

    return run


def _sizes(logits: Tensor, target: Tensor, *, dim: int = 1, **_: Any) -> tuple[int, ...]:
    """The elements, to the next power of two, and the classes."""
    return logits.numel().bit_length(), logits.shape[dim if logits.ndim > 1 else 0]


_RECOMPUTED = "Ours: the softmax once more, from each row's saved log-sum-exp."
_OP = Operation(
    "cross_entropy",
    (
        Provider(
            "cross_entropy", "triton", TRITON, _by("triton"), "A pass over each row, of any length.", _RECOMPUTED,
            _refusal, ("cuda",), default=True,
        ),
        Provider(
            "cross_entropy", "compiled", COMPILER, _by("compiled"), "A loop over each row that Inductor compiles.",
            _RECOMPUTED, _refusal, ("cpu",), default=True,
        ),
        Provider(
            "cross_entropy", "torch", TORCH, _by_torch, "Torch's log_softmax and nll_loss.",
            "Torch's, from the saved log-softmax.", default=True,
        ),
    ),
    least=_LEAST,
    sizes=_sizes,
)  # fmt: skip
