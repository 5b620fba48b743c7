"""Finds where the size of each dimension of a result comes from, for common operations.

A size is a number, Python text over forward's arguments (`x.shape[1]`), or None if it is unknown. None leads to a
stricter guard, never to a wrong one. The rules are looked up by the operation's name. They state only what holds for
all sizes, not just for the example's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from autofuse.fx.trace import selection_sizes
from autofuse.fx.trace.size_origins import Lookup, Rule, Sizes, broadcast, common_size, size, variadic
from autofuse.fx.trace.symbolic_sizes import Length, Size
from autofuse.ir.vocabulary import OPS, SAME_SIZES

_RULES: dict[str, Rule] = dict(selection_sizes.RULES)


def result_sizes(
    name: str, lookup: Lookup, args: Sequence[Any], kwargs: dict[str, Any], results: Sequence[Tensor]
) -> list[Sizes]:
    """Returns the sizes of each result of an operation.

    Args:
        name: The operation's name, as torch_functions.rule_name returns it.
        lookup: Returns the sizes of an operand.
        args: Positional arguments of the call.
        kwargs: Keyword arguments of the call.
        results: The tensors that the operation returned for the example.

    Returns:
        One tuple for each result. A size is None if it is unknown.
    """
    rule = _RULES.get(name)

    def sizes_of(x: Tensor) -> Sizes:
        if not isinstance(x, Tensor):
            raise TypeError("the rule does not cover this call")
        return lookup(x)

    try:
        found = rule(sizes_of, args, kwargs) if rule else None
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):  # the rule does not cover this call
        found = None
    proposals = (
        found if isinstance(found, list) else [found] * len(results) if found is not None else [None] * len(results)
    )
    if len(proposals) != len(results):
        proposals = [None] * len(results)
    return [_drop_contradicted(p, r) for p, r in zip(proposals, results, strict=True)]


def _drop_contradicted(proposed: Sizes | None, result: Tensor) -> Sizes:
    """Returns `proposed` without the sizes that the example contradicts."""
    actual = tuple(int(n) for n in result.shape)
    if proposed is None or len(proposed) != len(actual):
        return (None,) * len(actual)
    return tuple(p if not isinstance(p, int) or p == a else None for p, a in zip(proposed, actual, strict=True))


def _rule(names: str) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        _RULES.update(dict.fromkeys(names.split(), rule))
        return rule

    return register


@_rule(" ".join(name for op in SAME_SIZES for name in OPS[op].last_names))
@_rule(
    "int pow abs sin cos cumsum masked_fill_ relu_ add_ sub_ "
    "mul_ div_ normalize roll flip sign round floor ceil tan atan sinh cosh asin acos log1p log2 log10 expm1 elu "
    "leaky_relu hardsigmoid selu celu logsigmoid nan_to_num erfc isnan isinf isfinite clamp_min clamp_max cumprod "
    "softmin fill_ zero_ neg_ exp_ sqrt_ rsqrt_ tanh_ sigmoid_ clamp_ triu_ tril_ rand_like randn_like empty_like "
    "batch_norm group_norm instance_norm conj positive requires_grad_"
)
def _first_operand_sizes(lookup: Lookup, args: Sequence[Any], kwargs: dict[str, Any]) -> Sizes:
    return lookup(args[0] if args else kwargs["input"])


@_rule(
    "add sub mul div true_divide truediv floordiv mod where eq ne lt le gt ge and or logical_and logical_or maximum "
    "minimum addcmul addcdiv lerp fmod remainder floor_divide bitwise_and bitwise_or bitwise_xor xor atan2 hypot rsub"
)
def _elementwise_sizes(lookup: Lookup, args: Sequence[Any], kwargs: dict[str, Any]) -> Sizes:
    return broadcast([lookup(a) for a in (*args, *kwargs.values()) if isinstance(a, Tensor)])


@_rule("view_as_complex")
def _view_as_complex(lookup: Lookup, args: Sequence[Any], kwargs: dict[str, Any]) -> Sizes:
    return lookup(args[0])[:-1]


@_rule("view_as_real")
def _view_as_real(lookup: Lookup, args: Sequence[Any], kwargs: dict[str, Any]) -> Sizes:
    return (*lookup(args[0]), 2)


@_rule("transpose swapaxes swapdims")
def _transpose(lookup: Lookup, args: Sequence[Any], kwargs: dict[str, Any]) -> Sizes:
    sizes = list(lookup(args[0]))
    first, second = (*args[1:], *kwargs.values())
    sizes[first], sizes[second] = sizes[second], sizes[first]
    return tuple(sizes)


@_rule("mT t T")
def _matrix_transpose(lookup: Lookup, args: Sequence[Any], kwargs: dict[str, Any]) -> Sizes | None:
    *front, rows, columns = lookup(args[0])
    return (*front, columns, rows)


@_rule("permute")
def _permute(lookup: Lookup, args: Sequence[Any], kwargs: dict[str, Any]) -> Sizes:
    sizes = lookup(args[0])
    return tuple(sizes[d] for d in variadic(args[1:], kwargs))


@_rule("unsqueeze")
def _unsqueeze(lookup: Lookup, args: Sequence[Any], kwargs: dict[str, Any]) -> Sizes:
    sizes, at = list(lookup(args[0])), (*args[1:], *kwargs.values())[0]
    sizes.insert(at if at >= 0 else len(sizes) + 1 + at, 1)
    return tuple(sizes)


@_rule("view reshape")
def _view(lookup: Lookup, args: Sequence[Any], kwargs: dict[str, Any]) -> Sizes:
    wanted = variadic(args[1:], kwargs)
    sizes = [size(w) for w in wanted]
    for at, w in enumerate(wanted):
        if isinstance(w, int) and w == -1:
            sizes[at] = _inferred_size(list(lookup(args[0])), sizes[:at] + sizes[at + 1 :])
    return tuple(sizes)


def _inferred_size(source: list[Size], others: list[Size]) -> Size:
    """Returns the size that -1 stands for: the sizes of `source` divided by `others`."""
    rest: list[Size] = []
    for s in others:
        if s in source and s is not None:
            source.remove(s)
        else:
            rest.append(s)
    if None in source or None in rest:
        return None
    texts, divisors = [s for s in source if isinstance(s, str)], [s for s in rest if isinstance(s, str)]
    top, bottom = _product(source), _product(rest)
    if divisors or not texts and top % bottom:  # a text that did not cancel may not divide the product
        return None
    if not texts:
        return top // bottom
    whole = " * ".join([*texts, *([str(top)] if top != 1 else [])])
    return f"({whole} // {bottom})" if bottom != 1 else f"({whole})"


def _product(sizes: list[Size]) -> int:
    result = 1
    for s in sizes:
        result *= s if isinstance(s, int) else 1
    return result


@_rule("expand")
def _expand(lookup: Lookup, args: Sequence[Any], kwargs: dict[str, Any]) -> Sizes:
    source, wanted = lookup(args[0]), variadic(args[1:], kwargs)
    source = (None,) * (len(wanted) - len(source)) + source
    return tuple(h if isinstance(w, int) and w == -1 else size(w) for h, w in zip(source, wanted, strict=True))


@_rule("expand_as view_as reshape_as")
def _second_operand_sizes(lookup: Lookup, args: Sequence[Any], kwargs: dict[str, Any]) -> Sizes:
    return lookup((*args, *kwargs.values())[1])


@_rule("getattr")
def _attribute(lookup: Lookup, args: Sequence[Any], kwargs: dict[str, Any]) -> Sizes | None:
    """Returns the sizes of `x.mT`, and of `x.T` if x is a matrix."""
    *front, rows, columns = lookup(args[0])
    return (*front, columns, rows) if args[1] == "mT" or args[1] == "T" and not front else None


@_rule("ones zeros empty rand randn")
def _new_tensor(lookup: Lookup, args: Sequence[Any], kwargs: dict[str, Any]) -> Sizes:
    return tuple(map(size, variadic(args, {k: v for k, v in kwargs.items() if k == "size"})))


@_rule("full")
def _full(lookup: Lookup, args: Sequence[Any], kwargs: dict[str, Any]) -> Sizes:
    return tuple(map(size, args[0] if args else kwargs["size"]))


@_rule("arange")
def _arange(lookup: Lookup, args: Sequence[Any], kwargs: dict[str, Any]) -> Sizes:
    return (size(args[0]) if len(args) == 1 else None,)  # with a start or a step, the length is a quotient


@_rule("chunk")
def _chunk(lookup: Lookup, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Sizes]:
    sizes, dim, whole = _split_dimension(lookup, args, kwargs)
    wanted = args[1] if len(args) > 1 else kwargs["chunks"]
    # torch rounds the size of a chunk up, and may then return fewer chunks than requested.
    return _part_sizes(sizes, dim, whole, [-(-whole // wanted)] * wanted)


@_rule("split")
def _split(lookup: Lookup, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Sizes]:
    sizes, dim, whole = _split_dimension(lookup, args, kwargs)
    wanted = args[1] if len(args) > 1 else next(v for k, v in kwargs.items() if k != "dim")
    each = [int(w) for w in wanted] if isinstance(wanted, (list, tuple)) else [int(wanted)] * -(-whole // int(wanted))
    return _part_sizes(sizes, dim, whole, each)


def _split_dimension(lookup: Lookup, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Sizes, int, int]:
    sizes = lookup(args[0])
    dim = kwargs.get("dim", args[2] if len(args) > 2 else 0) % len(sizes)
    whole = sizes[dim]
    if not isinstance(whole, int):
        raise ValueError("the lengths of the parts depend on a size that varies")
    return sizes, dim, whole


def _part_sizes(sizes: Sizes, dim: int, whole: int, each: list[int]) -> list[Sizes]:
    lengths, left = list[int](), whole
    for n in each:
        lengths.append(min(n, left))
        left -= lengths[-1]
    return [tuple(n if d == dim else s for d, s in enumerate(sizes)) for n in lengths if n]


@_rule("unbind")
def _unbind(lookup: Lookup, args: Sequence[Any], kwargs: dict[str, Any]) -> Sizes:
    sizes = list(lookup(args[0]))
    del sizes[kwargs.get("dim", args[1] if len(args) > 1 else 0)]
    return tuple(sizes)


@_rule("matmul bmm")
def _matmul(lookup: Lookup, args: Sequence[Any], kwargs: dict[str, Any]) -> Sizes | None:
    left, right = lookup(args[0]), lookup((*args[1:], *kwargs.values())[0])
    if len(left) < 2 or len(right) < 2:
        return None
    front = broadcast([left[:-2], right[:-2]]) if len(left) > 2 or len(right) > 2 else ()
    return (*front, left[-2], right[-1])


@_rule("rotary")
def _rotary(lookup: Lookup, args: Sequence[Any], kwargs: dict[str, Any]) -> Sizes:
    sizes = lookup(args[0])
    return (*broadcast([lookup(a)[:-1] for a in args[:3]]), sizes[-1])


@_rule("linear")
def _linear(lookup: Lookup, args: Sequence[Any], kwargs: dict[str, Any]) -> Sizes:
    return (*lookup(args[0])[:-1], lookup(args[1] if len(args) > 1 else kwargs["weight"])[0])


@_rule("embedding")
def _embedding(lookup: Lookup, args: Sequence[Any], kwargs: dict[str, Any]) -> Sizes:
    return (*lookup(args[0]), lookup(args[1])[1])


@_rule("einsum")
def _einsum(lookup: Lookup, args: Sequence[Any], kwargs: dict[str, Any]) -> Sizes | None:
    inputs, arrow, output = str(args[0]).replace(" ", "").partition("->")
    if not arrow or "." in inputs:
        return None
    letters: dict[str, list[Size]] = {}
    operands = args[1] if len(args) == 2 and isinstance(args[1], (list, tuple)) else args[1:]
    for term, operand in zip(inputs.split(","), operands, strict=True):
        for letter, s in zip(term, lookup(operand), strict=True):
            letters.setdefault(letter, []).append(s)
    return tuple(common_size(letters[letter]) for letter in output)


@_rule("mean sum amax amin var std prod all any")
def _reduce(lookup: Lookup, args: Sequence[Any], kwargs: dict[str, Any]) -> Sizes | None:
    sizes, dim = list(lookup(args[0])), kwargs.get("dim", args[1] if len(args) > 1 else None)
    if not isinstance(dim, int):
        return None
    sizes[dim] = 1
    if kwargs.get("keepdim") is True or len(args) > 2 and args[-1] is True:
        return tuple(sizes)
    del sizes[dim]
    return tuple(sizes)


@_rule("cat concat stack")
def _concatenate(lookup: Lookup, args: Sequence[Any], kwargs: dict[str, Any]) -> Sizes:
    sizes, dim = list(lookup(args[0][0])), kwargs.get("dim", args[1] if len(args) > 1 else 0)
    sizes[dim] = None
    return tuple(sizes)


@_rule("getitem")
def _getitem(lookup: Lookup, args: Sequence[Any], kwargs: dict[str, Any]) -> Sizes | None:
    index = args[1] if isinstance(args[1], tuple) else (args[1],)
    if any(isinstance(i, Tensor) for i in index):
        return selection_sizes.selected_by_tensors(lookup, lookup(args[0]), index)
    source, sizes = list(lookup(args[0])), list[Size]()
    missing = len(source) - sum(i is not None and i is not ... for i in index)
    for i in index if ... in [x for x in index if not isinstance(x, Tensor)] else (*index, ...):
        if i is ...:
            sizes, source = sizes + source[:missing], source[missing:]
        elif i is None:
            sizes.append(1)
        elif isinstance(i, slice):
            sizes.append(_slice_size(source.pop(0), i))
        elif isinstance(i, (int, Length)) and not isinstance(i, bool):
            source.pop(0)
        else:
            return None
    return tuple(sizes)


def _slice_size(whole: Size, part: slice) -> Size:
    if part.step not in (None, 1) or whole is None:
        return None
    if part.start is None or isinstance(part.start, int) and part.start == 0:
        if part.stop is None:
            return whole
        stop = size(part.stop)
        return (
            None
            if stop is None
            else min(stop, whole)
            if isinstance(stop, int) and isinstance(whole, int)
            else f"min({stop}, {whole})"
        )
    return None
