"""Where the size of each dimension comes from, as far as common operations tell.

A size is a number, Python text over forward's arguments (`x.shape[1]`), or None where nothing is known; None costs a
stricter guard, never a wrong one. Rules are by name: they state only what holds for all sizes, not for the example.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from autofuse.fx.trace.symbolic_sizes import Length, Size
from autofuse.ir.vocabulary import OPS, SAME_SIZES

Sizes = tuple[Size, ...]
Look = Callable[[Tensor], Sizes]  # the sizes of an operand
Rule = Callable[[Look, Sequence[Any], dict[str, Any]], "Sizes | list[Sizes] | None"]

_RULES: dict[str, Rule] = {}


def result_sizes(
    name: str, look: Look, args: Sequence[Any], kwargs: dict[str, Any], results: Sequence[Tensor]
) -> list[Sizes]:
    """The sizes of each result of the operation called `name`."""
    rule = _RULES.get(name)

    def sizes_of(x: Tensor) -> Sizes:
        if not isinstance(x, Tensor):
            raise TypeError("a call that the rule was not written for")
        return look(x)

    try:
        found = rule(sizes_of, args, kwargs) if rule else None
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):  # a call that the rule was not written for
        found = None
    proposals = (
        found if isinstance(found, list) else [found] * len(results) if found is not None else [None] * len(results)
    )
    if len(proposals) != len(results):
        proposals = [None] * len(results)
    return [_checked(p, r) for p, r in zip(proposals, results, strict=True)]


def _checked(proposed: Sizes | None, result: Tensor) -> Sizes:
    """`proposed`, unless the example contradicts it."""
    actual = tuple(int(n) for n in result.shape)
    if proposed is None or len(proposed) != len(actual):
        return (None,) * len(actual)
    return tuple(p if not isinstance(p, int) or p == a else None for p, a in zip(proposed, actual, strict=True))


def size(x: Any) -> Size:
    """The provenance of a size that was passed to an operation."""
    return x.size if isinstance(x, Length) else int(x) if isinstance(x, int) and x >= 0 else None


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
def _same(look: Look, args: Sequence[Any], kwargs: dict[str, Any]) -> Sizes:
    return look(args[0] if args else kwargs["input"])


@_rule(
    "add sub mul div true_divide truediv floordiv mod where eq ne lt le gt ge and or logical_and logical_or maximum "
    "minimum addcmul addcdiv lerp fmod remainder floor_divide bitwise_and bitwise_or bitwise_xor xor atan2 hypot rsub"
)
def _elementwise(look: Look, args: Sequence[Any], kwargs: dict[str, Any]) -> Sizes:
    return broadcast([look(a) for a in (*args, *kwargs.values()) if isinstance(a, Tensor)])


def broadcast(operands: list[Sizes]) -> Sizes:
    """The sizes of operands that are broadcast against each other."""
    rank = max(map(len, operands))
    return tuple(_common([o[d] for o in operands if len(o) >= -d]) for d in range(-rank, 0))


def _common(sizes: list[Size]) -> Size:
    """A number above 1 wins, for everything else must be equal to it or 1; two unlike texts may each be 1."""
    for s in sizes:
        if isinstance(s, int) and s != 1:
            return s
    others = {s for s in sizes if s != 1}
    return others.pop() if len(others) == 1 else None if others else 1


@_rule("view_as_complex")
def _pairs_joined(look: Look, args: Sequence[Any], kwargs: dict[str, Any]) -> Sizes:
    return look(args[0])[:-1]


@_rule("view_as_real")
def _pairs_split(look: Look, args: Sequence[Any], kwargs: dict[str, Any]) -> Sizes:
    return (*look(args[0]), 2)


@_rule("transpose swapaxes swapdims")
def _transposed(look: Look, args: Sequence[Any], kwargs: dict[str, Any]) -> Sizes:
    sizes = list(look(args[0]))
    first, second = (*args[1:], *kwargs.values())
    sizes[first], sizes[second] = sizes[second], sizes[first]
    return tuple(sizes)


@_rule("mT t T")
def _swapped(look: Look, args: Sequence[Any], kwargs: dict[str, Any]) -> Sizes | None:
    *front, rows, columns = look(args[0])
    return (*front, columns, rows)


@_rule("permute")
def _permuted(look: Look, args: Sequence[Any], kwargs: dict[str, Any]) -> Sizes:
    sizes = look(args[0])
    return tuple(sizes[d] for d in _flat(args[1:], kwargs))


@_rule("unsqueeze")
def _unsqueezed(look: Look, args: Sequence[Any], kwargs: dict[str, Any]) -> Sizes:
    sizes, at = list(look(args[0])), (*args[1:], *kwargs.values())[0]
    sizes.insert(at if at >= 0 else len(sizes) + 1 + at, 1)
    return tuple(sizes)


@_rule("view reshape")
def _viewed(look: Look, args: Sequence[Any], kwargs: dict[str, Any]) -> Sizes:
    wanted = _flat(args[1:], kwargs)
    sizes = [size(w) for w in wanted]
    for at, w in enumerate(wanted):
        if isinstance(w, int) and w == -1:
            sizes[at] = _inferred(list(look(args[0])), sizes[:at] + sizes[at + 1 :])
    return tuple(sizes)


def _inferred(have: list[Size], others: list[Size]) -> Size:
    """What -1 stands for: what is left of `have` once `others` are divided out."""
    rest: list[Size] = []
    for s in others:
        if s in have and s is not None:
            have.remove(s)
        else:
            rest.append(s)
    if None in have or None in rest:
        return None
    texts, divisors = [s for s in have if isinstance(s, str)], [s for s in rest if isinstance(s, str)]
    top, bottom = _product(have), _product(rest)
    if divisors or not texts and top % bottom:
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
def _expanded(look: Look, args: Sequence[Any], kwargs: dict[str, Any]) -> Sizes:
    have, wanted = look(args[0]), _flat(args[1:], kwargs)
    have = (None,) * (len(wanted) - len(have)) + have
    return tuple(h if isinstance(w, int) and w == -1 else size(w) for h, w in zip(have, wanted, strict=True))


@_rule("expand_as view_as reshape_as")
def _as_other(look: Look, args: Sequence[Any], kwargs: dict[str, Any]) -> Sizes:
    return look((*args, *kwargs.values())[1])


@_rule("getattr")
def _read(look: Look, args: Sequence[Any], kwargs: dict[str, Any]) -> Sizes | None:
    """x.T of a matrix, x.mT."""
    *front, rows, columns = look(args[0])
    return (*front, columns, rows) if args[1] == "mT" or args[1] == "T" and not front else None


@_rule("ones zeros empty rand randn")
def _made(look: Look, args: Sequence[Any], kwargs: dict[str, Any]) -> Sizes:
    return tuple(map(size, _flat(args, {k: v for k, v in kwargs.items() if k == "size"})))


@_rule("full")
def _filled(look: Look, args: Sequence[Any], kwargs: dict[str, Any]) -> Sizes:
    return tuple(map(size, args[0] if args else kwargs["size"]))


@_rule("arange")
def _ranged(look: Look, args: Sequence[Any], kwargs: dict[str, Any]) -> Sizes:
    return (size(args[0]) if len(args) == 1 else None,)


@_rule("chunk")
def _chunked(look: Look, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Sizes]:
    sizes, dim, whole = _along(look, args, kwargs)
    wanted = args[1] if len(args) > 1 else kwargs["chunks"]
    return _parts(sizes, dim, whole, [-(-whole // wanted)] * wanted)


@_rule("split")
def _split(look: Look, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Sizes]:
    sizes, dim, whole = _along(look, args, kwargs)
    wanted = args[1] if len(args) > 1 else next(v for k, v in kwargs.items() if k != "dim")
    each = [int(w) for w in wanted] if isinstance(wanted, (list, tuple)) else [int(wanted)] * -(-whole // int(wanted))
    return _parts(sizes, dim, whole, each)


def _along(look: Look, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Sizes, int, int]:
    sizes = look(args[0])
    dim = kwargs.get("dim", args[2] if len(args) > 2 else 0) % len(sizes)
    whole = sizes[dim]
    if not isinstance(whole, int):
        raise ValueError("how long the parts are depends on a size that varies")
    return sizes, dim, whole


def _parts(sizes: Sizes, dim: int, whole: int, each: list[int]) -> list[Sizes]:
    lengths, left = list[int](), whole
    for n in each:
        lengths.append(min(n, left))
        left -= lengths[-1]
    return [tuple(n if d == dim else s for d, s in enumerate(sizes)) for n in lengths if n]


@_rule("unbind")
def _unbound(look: Look, args: Sequence[Any], kwargs: dict[str, Any]) -> Sizes:
    sizes = list(look(args[0]))
    del sizes[kwargs.get("dim", args[1] if len(args) > 1 else 0)]
    return tuple(sizes)


@_rule("matmul bmm")
def _matmul(look: Look, args: Sequence[Any], kwargs: dict[str, Any]) -> Sizes | None:
    left, right = look(args[0]), look((*args[1:], *kwargs.values())[0])
    if len(left) < 2 or len(right) < 2:
        return None
    front = broadcast([left[:-2], right[:-2]]) if len(left) > 2 or len(right) > 2 else ()
    return (*front, left[-2], right[-1])


@_rule("rotary")
def _rotary(look: Look, args: Sequence[Any], kwargs: dict[str, Any]) -> Sizes:
    sizes = look(args[0])
    return (*broadcast([look(a)[:-1] for a in args[:3]]), sizes[-1])


@_rule("linear")
def _linear(look: Look, args: Sequence[Any], kwargs: dict[str, Any]) -> Sizes:
    return (*look(args[0])[:-1], look(args[1] if len(args) > 1 else kwargs["weight"])[0])


@_rule("embedding")
def _embedding(look: Look, args: Sequence[Any], kwargs: dict[str, Any]) -> Sizes:
    return (*look(args[0]), look(args[1])[1])


@_rule("einsum")
def _einsum(look: Look, args: Sequence[Any], kwargs: dict[str, Any]) -> Sizes | None:
    inputs, arrow, output = str(args[0]).replace(" ", "").partition("->")
    if not arrow or "." in inputs:
        return None
    letters: dict[str, list[Size]] = {}
    operands = args[1] if len(args) == 2 and isinstance(args[1], (list, tuple)) else args[1:]
    for term, operand in zip(inputs.split(","), operands, strict=True):
        for letter, s in zip(term, look(operand), strict=True):
            letters.setdefault(letter, []).append(s)
    return tuple(_common(letters[letter]) for letter in output)


@_rule("mean sum amax amin var std prod all any")
def _reduced(look: Look, args: Sequence[Any], kwargs: dict[str, Any]) -> Sizes | None:
    sizes, dim = list(look(args[0])), kwargs.get("dim", args[1] if len(args) > 1 else None)
    if not isinstance(dim, int):
        return None
    sizes[dim] = 1
    if kwargs.get("keepdim") is True or len(args) > 2 and args[-1] is True:
        return tuple(sizes)
    del sizes[dim]
    return tuple(sizes)


@_rule("cat concat stack")
def _joined(look: Look, args: Sequence[Any], kwargs: dict[str, Any]) -> Sizes:
    sizes, dim = list(look(args[0][0])), kwargs.get("dim", args[1] if len(args) > 1 else 0)
    sizes[dim] = None
    return tuple(sizes)


@_rule("getitem")
def _item(look: Look, args: Sequence[Any], kwargs: dict[str, Any]) -> Sizes | None:
    index = args[1] if isinstance(args[1], tuple) else (args[1],)
    have, sizes = list(look(args[0])), list[Size]()
    missing = len(have) - sum(i is not None and i is not ... for i in index)
    for i in index if ... in [x for x in index if not isinstance(x, Tensor)] else (*index, ...):
        if i is ...:
            sizes, have = sizes + have[:missing], have[missing:]
        elif i is None:
            sizes.append(1)
        elif isinstance(i, slice):
            sizes.append(_sliced(have.pop(0), i))
        elif isinstance(i, (int, Length)) and not isinstance(i, bool):
            have.pop(0)
        else:
            return None
    return tuple(sizes)


def _sliced(whole: Size, part: slice) -> Size:
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


def _flat(values: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """The sizes or dimensions of a variadic call: view(a, b) or view((a, b))."""
    every = [*values, *kwargs.values()]
    return list(every[0]) if len(every) == 1 and isinstance(every[0], (tuple, list)) else every
