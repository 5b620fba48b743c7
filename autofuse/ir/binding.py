"""Binds the arguments of a call to the parameters of an operation.

This file knows signatures (vocabulary.py) and the aliases that torch allows for argument names. It knows no front end.
"""

from __future__ import annotations

from autofuse.ir.graph import ATTRIBUTE, TUPLE, Graph, Value, is_const
from autofuse.ir.rows import REQUIRED, Op
from autofuse.ir.vocabulary import OPS

_ALIASES = {
    "axis": "dim", "keepdims": "keepdim", "correction": "unbiased", "x": "input", "exp": "exponent", "size": "shape",
    "tensor": "input", "self": "input", "axis0": "dim0", "axis1": "dim1", "divisor": "other", "value": "src",
    "mat2": "other", "train": "training", "split_size_or_sections": "split_size",
}  # fmt: skip
_WITHOUT_EFFECT = {"inplace": False, "out": None, "rounding_mode": None}


def bound_arguments(graph: Graph, op: Op, arguments: list[Value], named: dict[str, Value]) -> list[Value] | None:
    """Bind the arguments of a call to the parameters of `op`, in their order.

    A parameter `*name` takes the remaining positional arguments, and `**options` the remaining keywords. Each becomes
    one TUPLE value.

    Args:
        graph: the graph in which defaults and tuples become values.
        op: the operation.
        arguments: the positional arguments.
        named: the keyword arguments.

    Returns:
        One value for each parameter, with defaults filled in; None if the call does not fit the signature.
    """
    rest = {_canonical_name(op, k): v for k, v in named.items()}
    inputs: list[Value] = []
    position = 0
    for name, default in op.parameters.items():
        if name.startswith("**"):
            inputs.append(graph.value(TUPLE, *rest.values(), data=tuple(rest)))
            rest = {}
        elif name.startswith("*"):
            gathered = [*arguments[position:], *([rest.pop(name[1:])] if name[1:] in rest else [])]
            inputs.append(graph.value(TUPLE, *gathered))
            position = len(arguments)
        elif position < len(arguments):
            if name in rest:
                return None
            inputs.append(arguments[position])
            position += 1
        elif name in rest:
            inputs.append(rest.pop(name))
        elif default is REQUIRED:
            return None
        else:
            inputs.append(graph.const(default))
    rest.pop("_stacklevel", None)  # the frame that torch's warning names; it does not affect the result
    for name, harmless in _WITHOUT_EFFECT.items():
        if name in rest and is_const(rest[name], harmless):
            del rest[name]
    extra = arguments[position:]
    if len(extra) == 1 and op.inplace and is_const(extra[0], False):
        extra = []
    return None if rest or extra else inputs


def replace_like_argument(graph: Graph, op: Op, inputs: list[Value]) -> tuple[Op, list[Value]]:
    """Express `x.type_as(y)` and `x.expand_as(y)` by the shape, dtype and device of `y`.

    Neither reads the contents of `y`. So a rule may match them although `y` is not an operand of the computation.
    """
    if op.name not in ("type_as", "expand_as"):
        return op, inputs
    x, other = inputs
    if op.name == "expand_as":
        return OPS["expand"], [x, graph.value(TUPLE, graph.value(ATTRIBUTE, other, data="shape"))]
    dtype, device = (graph.value(ATTRIBUTE, other, data=read) for read in ("dtype", "device"))
    return OPS["to"], [x, graph.value(TUPLE, dtype), graph.value(TUPLE, device, data=("device",))]


def _canonical_name(op: Op, keyword: str) -> str:
    alias = _ALIASES.get(keyword, keyword)
    known = {p.lstrip("*") for p in op.parameters}
    return keyword if keyword in known or alias not in known else alias
