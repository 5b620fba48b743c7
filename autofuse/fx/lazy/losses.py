"""Losses of lazy logits, computed from the layer's input and weight in blocks of rows.

The graph of each loss has two paths to the parameters. The short one computes their gradients without the logits. The
long one goes through the lazy tensor, as torch's graph does. A backward pass takes the long path if the program asks
for a gradient on it: by a hook, by retain_grad, by torch.autograd.grad, or with create_graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from autofuse.fx.lazy.linear import runs_alone
from autofuse.fx.lazy.nodes import Recipe, Step
from autofuse.fx.lazy.soft_targets import (
    cross_entropy_of_probabilities,
    kl_divergence,
    result_dtype,
    weighted_cross_entropy,
)
from autofuse.fx.lazy.steps import numbers_of, rows_of
from autofuse.fx.lazy.tensor import LOSSES, LazyLogits
from autofuse.fx.trace.source_lines import SourceLine, user_place
from autofuse.kernels.class_targets import out_of_range
from autofuse.ops.class_lookups import NEVER
from autofuse.ops.linear_cross_entropy import linear_cross_entropy
from autofuse.ops.row_losses import cross_entropy_after, logsumexp_after
from autofuse.torch_private import DisableTorchFunctionSubclass, queue_callback, will_engine_execute_node
from autofuse.torch_private.autocast import is_autocast_on


class FusedLoss(NamedTuple):
    """A loss of the lazy logits `x` was computed at this line."""

    x: LazyLogits
    place: SourceLine | None


_LISTENERS: ContextVar[tuple[list[FusedLoss], ...]] = ContextVar("listeners", default=())
_Function = Callable[[Tensor], Tensor]


@contextmanager
def record_losses() -> Iterator[list[FusedLoss]]:
    """Collects the losses of lazy logits that are computed in the block."""
    heard: list[FusedLoss] = []
    token = _LISTENERS.set((*_LISTENERS.get(), heard))
    try:
        yield heard
    finally:
        _LISTENERS.reset(token)


def cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None = None, size_average: Any = None, ignore_index: int = -100,
    reduce: Any = None, reduction: str = "mean", label_smoothing: float = 0.0,
) -> Any:  # fmt: skip
    """F.cross_entropy of lazy logits; NotImplemented if the logits must be computed."""
    if size_average is not None or reduce is not None or _is_computed(input, "logits"):
        return NotImplemented
    weight = None if weight is None else weight.clone()  # it may be written before the backward pass

    def plain(logits: Tensor) -> Tensor:
        return F.cross_entropy(
            logits, target, weight, ignore_index=ignore_index, reduction=reduction, label_smoothing=label_smoothing
        )

    if weight is not None:
        return _weighted(input, target, weight, ignore_index, reduction, label_smoothing, plain)
    if _is_distribution(target):
        return _of_probabilities(input, target, reduction, label_smoothing, plain)
    return _of_targets(input, target, ignore_index, label_smoothing, reduction, plain)


def nll_loss(
    input: Tensor, target: Tensor, weight: Tensor | None = None, size_average: Any = None, ignore_index: int = -100,
    reduce: Any = None, reduction: str = "mean",
) -> Any:  # fmt: skip
    """F.nll_loss of lazy log-probabilities; NotImplemented if they must be computed."""
    if size_average is not None or reduce is not None or _is_computed(input, "log_softmax"):
        return NotImplemented
    weight = None if weight is None else weight.clone()  # it may be written before the backward pass

    def plain(logits: Tensor) -> Tensor:
        return F.nll_loss(logits, target, weight, ignore_index=ignore_index, reduction=reduction)

    if weight is not None:
        return _weighted(input, target, weight, ignore_index, reduction, 0.0, plain)
    return _of_targets(input, target, ignore_index, 0.0, reduction, plain)


def kl_div(
    input: Tensor, target: Tensor, size_average: Any = None, reduce: Any = None, reduction: str = "mean",
    log_target: bool = False,
) -> Any:  # fmt: skip
    """F.kl_div of lazy log-probabilities; NotImplemented if they must be computed."""
    if size_average is not None or reduce is not None or _is_computed(input, "log_softmax"):
        return NotImplemented
    assert isinstance(input, LazyLogits)

    def plain(logits: Tensor) -> Tensor:
        return F.kl_div(logits, target, reduction=reduction, log_target=log_target)

    with torch.autocast(input.device.type, enabled=False):
        made = kl_divergence(input, _operands(input), target, reduction, log_target)
    if made is None:
        return NotImplemented
    if reduction == "mean":  # torch warns that "batchmean" is the mathematical definition
        F.kl_div(torch.zeros(1, 1), torch.zeros(1, 1), reduction="mean")
    dtype = result_dtype(input, target, partial(F.kl_div, reduction="sum"))
    return _join_paths(made.to(dtype), input, plain)


def gather(input: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Any:
    """torch.gather of one class of each row, from lazy logits or log-probabilities; NotImplemented for other calls."""
    kind = "log_softmax" if _has_softmax(input) else "logits"
    if sparse_grad or _is_computed(input, kind) or type(index) is not Tensor:
        return NotImplemented
    assert isinstance(input, LazyLogits)
    if dim % input.ndim != input.ndim - 1 or input.node.axis != input.ndim - 1:
        return NotImplemented
    if index.shape != (*input.shape[:-1], 1) or index.dtype is not torch.int64 or index.device != input.device:
        return NotImplemented
    if out_of_range(index, input.shape[-1], NEVER) is not None:
        return NotImplemented
    chosen = index.squeeze(-1)
    made = -_losses(input, chosen, NEVER, 0.0, "none") if kind == "log_softmax" else _target_logits(input, chosen)
    return _join_paths(made.to(input.dtype).unsqueeze(-1), input, lambda x: x.gather(-1, index))


def logsumexp(input: Tensor, dim: Any, keepdim: bool = False) -> Any:
    """torch.logsumexp over the classes of lazy logits; NotImplemented over anything else."""
    if _is_computed(input, "logits"):
        return NotImplemented
    assert isinstance(input, LazyLogits)
    dims = (dim,) if isinstance(dim, int) else tuple(dim)
    if len(dims) != 1 or dims[0] % input.ndim != input.node.axis:
        return NotImplemented
    rows, weight, bias = _operands(input)
    with torch.autocast(input.device.type, enabled=False):
        made = logsumexp_after(numbers_of(input.node.steps), rows.reshape(-1, rows.shape[-1]), weight, bias)
    made = made.reshape(rows.shape[:-1]).to(input.dtype)
    return _join_paths(made.unsqueeze(dims[0]) if keepdim else made, input, lambda x: torch.logsumexp(x, dims, keepdim))


def _is_computed(x: Any, kind: str) -> bool:
    """Whether the numbers of `x` must be computed. Otherwise `x` is lazy, and of the kind "logits" or "log_softmax"."""
    if not isinstance(x, LazyLogits) or x.is_computed or not x.requires_grad or not runs_alone():
        return True
    node = x.node
    if node.axis is None or x.ndim < 1 or (kind == "log_softmax") != _has_softmax(x):
        return True
    return node.source.value is not None or not node.source.is_unwritten or _is_detached(node.steps)


def _has_softmax(x: Any) -> bool:
    return isinstance(x, LazyLogits) and any(s.kind == "log_softmax" for s in x.node.steps)


def _is_detached(steps: Sequence[Step]) -> bool:
    return any(s.function is torch.ops.aten.detach.default for s in steps)


def _of_targets(x: Tensor, target: Any, ignore_index: int, smoothing: float, reduction: str, plain: _Function) -> Any:
    assert isinstance(x, LazyLogits)
    if type(target) is not Tensor or target.dtype is not torch.int64 or target.device != x.device or x.ndim < 2:
        return NotImplemented
    if x.node.axis != 1 or tuple(target.shape) != (x.shape[0], *x.shape[2:]) or not target.numel():
        return NotImplemented
    if reduction not in ("mean", "sum", "none") or out_of_range(target, x.shape[1], ignore_index) is not None:
        return NotImplemented
    dtype = torch.float32 if _autocasts(x) and x.dtype is not torch.float64 else x.dtype
    return _join_paths(_losses(x, target, ignore_index, smoothing, reduction).to(dtype), x, plain)


def _weighted(
    x: Tensor, target: Tensor, weight: Tensor, ignore_index: int, reduction: str, smoothing: float, plain: _Function
) -> Any:
    assert isinstance(x, LazyLogits)
    with torch.autocast(x.device.type, enabled=False):
        made = weighted_cross_entropy(x, _operands(x), target, weight, ignore_index, reduction, smoothing)
    if made is None:
        return NotImplemented
    dtype = torch.float32 if _autocasts(x) and x.dtype is not torch.float64 else x.dtype
    return _join_paths(made.to(dtype), x, plain)


def _of_probabilities(x: Tensor, target: Tensor, reduction: str, smoothing: float, plain: _Function) -> Any:
    assert isinstance(x, LazyLogits)
    with torch.autocast(x.device.type, enabled=False):
        made = cross_entropy_of_probabilities(x, _operands(x), target, reduction, smoothing)
    if made is None:
        return NotImplemented
    return _join_paths(made.to(result_dtype(x, target, F.cross_entropy)), x, plain)


def _is_distribution(target: Any) -> bool:
    return isinstance(target, Tensor) and target.is_floating_point()


def _autocasts(x: Tensor) -> bool:
    return is_autocast_on(x.device.type)


def _losses(x: LazyLogits, target: Tensor, ignore_index: int, smoothing: float, reduction: str) -> Tensor:
    """The cross entropy in blocks, in fp32 or better; shaped like target for the reduction "none"."""
    rows, weight, bias = _operands(x)
    flat, targets = rows.reshape(-1, rows.shape[-1]), target.reshape(-1)
    numbers = numbers_of(x.node.steps)
    with torch.autocast(x.device.type, enabled=False):
        if all(s.kind == "cast" and s.kwargs.get("dtype") in (None, rows.dtype, torch.float32) for s in numbers):
            made = linear_cross_entropy(
                flat, weight, targets, bias=bias, ignore_index=ignore_index, label_smoothing=smoothing,
                reduction=reduction, in_float32=rows.dtype is not torch.float64,
            )  # fmt: skip
        else:
            made = cross_entropy_after(numbers, flat, weight, bias, targets, ignore_index, smoothing, reduction)
    return made.reshape(target.shape) if reduction == "none" else made


def _target_logits(x: LazyLogits, index: Tensor) -> Tensor:
    """The logit of one class for each row."""
    rows, weight, bias = _operands(x)
    wide = _wide_dtype(rows.dtype)
    with torch.autocast(x.device.type, enabled=False):
        # The weight's rows of the chosen classes suffice, so no logits are computed.
        made = (rows.to(wide) * F.embedding(index, weight).to(wide)).sum(-1)
        if bias is not None:
            made = made + bias[index].to(wide)
        made = made.to(rows.dtype)
        for step in numbers_of(x.node.steps):
            made = step(made)
    return made


def _operands(x: LazyLogits) -> tuple[Tensor, Tensor, Tensor | None]:
    """Rows (..., D), weight and bias with their graph, as the layer multiplies them."""
    source, axis = x.node.source, x.node.axis
    assert axis is not None
    given, weight, bias = source.operands
    rows = rows_of(x.node.steps, given, axis)
    if source.lower is None:
        return rows, weight, bias
    return rows.to(source.lower), weight.to(source.lower), None if bias is None else bias.to(source.lower)


def _wide_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype is torch.float64 else torch.float32


def _join_paths(made: Tensor, x: LazyLogits, plain: _Function) -> Tensor:
    for heard in _LISTENERS.get():
        heard.append(FusedLoss(x, user_place()))
    # The engine runs the node of `leaf` only in a full backward pass, so this shows whether gradients were chosen.
    leaf = torch.zeros((), requires_grad=True)
    joined: Tensor = _TwoWays.apply(made, x, leaf, plain, x.node.recipe(), _autocasts(x))  # type: ignore[no-untyped-call]
    return joined


class _TwoWays(torch.autograd.Function):
    """Connects a loss, which was computed from a layer's input, to the layer's lazy output `x`, too.

    No program asks for the gradient of `leaf`. A backward pass that does not reach it computes chosen gradients only
    (`torch.autograd.grad`, or `backward(inputs=...)`).
    """

    @staticmethod
    def forward(
        ctx: Any, made: Tensor, x: Tensor, leaf: Tensor, plain: _Function, recipe: Recipe, autocasts: bool
    ) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x)
        ctx.plain, ctx.recipe, ctx.leaf = plain, recipe, leaf
        ctx.dtype = torch.get_autocast_dtype(recipe.source.x.device.type) if autocasts else None
        return made.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        if gradient is None:
            return (None,) * 6
        source = ctx.recipe.source
        queue_callback(source.keep)  # after this backward pass an optimizer may write to the weight
        graph = torch.is_grad_enabled()
        if not graph and not ctx.recipe.is_watched and will_engine_execute_node(get_gradient_edge(ctx.leaf).node):
            return gradient, *(None,) * 5
        device = source.x.device.type
        x = ctx.saved_tensors[0] if graph else ctx.recipe.compute_again().requires_grad_()
        with (
            torch.enable_grad(), DisableTorchFunctionSubclass(),
            torch.autocast(device, dtype=ctx.dtype, enabled=ctx.dtype is not None),
        ):  # fmt: skip
            (of_x,) = torch.autograd.grad(ctx.plain(x), x, gradient, create_graph=graph)
        return None, of_x, *(None,) * 4


LOSSES.update({
    F.cross_entropy: cross_entropy,
    F.nll_loss: nll_loss,
    F.kl_div: kl_div,
    torch.gather: gather, Tensor.gather: gather,
    torch.logsumexp: logsumexp, Tensor.logsumexp: logsumexp,
})  # fmt: skip
