"""Recognises 1 / sqrt(head_dim), the scale that scaled_dot_product_attention has by default."""

from __future__ import annotations

from autofuse.canonical import PERMUTE
from autofuse.ir.graph import ATTRIBUTE, ITEM, Value, is_const
from autofuse.source.capture.symbolic_lengths import recorded_lengths
from autofuse.source.targets.speller import Speller


def is_default_scale(scale: Value, query: Value, key: Value, speller: Speller) -> bool:
    """Whether `scale` is 1 / sqrt(head_dim), with the last size of the query or the key as the text names it."""
    size, exponent = _power(scale)
    if exponent != -0.5:
        return False
    size = size.inputs[0] if size.op == "number" else size
    return any(_is_last_size(size, of, speller) for of in (query, key))


def _power(v: Value) -> tuple[Value, float]:
    """A canonical number as a power of another one."""
    if v.op == "reciprocal":
        base, exponent = _power(v.inputs[0])
        return base, -exponent
    if v.op == "number_sqrt":
        base, exponent = _power(v.inputs[0])
        return base, exponent / 2
    if v.op in ("pow", "number_pow") and isinstance(v.inputs[1].data, (int, float)):
        base, exponent = _power(v.inputs[0])
        return base, exponent * v.inputs[1].data
    if v.op == "mul":
        powers = [_power(i) for i in v.inputs]
        if len({base for base, _ in powers}) == 1:
            return powers[0][0], sum(exponent for _, exponent in powers)
    return v, 1.0


def _is_last_size(size: Value, of: Value, speller: Speller) -> bool:
    if size.op == "size" and size.inputs[0] is of and is_const(size.inputs[1], -1):
        return True
    if size.op == ITEM and size.inputs[0].op == ATTRIBUTE and size.inputs[0].data == "shape":
        if size.inputs[0].inputs[0] is of and is_const(size.inputs[1], -1):
            return True
    if of.op == PERMUTE and isinstance(of.data, tuple) and of.data[-1] == -1:
        return _is_last_size(size, of.inputs[0], speller)
    lengths = recorded_lengths(speller.view, of)
    return (
        lengths is not None
        and lengths[-1] is not None
        and lengths[-1] in {speller.sizes.size_key(o) for o in speller.view.originals(size)}
    )
