"""Norms as text whose result has the dtype of the code that it stands for, whatever the operands' dtypes are.

torch's norms want their weight in the dtype of their input: they raise for another one, or warn, or give the input's
dtype where the code promotes. So a weight is handed over only where the text proves that the dtypes agree; else the
norm alone is written, and what the code multiplies and casts afterwards stays as it is. `ops.rms_norm` and
`ops.layer_norm` promote by themselves. What is proved, and how, stands in autofuse/ir/dtypes.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

from autofuse.canonical import CAST, LEAF, PERMUTE, bare
from autofuse.ir.dtypes import FLOAT32, NUMBER, Dtype, promoted
from autofuse.ir.graph import Value, ancestors, is_const
from autofuse.reasons import writing
from autofuse.reasons.reason import because
from autofuse.source.targets.call import Arguments, TargetCall
from autofuse.source.targets.express import Speller, Unwritable
from autofuse.source.targets.printing import fill

_NORMS = frozenset({"layer_norm", "rms_norm"})
_METHODS = {FLOAT32: "float", frozenset({"float64"}): "double"}


def torch_norm(function: str) -> Callable[[Arguments, Speller], TargetCall]:
    """How the target `torch` writes the norm `function` of torch.nn.functional."""

    def call(a: Arguments, s: Speller) -> TargetCall:
        affine: Arguments = {n: a[n] for n in ("weight", "bias") if n in a and not is_const(a[n], None)}
        x, assumed = _input_of_one_dtype(a["x"], affine, function, s)
        name = s.imports.text(f"torch.nn.functional.{function}", s.place)
        named = [f"{n}={s.text(v)}" for n, v in affine.items()]
        eps = [f"eps={s.text(a['eps'])}"] if "eps" in a else []
        return TargetCall(name, (x, _last_size(a["x"], x, s), *named, *eps), unsafe=assumed)

    return call


def _input_of_one_dtype(x: Value, affine: Arguments, function: str, s: Speller) -> tuple[str, str]:
    """The input in the dtype of the code's result, and what is assumed of dtypes. Raises Unwritable where it has none.

    Where the code has the norm before weight and casts as a value, and in another dtype, that value is a site of its
    own: the rest stays as it is. Code that multiplies earlier (`weight * (x - mean) / std`) computes in the dtype to
    which both promote, and has no such value.
    """
    made, others = _dtype_of_result(s), [_dtype(s, v) for v in affine.values()]
    alone = _normed_alone(s, function)
    if alone <= {made} and all(d in (made, NUMBER) for d in others) and (text := _written(s, x, made)) is not None:
        return text, ""
    if not affine and made > FLOAT32 and (text := _written(s, x, FLOAT32)) is not None:
        return text, f"assumes that `{s.text(bare(x))}` is not float64"
    for dtype in () if alone else _choices(s, x):
        text = _written(s, x, dtype)
        if text is not None and promoted((dtype, *others)) == made:
            return text, f"assumes that `{text}` and the {' and the '.join(affine)} have one dtype"
        if text is not None and promoted((dtype, *others, FLOAT32)) == made:
            operands = " and ".join([f"`{text}`", *(f"the {n}" for n in affine)])
            return text, f"assumes that {operands} {'are' if affine else 'is'} float32"
    raise Unwritable(because(writing.DTYPES_MAY_DIFFER))


def _last_size(x: Value, text: str, s: Speller) -> str:
    """The shape that is normed over, read before a cast that is written out."""
    if not text.isidentifier() and x.op == CAST:
        with suppress(Unwritable):  # where only the cast has a name
            text = s.text(bare(x))
    return fill("{0}.shape[-1:]", text)


def norm_input(operation: str, a: Arguments, s: Speller) -> str:
    """The input of a norm of autofuse.ops, cast as the code casts it; "" for other operations.

    Raises Unwritable where the norm would have another dtype than the code's result.
    """
    if operation not in _NORMS:
        return ""
    others = [_dtype(s, a[n]) for n in ("weight", "bias") if n in a]
    for dtype in _choices(s, a["x"]):
        if promoted((dtype, *others)) == _dtype_of_result(s) and (text := _written(s, a["x"], dtype)) is not None:
            return text
    raise Unwritable(because(writing.DTYPES_MAY_DIFFER))


def _normed_alone(s: Speller, function: str) -> set[Dtype]:
    """The dtypes in which the code has the norm before weight and casts as a value of its own; usually one or none."""
    assert s.result is not None
    cores = [v for v in _parts(s.view.of(s.result)) if v.op == function]
    inside = set(ancestors(s.result)) - {s.result}
    return {s.view.facts.dtype(o) for core in cores for o in s.view.originals(core) if o in inside}


def _parts(canonical: Value) -> Iterator[Value]:
    """The factors and terms that a canonical value is made of."""
    yield canonical
    if canonical.op in ("mul", "add", CAST, PERMUTE):
        for part in canonical.inputs:
            yield from _parts(part)


def _dtype_of_result(s: Speller) -> Dtype:
    assert s.result is not None
    return s.view.facts.dtype(s.result)


def _choices(s: Speller, x: Value) -> list[Dtype]:
    """The dtypes in which the code has the input: as it is, and as it is cast."""
    return list(dict.fromkeys(s.view.facts.dtype(o) for o in _inputs(s, x)))


def _inputs(s: Speller, x: Value) -> list[Value]:
    return [o for v in (x, s.view.plain(CAST, bare(x)), bare(x)) for o in _originals(s, v)]


def _originals(s: Speller, v: Value) -> list[Value]:
    return [v.data] if v.op == LEAF and isinstance(v.data, Value) else s.view.originals(v)


def _written(s: Speller, x: Value, dtype: Dtype) -> str | None:
    """The input in `dtype`, as the code has it; None where it does not."""
    for original in _inputs(s, x):
        if s.view.facts.dtype(original) != dtype:
            continue
        if (held := s.current(original)) is not None:
            s.used.add(original)
            return held
        if s.view.of(original).op != CAST:
            return s.text(s.view.of(original))
        if dtype in _METHODS:
            return fill("{0}." + _METHODS[dtype] + "()", s.text(bare(x)))
    return None


def _dtype(s: Speller, v: Value) -> Dtype:
    """The dtype of a captured value, which the program may not have as one."""
    known = {s.view.facts.dtype(o) for o in _originals(s, v)}
    if len(known) == 1:
        return known.pop()
    if v.op in ("mul", "add", "reciprocal") and not known:
        return promoted(_dtype(s, i) for i in v.inputs)
    return NUMBER if s.view.number(v) else frozenset({v})
