"""The operations that do not read a lazy tensor: their results are lazy, too.

An operation on rows (a view, a slice) moves or drops rows of logits and does not change the classes, so it can be
applied to the layer's input instead. An operation on numbers (a soft cap, a temperature) is applied to one block of
logits at a time. Each operation has an operator, and a function that returns the dimension of the classes after it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from autofuse.fx.lazy.nodes import Node, Step

_ATEN: Any = torch.ops.aten
_Axis = Callable[[int, Tensor, Tensor, tuple[Any, ...]], int | None]  # axis, before, after, arguments -> axis


def step_of(node: Node, before: Tensor, after: Tensor, function: Any, args: tuple[Any, ...],
            kwargs: dict[str, Any]) -> tuple[Step, int | None]:  # fmt: skip
    """The step of an operator of KINDS, and the dimension of the classes after it.

    `before` and `after` are meta tensors like its operand and its result.
    """
    kind, moved = KINDS[function]
    if kind == "number":
        args = tuple(a.item() if isinstance(a, Tensor) else a for a in args)  # a Python number in a tensor
    axis = None if node.axis is None else moved(node.axis, before, after, args)
    taken = node.steps and any(s.kind == "log_softmax" for s in node.steps)
    if taken and kind not in ("rows", "same"):
        axis = None  # the only known loss of log-probabilities selects entries
    if kind == "log_softmax" and (axis is None or args[0] % before.ndim != axis or args[1]):
        axis = None
    return Step(kind, function, args, kwargs), axis


def is_followed(function: Any, before: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the operator's result can be lazy."""
    if function not in KINDS:
        return False
    if function is _ATEN._to_copy.default:
        to = kwargs.get("dtype")
        return not (kwargs.keys() - {"dtype", "memory_format"}) and (to is None or to.is_floating_point)
    if KINDS[function][0] == "number":
        return all(isinstance(a, int | float) or isinstance(a, Tensor) and a.ndim == 0 for a in args) and not kwargs
    return True


def rows_of(steps: Sequence[Step], x: Tensor, axis: int) -> Tensor:
    """The rows (..., D) of a layer's input that belong to the logits after `steps`. Differentiable.

    Args:
        steps: the steps from the layer's output to the logits.
        x: the layer's input.
        axis: the dimension of the classes in the logits.
    """
    for step in steps:
        if step.kind != "rows":
            continue
        if step.function in _VIEWS:
            x = x.reshape(*step.args[0][:-1], x.shape[-1])
        else:
            x = step(x)
    return x.movedim(axis, -1)


def numbers_of(steps: Sequence[Step]) -> tuple[Step, ...]:
    """The steps that change numbers: arithmetic, and casts to another dtype."""
    return tuple(s for s in steps if s.kind in ("number", "cast"))


def _same(axis: int, before: Tensor, after: Tensor, args: tuple[Any, ...]) -> int | None:
    return axis


def _axis_after_view(axis: int, before: Tensor, after: Tensor, args: tuple[Any, ...]) -> int | None:
    last = axis == before.ndim - 1 and after.ndim > 0 and after.shape[-1] == before.shape[-1]
    return after.ndim - 1 if last and before.numel() else None


def _other_dimension(axis: int, before: Tensor, after: Tensor, args: tuple[Any, ...]) -> int | None:
    dim = (args[0] if args else 0) % before.ndim
    return None if dim == axis else axis


def _axis_after_select(axis: int, before: Tensor, after: Tensor, args: tuple[Any, ...]) -> int | None:
    dim = args[0] % before.ndim
    return None if dim == axis else axis - int(dim < axis)


def _axis_after_unsqueeze(axis: int, before: Tensor, after: Tensor, args: tuple[Any, ...]) -> int | None:
    return axis + int(args[0] % after.ndim <= axis)


def _axis_after_transpose(axis: int, before: Tensor, after: Tensor, args: tuple[Any, ...]) -> int | None:
    one, other = (d % before.ndim for d in args) if args else (0, before.ndim - 1)
    return {one: other, other: one}.get(axis, axis)


def _axis_after_permute(axis: int, before: Tensor, after: Tensor, args: tuple[Any, ...]) -> int | None:
    return [d % before.ndim for d in args[0]].index(axis)


_VIEWS = (_ATEN.view.default, _ATEN._unsafe_view.default, _ATEN.reshape.default)
# The autograd engine calls these. The numbers stay the same.
ALIASES = (_ATEN.detach.default, _ATEN.alias.default)
KINDS: dict[Any, tuple[str, _Axis]] = {
    **dict.fromkeys(ALIASES, ("same", _same)),
    _ATEN.clone.default: ("same", _same),
    _ATEN._to_copy.default: ("cast", _same),
    **dict.fromkeys(_VIEWS, ("rows", _axis_after_view)),
    _ATEN.slice.Tensor: ("rows", _other_dimension),
    _ATEN.select.int: ("rows", _axis_after_select),
    _ATEN.unsqueeze.default: ("rows", _axis_after_unsqueeze),
    _ATEN.transpose.int: ("rows", _axis_after_transpose),
    _ATEN.t.default: ("rows", _axis_after_transpose),
    _ATEN.permute.default: ("rows", _axis_after_permute),
    _ATEN.mul.Tensor: ("number", _same),
    _ATEN.mul.Scalar: ("number", _same),
    _ATEN.div.Tensor: ("number", _same),
    _ATEN.div.Scalar: ("number", _same),
    _ATEN.tanh.default: ("number", _same),
    _ATEN._log_softmax.default: ("log_softmax", _same),
}
