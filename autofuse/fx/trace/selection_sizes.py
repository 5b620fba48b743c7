"""Rules for the sizes of results of operations that sort, select, scatter, group or repeat.

`RULES` maps the name of an operation to its rule, as in size_sources.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from autofuse.fx.trace.size_origins import Lookup, Rule, Sizes, broadcast, product, size, variadic
from autofuse.fx.trace.symbolic_sizes import Length, Size

_INDICES = (torch.int64, torch.int32)  # a boolean index selects a number of rows that depends on its numbers


def _argument(args: Sequence[Any], kwargs: dict[str, Any], place: int, *names: str, default: Any = None) -> Any:
    return args[place] if len(args) > place else next((kwargs[n] for n in names if n in kwargs), default)


def _first(lookup: Lookup, args: Sequence[Any], kwargs: dict[str, Any]) -> Sizes:
    return lookup(_argument(args, kwargs, 0, "input"))


def _pair(lookup: Lookup, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Sizes]:
    return [_first(lookup, args, kwargs)] * 2


def _topk(lookup: Lookup, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Sizes]:
    sizes = list(_first(lookup, args, kwargs))
    sizes[_argument(args, kwargs, 2, "dim", default=-1)] = size(_argument(args, kwargs, 1, "k"))
    return [tuple(sizes)] * 2


def _extreme(lookup: Lookup, args: Sequence[Any], kwargs: dict[str, Any]) -> Sizes | list[Sizes] | None:
    """Returns the sizes of `max` and `min`: of two tensors, or over a dimension, with indices."""
    other = _argument(args, kwargs, 1, "other")
    if isinstance(other, Tensor):
        return broadcast([_first(lookup, args, kwargs), lookup(other)])
    reduced = _over_dimension(lookup, args, kwargs)
    return None if reduced is None else [reduced] * 2


def _over_dimension(lookup: Lookup, args: Sequence[Any], kwargs: dict[str, Any]) -> Sizes | None:
    sizes, dim = list[Size](_first(lookup, args, kwargs)), _argument(args, kwargs, 1, "dim")
    if not isinstance(dim, int) or isinstance(dim, bool):
        return None
    sizes[dim] = 1
    if not _argument(args, kwargs, 2, "keepdim", default=False):
        del sizes[dim]
    return tuple(sizes)


def _gather(lookup: Lookup, args: Sequence[Any], kwargs: dict[str, Any]) -> Sizes:
    return lookup(_argument(args, kwargs, 2, "index"))


def _index_select(lookup: Lookup, args: Sequence[Any], kwargs: dict[str, Any]) -> Sizes:
    sizes = list(_first(lookup, args, kwargs))
    sizes[_argument(args, kwargs, 1, "dim")] = lookup(_argument(args, kwargs, 2, "index"))[0]
    return tuple(sizes)


def _select(lookup: Lookup, args: Sequence[Any], kwargs: dict[str, Any]) -> Sizes:
    sizes = list(_first(lookup, args, kwargs))
    del sizes[_argument(args, kwargs, 1, "dim")]
    return tuple(sizes)


def _narrow(lookup: Lookup, args: Sequence[Any], kwargs: dict[str, Any]) -> Sizes:
    sizes = list(_first(lookup, args, kwargs))
    sizes[_argument(args, kwargs, 1, "dim")] = size(_argument(args, kwargs, 3, "length"))
    return tuple(sizes)


def selected_by_tensors(lookup: Lookup, source: Sizes, index: tuple[Any, ...]) -> Sizes | None:
    """Returns the sizes of x[index], where `index` holds tensors of integers.

    Args:
        lookup: Returns the sizes of an operand.
        source: The sizes of x.
        index: Tensors, numbers and full slices. The tensors are neighbours, so their dimensions stand in their place.
    """
    if any(i is None or i is ... or isinstance(i, slice) and i != slice(None) for i in index):
        return None
    places = [at for at, i in enumerate(index) if not isinstance(i, slice)]
    if places != list(range(places[0], places[-1] + 1)):
        return None
    chosen = [index[at] for at in places]
    if any(isinstance(i, Tensor) and i.dtype not in _INDICES or isinstance(i, (bool, list)) for i in chosen):
        return None
    rows = broadcast([lookup(i) for i in chosen if isinstance(i, Tensor)])
    return (*source[: places[0]], *rows, *source[places[-1] + 1 :])


def _mm(lookup: Lookup, args: Sequence[Any], kwargs: dict[str, Any]) -> Sizes:
    (rows, _), (_, columns) = _first(lookup, args, kwargs), lookup(_argument(args, kwargs, 1, "mat2"))
    return rows, columns


def _grouped_mm(lookup: Lookup, args: Sequence[Any], kwargs: dict[str, Any]) -> Sizes:
    """Returns the sizes of the product of rows that are sorted by group with the matrix of their group."""
    (rows, _), (_, _, columns) = lookup(args[0]), lookup(args[1])
    return rows, columns


def _histc(lookup: Lookup, args: Sequence[Any], kwargs: dict[str, Any]) -> Sizes:
    return (size(_argument(args, kwargs, 1, "bins", default=100)),)


def _one_hot(lookup: Lookup, args: Sequence[Any], kwargs: dict[str, Any]) -> Sizes:
    return (*_first(lookup, args, kwargs), size(_argument(args, kwargs, 1, "num_classes")))


def _flatten(lookup: Lookup, args: Sequence[Any], kwargs: dict[str, Any]) -> Sizes:
    sizes = _first(lookup, args, kwargs)
    start = _argument(args, kwargs, 1, "start_dim", default=0) % len(sizes)
    end = _argument(args, kwargs, 2, "end_dim", default=-1) % len(sizes) + 1
    return (*sizes[:start], product(sizes[start:end]), *sizes[end:])


def _squeeze(lookup: Lookup, args: Sequence[Any], kwargs: dict[str, Any]) -> Sizes | None:
    sizes, dim = list(_first(lookup, args, kwargs)), _argument(args, kwargs, 1, "dim")
    if not isinstance(sizes[dim], int):  # it may be 1 in another call
        return None
    if sizes[dim] == 1:
        del sizes[dim]
    return tuple(sizes)


def _repeat(lookup: Lookup, args: Sequence[Any], kwargs: dict[str, Any]) -> Sizes:
    source, times = lookup(args[0]), [size(n) for n in variadic(args[1:], kwargs)]
    source = (1,) * (len(times) - len(source)) + source
    return tuple(product(pair) for pair in zip(source, times, strict=True))


def _repeat_interleave(lookup: Lookup, args: Sequence[Any], kwargs: dict[str, Any]) -> Sizes | None:
    times, dim = _argument(args, kwargs, 1, "repeats"), _argument(args, kwargs, 2, "dim")
    if not isinstance(times, (int, Length)) or "output_size" in kwargs:
        return None
    sizes = list(_first(lookup, args, kwargs))
    sizes[dim] = product((sizes[dim], size(times)))
    return tuple(sizes)


def _attention(lookup: Lookup, args: Sequence[Any], kwargs: dict[str, Any]) -> Sizes:
    query, key, value = (lookup(_argument(args, kwargs, at, n)) for at, n in enumerate(("query", "key", "value")))
    return (*broadcast([query[:-2], key[:-2], value[:-2]]), query[-2], value[-1])


def _new(lookup: Lookup, args: Sequence[Any], kwargs: dict[str, Any]) -> Sizes:
    return tuple(map(size, variadic(args[1:], {k: v for k, v in kwargs.items() if k == "size"})))


def _new_full(lookup: Lookup, args: Sequence[Any], kwargs: dict[str, Any]) -> Sizes:
    return tuple(map(size, _argument(args, kwargs, 1, "size")))


_NAMES: dict[Rule, str] = {
    _first: "argsort scatter scatter_ scatter_add scatter_add_ scatter_reduce scatter_reduce_ index_add index_add_ "
            "index_put index_put_ index_copy index_copy_ index_fill index_fill_ logcumsumexp",
    _pair: "sort cummax cummin",
    _topk: "topk",
    _extreme: "max min",
    _over_dimension: "argmax argmin logsumexp",
    _gather: "gather",
    _index_select: "index_select",
    _select: "select",
    _narrow: "narrow",
    _mm: "mm",
    _grouped_mm: "grouped_mm _grouped_mm",
    _histc: "histc",
    _one_hot: "one_hot",
    _flatten: "flatten",
    _squeeze: "squeeze",
    _repeat: "repeat",
    _repeat_interleave: "repeat_interleave",
    _attention: "scaled_dot_product_attention",
    _new: "new_zeros new_ones new_empty",
    _new_full: "new_full",
}  # fmt: skip
RULES: dict[str, Rule] = {name: rule for rule, names in _NAMES.items() for name in names.split()}
