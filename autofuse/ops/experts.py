"""Mixture of experts: which rows go to which expert, and products of rows with their experts' matrices.

Rows are sorted by expert: those of one lie side by side, and `ends` says where each expert's end. Knows tensors and
modules; must not know how a model spells its loop over experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autofuse.torch_private import FakeTensor


def expert_rows(chosen: Tensor) -> tuple[Tensor, ...]:
    """The rows of each expert, sorted by expert: (expert, index of each further dimension ..., ends).

    Shapes: `chosen` (E, ...), nonzero where an expert takes an entry; the indices (R,), in the order in which
    `torch.where(chosen[e])` gives them for each e. `ends` (E,), on the CPU: expert e has the rows from ends[e - 1] up
    to ends[e]. Waits for the device once or twice, whatever E is.
    """
    expert, *places = chosen.nonzero(as_tuple=True)
    ends = torch.bincount(expert, minlength=chosen.shape[0]).cumsum(0).cpu()
    return expert, *places, ends


def chosen_experts(indices: Tensor, experts: int) -> Tensor:
    """(experts, *indices.shape): where `indices` is 0, 1, ..., experts - 1."""
    numbers = torch.arange(experts, device=indices.device, dtype=indices.dtype)
    return indices.unsqueeze(0) == numbers.view(-1, *[1] * indices.dim())


def expert_linear(x: Tensor, weight: Tensor, bias: Tensor | None, ends: Tensor, transposed: bool = False) -> Tensor:
    """A linear layer for each expert's rows, one after the other, as a loop over experts computes it.

    Shapes: x (R, D), weight (E, F, D), or (E, D, F) if `transposed`, bias (E, F), ends (E,); the result (R, F).
    """
    if isinstance(ends, FakeTensor):
        return _on_paper(x, weight, bias, transposed)
    parts = []
    for e, rows in _segments(x, ends):
        if transposed:
            part = rows @ weight[e]
            parts.append(part if bias is None else part + bias[e])
        else:
            parts.append(F.linear(rows, weight[e], None if bias is None else bias[e]))
    if parts:
        return torch.cat(parts)
    return x.new_empty(0, weight.shape[-1 if transposed else -2])


def grouped_linear(x: Tensor, weight: Tensor, bias: Tensor | None, ends: Tensor, transposed: bool = False) -> Tensor:
    """The same in one operation: each expert's product is written in place, and so are the gradients.

    The loop's backward pass makes a tensor of all experts' weights for each expert, and adds them up; this makes one.
    Raises RuntimeError where the dtypes of x and weight differ, as torch's product does.
    """
    if isinstance(ends, FakeTensor):
        return _on_paper(x, weight, bias, transposed)
    if torch.is_autocast_enabled(x.device.type):
        dtype = torch.get_autocast_dtype(x.device.type)
        x, weight = x.to(dtype), weight.to(dtype)
        bias = None if bias is None else bias.to(dtype)
    result: Tensor = _GroupedLinear.apply(x, weight, bias, ends, transposed)  # type: ignore[no-untyped-call]
    return result


def each_expert(experts: Sequence[nn.Module], x: Tensor, ends: Tensor, empty: bool) -> Tensor:
    """What each of `experts`, called, makes of its rows (R, ...), one after the other.

    `empty`: one without rows is called too, with none, so that its parameters get gradients of zero.
    """
    if isinstance(ends, FakeTensor):
        return experts[0](x)  # type: ignore[no-any-return]
    parts, start = [], 0
    for expert, end in zip(experts, ends.tolist(), strict=True):
        if empty or end > start:
            parts.append(expert(x[start:end]))
        start = end
    return torch.cat(parts) if parts else experts[0](x)


def add_expert_rows(out: Tensor, places: tuple[Tensor, ...], rows: Tensor, ends: Tensor) -> Tensor:
    """out[places] += rows, expert by expert, in place: the sums are those of a loop over experts, to the last bit.

    Shapes: out (*N, ...), one of `places` (R,) for each of its first dimensions, rows (R, ...), ends (E,). No expert
    has an entry twice, but where there is one index, with which a loop's `index_add_` adds each.
    """
    if isinstance(ends, FakeTensor):
        return out.index_put_(places, rows, True)
    if len(places) == 1 and not out.is_cuda:
        return out.index_add_(0, places[0], rows)
    for start, end in _bounds(ends, rows.shape[0]):
        if end > start:
            out.index_put_(tuple(p[start:end] for p in places), rows[start:end], True)
    return out


class _GroupedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, ends: Tensor, transposed: bool) -> Tensor:
        ctx.save_for_backward(x, weight, bias)
        ctx.ends, ctx.transposed = ends, transposed
        out = x.new_empty(x.shape[0], weight.shape[-1 if transposed else -2])
        for e, (start, end) in enumerate(_bounds(ends, x.shape[0])):
            if end == start:
                continue
            matrix = weight[e] if transposed else weight[e].t()
            if bias is None:
                torch.mm(x[start:end], matrix, out=out[start:end])
            else:
                torch.addmm(bias[e], x[start:end], matrix, out=out[start:end])
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, weight, bias = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative is asked for
            return _differentiable(ctx, x, weight, bias, grad)
        wants_x, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        made_x = torch.empty_like(x) if wants_x else None
        make = torch.empty_like if weight.shape[0] == ctx.ends.shape[0] else torch.zeros_like
        made_weight = make(weight) if wants_weight else None
        made_bias = make(bias) if wants_bias else None
        for e, (start, end) in enumerate(_bounds(ctx.ends, x.shape[0])):
            given, rows = grad[start:end], x[start:end]
            if made_x is not None and end > start:
                torch.mm(given, weight[e].t() if ctx.transposed else weight[e], out=made_x[start:end])
            if made_weight is not None:
                _product(rows.t() if ctx.transposed else given.t(), given if ctx.transposed else rows, made_weight[e])
            if made_bias is not None:
                torch.sum(given, 0, out=made_bias[e])
        return made_x, made_weight, made_bias, None, None


def _product(left: Tensor, right: Tensor, out: Tensor) -> None:
    """left @ right, zero where there is nothing to add up."""
    if left.shape[1]:
        torch.mm(left, right, out=out)
    else:
        out.zero_()


def _differentiable(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, grad: Tensor) -> Any:
    wanted = [t for t, needed in zip((x, weight, bias), ctx.needs_input_grad, strict=False) if needed and t is not None]
    out = expert_linear(x, weight, bias, ctx.ends, ctx.transposed)
    found = iter(torch.autograd.grad(out, wanted, grad, create_graph=True, allow_unused=True))
    return *(next(found) if needed else None for needed in ctx.needs_input_grad[:3]), None, None


def _on_paper(x: Tensor, weight: Tensor, bias: Tensor | None, transposed: bool) -> Tensor:
    """The form of the result, and what it is computed of, as though one expert had all rows."""
    if transposed:
        return x @ weight[0] if bias is None else x @ weight[0] + bias[0]
    return F.linear(x, weight[0], None if bias is None else bias[0])


def _bounds(ends: Tensor, rows: int) -> list[tuple[int, int]]:
    """Where each expert's rows begin and end. Raises ValueError where they are not all of them."""
    last = ends.tolist()
    if (last[-1] if last else 0) != rows:
        raise ValueError(f"The last expert's rows end at {last[-1] if last else 0}, and there are {rows} of them.")
    return list(zip([0, *last], last, strict=False))


def _segments(x: Tensor, ends: Tensor) -> list[tuple[int, Tensor]]:
    """The experts that have rows, and these."""
    return [(e, x[start:end]) for e, (start, end) in enumerate(_bounds(ends, x.shape[0])) if end > start]
