"""Infers from a graph whether a tensor holds complex numbers: True, or None (unknown).

torch's activations, norms and losses raise an error for complex numbers, and most formulas accept them.
"""

from __future__ import annotations

from collections.abc import Callable

from autofuse.ir.graph import ATTRIBUTE, CALL, CHOICE, CONST, ITEM, MODULE, Value
from autofuse.ir.vocabulary import OPS, SAME_SIZES

COMPLEX_DTYPES = frozenset("complex32 complex64 complex128 cfloat cdouble chalf".split())
_MAKE_COMPLEX = frozenset({"complex", "view_as_complex"})
_MAKE_REAL = frozenset(
    "abs angle real imag float double half bfloat16 long bool to type_as view_as_real var std norm vector_norm".split()
) | frozenset("eq ne lt le gt ge isnan isinf isfinite logical_not logical_and logical_or".split())
_CALLS = frozenset({"torch.polar", "torch.complex", "torch.view_as_complex", ".cfloat", ".cdouble", ".chalf"})
_REAL_TRANSFORMS = frozenset("irfft irfft2 irfftn hfft hfft2 hfftn fftfreq rfftfreq fftshift ifftshift".split())
_FROM_ANY_INPUT = frozenset("add sub rsub mul div pow matmul where addcmul addcdiv baddbmm einsum".split())
_KEEP = SAME_SIZES | frozenset("mean sum prod cumsum".split()) | {n for n, op in OPS.items() if op.effect == "view"}


def complex_numbers(v: Value, of: Callable[[Value], bool | None]) -> bool | None:
    """Whether `v` is complex: True, or None if unknown. `of` returns the answer for an input of `v`."""
    if v.op == CONST:
        return isinstance(v.data, complex) or None
    if v.op in _MAKE_COMPLEX or v.op == CALL and _is_complex_call(v):
        return True
    if v.op == "to":
        return _names_complex(v) or (None if v.inputs[1].inputs else of(v.inputs[0]))
    if v.op in _MAKE_REAL or v.op == ATTRIBUTE and v.data in ("real", "imag"):
        return None
    if v.op in _FROM_ANY_INPUT:
        return any(map(of, v.inputs)) or None
    if v.op == CHOICE:
        return all(map(of, v.inputs[1:])) or None
    if v.op in _KEEP or v.op == ITEM or v.op == ATTRIBUTE and v.data in ("T", "mT", "H", "mH", "data"):
        return of(v.inputs[0]) if v.inputs else None
    return None


def _is_complex_call(v: Value) -> bool:
    name = str(v.data[0]) if isinstance(v.data, tuple) else ""
    first, _, last = name.rpartition(".")
    return name in _CALLS or first == "torch.fft" and last not in _REAL_TRANSFORMS


def _names_complex(cast: Value) -> bool | None:
    named = (t for i in cast.inputs[1:] for t in i.inputs if t.op == ATTRIBUTE and t.inputs[0].op == MODULE)
    return any(t.data in COMPLEX_DTYPES for t in named) or None
