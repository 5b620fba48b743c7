"""Proves the contents of masks in buffers. A proof is valid until the buffer is written.

A form describes the last two dimensions of a tensor (see facts.Known): "lower", "upper" or "bias".
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn

from autofuse.canonical.recognise.masks import SMALLEST_FILL
from autofuse.fx.trace.ambient_state import without_observers
from autofuse.ops.watched_memory import State, state_of, watch
from autofuse.torch_private import (
    TensorGuards,
    assumed_constant,
    data_address,
    get_tracing_state,
    set_tracing_state,
)
from autofuse.torch_private.fakes import find_real_tensor

_LARGEST = 1 << 26  # elements; a larger buffer is not read
_LARGEST_COMPARED = 1 << 20  # elements; a larger one is not read at each call
_SHARED_AT_MOST = 4  # times that a buffer is watched; a buffer that is written more often is compared at each call
# A kernel may skip a score with such a fill. The sum of the fill and any usual score rounds to the fill in its dtype.
_LEAST_BIAS = {torch.float16: torch.finfo(torch.float16).min / 2, torch.float64: -4 / torch.finfo(torch.float64).eps}
_LEAST_OF_OTHERS = -1e8


@dataclass(frozen=True)
class _Proof:
    """The contents that were read in a buffer, and how a later write is detected.

    Attributes:
        of: the buffer.
        state: the state of its memory when it was read.
        found: the form or the number; None if there is none.
        described: the form with the dtype and the shape.
        shadow: shares the buffer's memory until the buffer is written.
        copy: compared with the buffer at each call.
        earlier: memory that the buffer had before. A program may still hold its address, so it lives as long as the
            buffer.
    """

    of: weakref.ref[Tensor]
    state: State
    found: str | float | None
    described: str = ""
    shadow: Tensor | None = None
    copy: Tensor | None = None
    earlier: tuple[Tensor, ...] = ()

    def stands(self, x: Tensor) -> bool:
        """Whether the proof is about `x`, and `x` is unchanged."""
        if self.of() is not x:
            return False
        return self.state == state_of(x) if self.copy is None else _is_equal(x, self.copy)


_forms: dict[int, _Proof] = {}
_numbers: dict[int, _Proof] = {}
# For a watched buffer: the form that was last asked for, the address, and a test of its dtype, shape and strides.
_layouts: dict[int, tuple[str, object, Callable[[Tensor], bool]]] = {}


def _is_equal(x: Tensor, copy: Tensor) -> bool:
    with without_observers():
        return x.dtype is copy.dtype and x.device == copy.device and torch.equal(x, copy)


def _is_buffer(x: Tensor | None) -> bool:
    return x is not None and not x.is_meta and type(x) in (Tensor, nn.Buffer)


def buffer_form(x: Tensor | None) -> str | None:
    """The form that `x` is proved to have, or None. It is proved once for each state of the memory."""
    if x is None or x.ndim < 2 or not _is_buffer(x):
        return None
    known = _forms.get(id(x))
    if known is None or not known.stands(x):
        with without_observers():
            known = _prove(x, known)
        _forms[id(x)] = known
        _layouts.pop(id(x), None)
    return known.found  # type: ignore[return-value]


def _prove(x: Tensor, before: _Proof | None) -> _Proof:
    earlier = before.earlier if before is not None else ()
    if before is not None and before.shadow is not None:
        earlier = (*earlier, before.shadow)
    form, shadow, copy = _form(x), None, None
    if form is not None and x.is_cpu:
        shadow = watch(x) if len(earlier) < _SHARED_AT_MOST else None
        copy = x.detach().clone() if shadow is None and x.numel() <= _LARGEST_COMPARED else None
        known = shadow is not None or copy is not None
        form = form if known and _form(x) == form else None  # read again: a write before `watch` would go unnoticed
    elif x.is_inference():  # such tensors do not count writes
        form = None
    return _Proof(_weak_reference(x, _forms), state_of(x), form, describe_form(x, form), shadow, copy, earlier)


def describe_form(x: Tensor, form: str | None) -> str:
    """The text that a guard compares: code that reads a mask may depend on its dtype and its size, too."""
    return f"{form} of {x.dtype} {tuple(x.shape)}" if form is not None else ""


def _weak_reference(x: Tensor, proofs: dict[int, _Proof]) -> weakref.ref[Tensor]:
    key, layouts = id(x), _layouts  # at the end of the process, names of the module are None

    def forget(_: object) -> None:
        proofs.pop(key, None)
        layouts.pop(key, None)

    return weakref.ref(x, forget)


@assumed_constant
def holds_form(x: Tensor | None, form: str) -> bool:
    """A guard in generated code: whether the buffer still has the form that was proved.

    A compiler evaluates it once, with the buffer itself. An export passes a fake tensor, and the guard looks for the
    buffer that it stands for.

    Args:
        x: the buffer.
        form: the form alone, or with the dtype and the shape, as `describe_form` returns it.
    """
    if x is None:
        return False
    lies = _layouts.get(id(x))
    if lies is not None and lies[0] == form and data_address(x) == lies[1] and lies[2](x):
        return True
    known = _forms.get(id(x))
    if known is not None and (known.described == form or known.found == form or _is_at_least(known.described, form)):
        if known.shadow is not None:  # a write would have moved the buffer, and the shadow keeps the old address
            if data_address(x) == known.state[1] and _layout(x) == known.state[2:]:
                if lies is None or lies[:2] != (form, known.state[1]):
                    _layouts[id(x)] = form, known.state[1], _layout_test(x)
                return True
        elif known.copy is not None:
            if _is_equal(x, known.copy):
                return True
        elif known.state == state_of(x):
            return True
    with _without_jit_tracing():
        real = _with_numbers(x)
        found = buffer_form(real)
        if real is None or found is None:
            return False
        now = describe_form(real, found)
    return form in (found, now) or _is_at_least(now, form)


@contextmanager
def _without_jit_tracing() -> Iterator[None]:
    """torch.jit does not trace this block. It would record the questions, and sizes would be tensors."""
    state = get_tracing_state()
    if state is not None:
        set_tracing_state(None)
    try:
        yield
    finally:
        if state is not None:
            set_tracing_state(state)


def _layout(x: Tensor) -> tuple[tuple[int, ...], torch.Size]:
    """The strides and the shape of a tensor, read without torch.jit's tracing."""
    if get_tracing_state() is None:
        return x.stride(), x.shape
    with _without_jit_tracing():
        return x.stride(), x.shape


