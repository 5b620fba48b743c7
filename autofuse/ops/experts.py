"""Mixture of experts: which rows belong to which expert, and products of rows with their expert's matrix.

Rows are sorted by expert, so that those of one expert are contiguous. `ends` holds where each expert's rows end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from autofuse.torch_private import FakeTensor
from autofuse.torch_private import functional as F


def expert_rows(chosen: Tensor, capacity: int | None = None) -> tuple[Tensor, ...]:
    """The rows of each expert, sorted by expert.

    Synchronizes with the device once or twice, for any number of experts E.

    Args:
        chosen: shape (E, ...), nonzero where an expert takes an entry.
        capacity: how many of its entries an expert takes, the first ones, as `rows[:capacity]` does; None for all.

    Returns:
        The expert of each row, the index of the row in each further dimension of `chosen`, and `ends`. The indices have
        shape (R,) and the order in which `torch.where(chosen[e])` returns them for each e. `ends` has shape (E,) and is
        on the CPU: expert e has the rows from ends[e - 1] to ends[e].
    """
    expert, *places = chosen.nonzero(as_tuple=True)
    counts = torch.bincount(expert, minlength=chosen.shape[0])
    if capacity is None:
        return expert, *places, counts.cumsum(0).cpu()
    starts = counts.cumsum(0) - counts
    taken = counts.clamp(max=capacity) if capacity >= 0 else (counts + capacity).clamp(min=0)
    kept = torch.arange(expert.shape[0], device=expert.device) - starts[expert] < taken[expert]
    return expert[kept], *(p[kept] for p in places), taken.cumsum(0).cpu()


def counted_ends(counts: Tensor) -> Tensor:
    """The end of each expert's rows, if expert e has counts[e] rows. Shapes: (E,). On the CPU: waits for the device."""
    return counts.to(torch.int64).cumsum(0).cpu()


def experts_of_rows(counts: Tensor) -> Tensor:
    """The expert of each row, if expert e has counts[e] rows. Shapes: counts (E,), result (R,)."""
    counts = counts.to(torch.int64)
    return torch.repeat_interleave(torch.arange(counts.shape[0], device=counts.device), counts)


def rows_in_order(experts: Tensor) -> Tensor:
    """0, 1, ..., R - 1 for R rows that are sorted by expert."""
    return torch.arange(experts.shape[0], device=experts.device)


def segment_rows(counts: Tensor, expert: int) -> tuple[Tensor]:
    """The indices of one expert's rows, if rows are sorted by expert, and expert e has counts[e] rows."""
    counts = counts.to(torch.int64)
    end = counts[: expert + 1].sum()
    return (torch.arange(int(end - counts[expert]), int(end), device=counts.device),)


def joined_rows(counts: Tensor) -> Tensor:
    """Stands in a trace for the results of all experts, before the loop is folded. It is not run."""
    raise NotImplementedError("a loop over experts was not folded")


def all_rows(x: Tensor) -> Tensor:
    """`x`: the rows of all experts, where a loop takes the segment of one expert after the other."""
    return x


def first_rows(rows: Tensor, capacity: int) -> Tensor:
    """rows[:capacity]. A fake tensor, whose number of rows is made up, keeps it."""
    return rows.clone() if isinstance(rows, FakeTensor) else rows[:capacity]


def chosen_experts(indices: Tensor, experts: int) -> Tensor:
    """Whether `indices` equals 0, 1, ..., experts - 1. Shape: (experts, *indices.shape)."""
    numbers = torch.arange(experts, device=indices.device, dtype=indices.dtype)
    return indices.unsqueeze(0) == numbers.view(-1, *[1] * indices.dim())


def expert_linear(x: Tensor, weight: Tensor, bias: Tensor | None, ends: Tensor, transposed: bool = False) -> Tensor:
    """A linear layer on the rows of each expert, one expert after the other, as a loop over experts computes it.

    Args:
        x: shape (R, D), rows sorted by expert.
        weight: shape (E, F, D), or (E, D, F) if `transposed`.
        bias: shape (E, F), or None.
        ends: shape (E,), where each expert's rows end.
        transposed: whether the matrices are (D, F).

    Returns:
        A tensor of shape (R, F).

    Raises:
        ValueError: if the last entry of `ends` is not R.
    """
    if isinstance(ends, FakeTensor):
        return _on_fake_tensors(x, weight, bias, transposed)
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
    """`expert_linear` as one operation: each product is written into the result, and each gradient into one tensor.

    The backward pass of a loop allocates a tensor of all experts' weights for each expert, and adds them up. This
    allocates one.

    Args:
        x: shape (R, D), rows sorted by expert.
        weight: shape (E, F, D), or (E, D, F) if `transposed`.
        bias: shape (E, F), or None.
        ends: shape (E,), where each expert's rows end.
        transposed: whether the matrices are (D, F).

    Returns:
        A tensor of shape (R, F).

    Raises:
        RuntimeError: if the dtypes of x and weight differ, as torch's product does.
        ValueError: if the last entry of `ends` is not R.
    """
    if isinstance(ends, FakeTensor):
        return _on_fake_tensors(x, weight, bias, transposed)
    if torch.is_autocast_enabled(x.device.type):
        dtype = torch.get_autocast_dtype(x.device.type)
        x, weight = x.to(dtype), weight.to(dtype)
        bias = None if bias is None else bias.to(dtype)
    result: Tensor = _GroupedLinear.apply(x, weight, bias, ends, transposed)  # type: ignore[no-untyped-call]
    return result


