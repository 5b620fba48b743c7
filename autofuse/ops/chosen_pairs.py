"""Mixtures of experts, computed for the chosen pairs of a token and an expert only. Each pair is a row."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from autofuse.ops.experts import add_expert_rows, chosen_experts, expert_rows


def rows_of_tokens(x: Tensor, dims: int, token: Tensor) -> Tensor:
    """x[token], where the first `dims` dimensions of `x` are those of the tokens. Shape of token: (R,)."""
    return (x if dims == 1 else x.flatten(0, dims - 1))[token]


def entries_of_rows(x: Tensor, experts_first: bool, experts: int, token: Tensor, expert: Tensor) -> Tensor:
    """The entry of each row's expert and token.

    Shapes: `x` is (E, *T) or (E * T) if `experts_first`, else (*T, E); token and expert (R,).
    """
    if experts_first:
        return x.reshape(experts, -1)[expert, token]
    return x.reshape(-1, experts)[token, expert]


def sum_over_experts(rows: Tensor, token: Tensor, ends: Tensor, like: Tensor, dims: tuple[int, ...]) -> Tensor:
    """The sum of the rows (R, ...) of each token. Shape: (*T, ...), where T are the sizes of `dims` of `like`."""
    sizes = [like.shape[d] for d in dims]
    out = rows.new_zeros((math.prod(sizes), *rows.shape[1:]))
    return add_expert_rows(out, (token,), rows, ends).reshape(*sizes, *rows.shape[1:])


def chosen_rows(index: Tensor, experts: int, choices: int) -> tuple[Tensor, ...]:
    """The rows of each expert, sorted by expert: their experts (R,), their tokens (R,), and `ends` as in expert_rows.

    Shapes: index (*T, K), or (*T) with one choice for each token. A token that chooses an expert twice has one row.
    """
    chosen = chosen_experts(index.reshape(-1, choices), experts)
    return expert_rows(chosen.any(-1))


def sparse_product(sparse: Tensor, mask: Tensor, dense: Tensor, equation: str) -> Tensor:
    """einsum(equation, sparse, dense), computed from the entries of `sparse` that `mask` sets.

    Synchronizes with the device once.

    Args:
        sparse: a tensor that is zero where `mask` is.
        mask: shape of `sparse`, without a gradient.
        dense: a tensor with one dimension that `sparse` lacks.
        equation: explicit, with one letter for each dimension.
    """
    operands, result = equation.split("->")
    of_sparse, of_dense = operands.split(",")
    if torch.is_autocast_enabled(dense.device.type):
        dense = dense.to(torch.get_autocast_dtype(dense.device.type))
    entries = dict(zip(of_sparse, mask.nonzero(as_tuple=True), strict=True))
    shared, (own,) = [c for c in of_dense if c in of_sparse], [c for c in of_dense if c not in of_sparse]
    rows = dense.permute(*[of_dense.index(c) for c in [*shared, own]])[tuple(entries[c] for c in shared)]
    rows = rows * sparse[tuple(entries.values())].to(rows.dtype).unsqueeze(-1)
    kept = [c for c in result if c != own]
    sizes = [sparse.shape[of_sparse.index(c)] for c in kept]
    at = torch.zeros_like(next(iter(entries.values())))
    for c, n in zip(kept, sizes, strict=True):
        at = at * n + entries[c]
    out = rows.new_zeros((math.prod(sizes), rows.shape[-1])).index_add(0, at, rows).reshape(*sizes, rows.shape[-1])
    return out.permute(*[[*kept, own].index(c) for c in result])


def masks_product(masks: tuple[Tensor, ...], like: Tensor) -> Tensor:
    """The entries at which all masks are set, in the shape of `like`."""
    found = masks[0] != 0
    for mask in masks[1:]:
        found = found & (mask != 0)
    return found.expand(like.shape)


def masks_sum(masks: tuple[Tensor, ...], like: Tensor) -> Tensor:
    """The entries at which one of the masks is set, in the shape of `like`."""
    found = masks[0] != 0
    for mask in masks[1:]:
        found = found | (mask != 0)
    return found.expand(like.shape)


def mask_over(mask: Tensor, dim: int) -> Tensor:
    """The entries at which a mask is set anywhere along a dimension."""
    return (mask != 0).any(dim)