def _layout_test(x: Tensor) -> Callable[[Tensor], bool]:
    """A test whether a tensor has the class, dtype, shape and strides of `x`. Under autocast it may be False anyway."""
    strides, shape = _layout(x)
    try:
        check: Callable[[Tensor], bool] = TensorGuards(
            x, dynamic_dims_sizes=[list(shape)], dynamic_dims_strides=[list(strides)]
        ).check
    except Exception:  # this version of torch has no such guards
        return lambda _: False
    return check


@lru_cache(maxsize=256)
def _is_at_least(now: str, form: str) -> bool:
    """Whether both are the same form and dtype, and `now` is at least as large in every dimension.

    Code that reads a corner of the smaller mask can read it from the larger one, too.
    """
    (start, _, sizes), (wanted, _, least) = now.partition(" ("), form.partition(" (")
    found, asked = (re.findall(r"\d+", t) for t in (sizes, least))
    return (
        bool(asked)
        and start == wanted
        and len(found) == len(asked)
        and all(int(a) >= int(b) for a, b in zip(found, asked, strict=True))
    )


def buffer_number(x: Tensor | None) -> float | None:
    """The fill in a buffer of one element, such as GPT-2's `masked_bias`; None if the number is no fill."""
    if x is None or x.ndim or not _is_buffer(x) or not x.dtype.is_floating_point:
        return None
    number = _number(x)
    return number if number <= SMALLEST_FILL else None


def _number(x: Tensor) -> float:
    """The number in `x`. On a CPU it is read at each call, because a read there waits for no device."""
    known = _numbers.get(id(x))
    if x.is_cpu or known is None or not known.stands(x):
        with without_observers():
            number = float(x)
        if x.is_cpu:
            return number
        known = _Proof(_weak_reference(x, _numbers), state_of(x), number)
        _numbers[id(x)] = known
    return known.found  # type: ignore[return-value]


@assumed_constant
def holds_number(x: Tensor | None, number: float) -> bool:
    """A guard in generated code: whether the buffer still holds this number."""
    return buffer_number(_with_numbers(x)) == number


def _with_numbers(x: Tensor | None) -> Tensor | None:
    """`x` itself or, if `x` is a fake tensor of an export, the buffer that it stands for."""
    return x if x is None or type(x) in (Tensor, nn.Buffer) else find_real_tensor(x)


@torch.no_grad()
def _form(x: Tensor) -> str | None:
    rows, columns = x.shape[-2:]
    if rows != columns or x.numel() != rows * columns or rows < 2 or x.numel() > _LARGEST:
        return None
    square = x.detach().reshape(rows, columns)
    inside = torch.ones(rows, columns, dtype=torch.bool, device=x.device).tril()
    if torch.equal(square.to(torch.bool), inside) and _is_zero_or_one(square):
        return "lower"
    if torch.equal(square.to(torch.bool), ~inside):
        return "upper" if _is_zero_or_one(square) else "bias" if _is_fill(square[~inside]) else None
    return None


def _is_zero_or_one(x: Tensor) -> bool:
    return x.dtype is torch.bool or bool(((x == 0) | (x == 1)).all())


def _is_fill(x: Tensor) -> bool:
    return x.dtype.is_floating_point and bool((x <= _LEAST_BIAS.get(x.dtype, _LEAST_OF_OTHERS)).all())