Expert = nn.Module | tuple[nn.Module, ...]


def each_expert(experts: Sequence[Expert], x: Tensor, ends: Tensor, empty: bool) -> Tensor:
    """Calls each of `experts` on its rows (R, ...), one after the other, and concatenates the results.

    An expert is a module, or several that are called one after the other. If `empty`, an expert without rows is called
    too, so that its parameters get zero gradients.
    """
    if isinstance(ends, FakeTensor):
        return _called(experts[0], x)
    parts, start = [], 0
    for expert, end in zip(experts, ends.tolist(), strict=True):
        if empty or end > start:
            parts.append(_called(expert, x[start:end]))
        start = end
    return torch.cat(parts) if parts else _called(experts[0], x)  # of no rows: only its width and dtype count


def _called(expert: Expert, x: Tensor) -> Tensor:
    for layer in expert if isinstance(expert, tuple) else (expert,):
        x = layer(x)
    return x


def add_expert_rows(out: Tensor, places: tuple[Tensor, ...], rows: Tensor, ends: Tensor) -> Tensor:
    """out[places] += rows, expert by expert, in place. The sums equal those of a loop over experts, bit for bit.

    Shapes: out (*N, ...), one tensor (R,) in `places` for each of the first dimensions of `out`, rows (R, ...), ends
    (E,). An expert has no entry twice, except with a single index: there each is added, as a loop's `index_add_` does.
    """
    if isinstance(ends, FakeTensor):
        return out.index_put_(places, rows, True)
    if len(places) == 1 and not out.is_cuda:  # adds in the order of the rows, which is the order of the loop
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
        if torch.is_grad_enabled():  # the caller differentiates this backward pass too
            return _differentiable_gradients(ctx, x, weight, bias, grad)
        wants_x, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        x_gradient = torch.empty_like(x) if wants_x else None
        # Experts after the last one of `ends` get gradients of zeros.
        make = torch.empty_like if weight.shape[0] == ctx.ends.shape[0] else torch.zeros_like
        weight_gradient = make(weight) if wants_weight else None
        bias_gradient = make(bias) if wants_bias else None
        for e, (start, end) in enumerate(_bounds(ctx.ends, x.shape[0])):
            part_of_grad, rows = grad[start:end], x[start:end]
            if x_gradient is not None and end > start:
                torch.mm(part_of_grad, weight[e].t() if ctx.transposed else weight[e], out=x_gradient[start:end])
            if weight_gradient is not None:
                _product(
                    rows.t() if ctx.transposed else part_of_grad.t(),
                    part_of_grad if ctx.transposed else rows,
                    weight_gradient[e],
                )
            if bias_gradient is not None:
                torch.sum(part_of_grad, 0, out=bias_gradient[e])
        return x_gradient, weight_gradient, bias_gradient, None, None


def _product(left: Tensor, right: Tensor, out: Tensor) -> None:
    """left @ right; zeros if there is nothing to sum."""
    if left.shape[1]:
        torch.mm(left, right, out=out)
    else:
        out.zero_()


def _differentiable_gradients(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, grad: Tensor) -> Any:
    inputs = [t for t, needed in zip((x, weight, bias), ctx.needs_input_grad, strict=False) if needed and t is not None]
    out = expert_linear(x, weight, bias, ctx.ends, ctx.transposed)
    gradients = iter(torch.autograd.grad(out, inputs, grad, create_graph=True, allow_unused=True))
    return *(next(gradients) if needed else None for needed in ctx.needs_input_grad[:3]), None, None


def _on_fake_tensors(x: Tensor, weight: Tensor, bias: Tensor | None, transposed: bool) -> Tensor:
    """A result of the right shape for fake tensors, which have no values: as if one expert had all rows."""
    if transposed:
        return x @ weight[0] if bias is None else x @ weight[0] + bias[0]
    return F.linear(x, weight[0], None if bias is None else bias[0])


def _bounds(ends: Tensor, rows: int) -> list[tuple[int, int]]:
    """The positions at which the rows of each expert begin and end.

    Raises:
        ValueError: if they do not cover all rows.
    """
    last = ends.tolist()
    if (last[-1] if last else 0) != rows:
        raise ValueError(f"The rows of the last expert end at {last[-1] if last else 0}, but there are {rows} rows.")
    return list(zip([0, *last], last, strict=False))


def _segments(x: Tensor, ends: Tensor) -> list[tuple[int, Tensor]]:
    """The experts that have rows, with their rows."""
    return [(e, x[start:end]) for e, (start, end) in enumerate(_bounds(ends, x.shape[0])) if end > start]
