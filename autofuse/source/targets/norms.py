"""Norms as text, with results in the dtype of the original code for all dtypes of the operands.

torch's norms need a weight in the dtype of their input. With another dtype they raise an error, warn, or return the
dtype of the input where the original code promotes. So a weight is passed only if the text proves that the dtypes
agree. Otherwise only the norm itself is written, and later products and casts stay in the code. `ops.rms_norm` and
`ops.layer_norm` promote dtypes themselves. The proofs are in autofuse/ir/dtypes.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

from autofuse.canonical import CAST, LEAF, PERMUTE, strip_casts
from autofuse.ir.dtypes import FLOAT32, NUMBER, Dtype, promoted
from autofuse.ir.graph import PARAMETER, Value, ancestors, is_const
from autofuse.reasons import writing
from autofuse.reasons.reason import because
from autofuse.source.targets.call import Arguments, TargetCall
from autofuse.source.targets.printing import fill
from autofuse.source.targets.speller import Speller, Unwritable

_NORMS = frozenset({"layer_norm", "rms_norm"})
_METHODS = {FLOAT32: "float", frozenset({"float64"}): "double"}


def torch_norm(function: str) -> Callable[[Arguments, Speller], TargetCall]:
    """Return the function that writes the norm `function` of torch.nn.functional."""

    def call(args: Arguments, speller: Speller) -> TargetCall:
        affine: Arguments = {n: args[n] for n in ("weight", "bias") if n in args and not is_const(args[n], None)}
        x, assumed = _input_of_one_dtype(args["x"], affine, function, speller)
        name = speller.imports.text(f"torch.nn.functional.{function}", speller.place)
        affine_arguments = [f"{n}={speller.text(v)}" for n, v in affine.items()]
        eps = [f"eps={speller.text(args['eps'])}"] if "eps" in args else []
        return TargetCall(name, (x, _last_size(args["x"], x, speller), *affine_arguments, *eps), unsafe=assumed)

    return call


def _input_of_one_dtype(x: Value, affine: Arguments, function: str, speller: Speller) -> tuple[str, str]:
    """Return the input in the dtype of the code's result, and the assumption about dtypes.

    The original code may compute the norm as a value of its own, in another dtype, before weight and casts. That value
    is a separate site then, and the rest of the code stays. Code that multiplies earlier (`weight * (x - mean) / std`)
    computes in the promoted dtype and has no such value.

    Raises:
        Unwritable: no input gives the dtype of the result.
    """
    result, affine_dtypes = _dtype_of_result(speller), [_value_dtype(speller, v) for v in affine.values()]
    bare_dtypes = _bare_norm_dtypes(speller, function)
    # All operands certainly have the dtype of the result.
    if (
        bare_dtypes <= {result}
        and all(d in (result, NUMBER) for d in affine_dtypes)
        and (text := _input_text(speller, x, result)) is not None
    ):
        return text, ""
    # The code promotes the input to float32 or wider: the result is float32 unless the input is float64.
    if not affine and result > FLOAT32 and (text := _input_text(speller, x, FLOAT32)) is not None:
        return text, f"assumes that `{_name_of_uncast(x, text, speller)}` is not float64"
    # If the code has the norm as a value of its own, that value is a separate site, and no assumption is needed.
    for dtype in () if bare_dtypes else _input_dtypes(speller, x):
        text = _input_text(speller, x, dtype)
        if text is not None and promoted((dtype, *affine_dtypes)) == result:
            return text, f"assumes that `{text}` and the {' and the '.join(affine)} have one dtype"
        if text is not None and promoted((dtype, *affine_dtypes, FLOAT32)) == result:
            operands = " and ".join([f"`{text}`", *(f"the {n}" for n in affine)])
            return text, f"assumes that {operands} {'are' if affine else 'is'} float32"
    raise Unwritable(because(writing.DTYPES_MAY_DIFFER))


def _name_of_uncast(x: Value, text: str, speller: Speller) -> str:
    """The input before its casts, for a message. The new code does not use it, so it needs no name there."""
    uncast = strip_casts(x)
    originals = [o for o in _program_values(speller, uncast) if o.op == PARAMETER]
    used, removed = set(speller.used), set(speller.removed_statements)
    try:
        return str(originals[0].data) if originals else speller.text(uncast)
    except Unwritable:
        return text
    finally:
        speller.used, speller.removed_statements = used, removed


def _last_size(x: Value, text: str, speller: Speller) -> str:
    """The text of the normalized shape; it is read from the input without its cast."""
    if not text.isidentifier() and x.op == CAST:
        with suppress(Unwritable):  # only the cast value may have a name
            text = speller.text(strip_casts(x))
    return fill("{0}.shape[-1:]", text)


def norm_input(operation: str, args: Arguments, speller: Speller) -> str:
    """Return the input of a norm of autofuse.ops, cast as in the original code; "" for another operation.

    Raises:
        Unwritable: the norm would have another dtype than the code's result.
    """
    if operation not in _NORMS:
        return ""
    others = [_value_dtype(speller, args[n]) for n in ("weight", "bias") if n in args]
    for dtype in _input_dtypes(speller, args["x"]):
        if (
            promoted((dtype, *others)) == _dtype_of_result(speller)
            and (text := _input_text(speller, args["x"], dtype)) is not None
        ):
            return text
    raise Unwritable(because(writing.DTYPES_MAY_DIFFER))


def _bare_norm_dtypes(speller: Speller, function: str) -> set[Dtype]:
    """The dtypes of the values in which the code has the norm before weight and casts; usually one or none."""
    assert speller.result is not None
    cores = [v for v in _parts(speller.view.of(speller.result)) if v.op == function]
    inside = set(ancestors(speller.result)) - {speller.result}
    return {speller.view.facts.dtype(o) for core in cores for o in speller.view.originals(core) if o in inside}


def _parts(canonical: Value) -> Iterator[Value]:
    """Yield the factors and terms of a canonical value."""
    yield canonical
    if canonical.op in ("mul", "add", CAST, PERMUTE):
        for part in canonical.inputs:
            yield from _parts(part)


def _dtype_of_result(speller: Speller) -> Dtype:
    assert speller.result is not None
    return speller.view.facts.dtype(speller.result)


def _input_dtypes(speller: Speller, x: Value) -> list[Dtype]:
    """The dtypes in which the code has the input: its own, and that of its cast."""
    return list(dict.fromkeys(speller.view.facts.dtype(o) for o in _input_values(speller, x)))


def _input_values(speller: Speller, x: Value) -> list[Value]:
    return [
        o for v in (x, speller.view.plain(CAST, strip_casts(x)), strip_casts(x)) for o in _program_values(speller, v)
    ]


def _program_values(speller: Speller, v: Value) -> list[Value]:
    return [v.data] if v.op == LEAF and isinstance(v.data, Value) else speller.view.originals(v)


def _input_text(speller: Speller, x: Value, dtype: Dtype) -> str | None:
    """The input in `dtype` as text; None if the code does not have it in that dtype."""
    for original in _input_values(speller, x):
        if speller.view.facts.dtype(original) != dtype:
            continue
        if (name := speller.current_text(original)) is not None:
            speller.used.add(original)
            return name
        if speller.view.of(original).op != CAST:
            return speller.text(speller.view.of(original))
        if dtype in _METHODS:
            return fill("{0}." + _METHODS[dtype] + "()", speller.text(strip_casts(x)))
    return None


def _value_dtype(speller: Speller, v: Value) -> Dtype:
    """The dtype of a captured value, which may have no value of its own in the program."""
    dtypes = {speller.view.facts.dtype(o) for o in _program_values(speller, v)}
    if len(dtypes) == 1:
        return dtypes.pop()
    if v.op in ("mul", "add", "reciprocal") and not dtypes:
        return promoted(_value_dtype(speller, i) for i in v.inputs)
    return NUMBER if speller.view.number(v) else frozenset({v})
