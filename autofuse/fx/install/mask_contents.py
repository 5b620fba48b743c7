"""What the numbers in a mask are, where they can be known: in buffers, as long as nobody writes to them.

A form is a word for the last two dimensions of a tensor (see facts.Known): "lower", "upper" or "bias".
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from autofuse.canonical.recognise.masks import SMALLEST_FILL
from autofuse.fx.trace.ambient_state import unobserved
from autofuse.torch_private import assumed_constant, data_address, is_cow_tensor, lazy_clone
from autofuse.torch_private.fakes import real_behind

_LARGEST = 1 << 26  # elements; a larger buffer is not read
# A fill that a kernel may leave out without being told of it: beside it scores vanish by rounding, in its own dtype.
_LEAST_BIAS = {torch.float16: torch.finfo(torch.float16).min / 2, torch.float64: -4 / torch.finfo(torch.float64).eps}
_LEAST_OF_OTHERS = -1e8

_State = tuple[object, ...]


@dataclass(frozen=True)
class _Proof:
    """What was read in a buffer. `shadow` shares its memory: while both do, nobody has written to it."""

    of: weakref.ref[Tensor]
    state: _State
    found: str | float | None
    shadow: Tensor | None = None

    def stands(self, x: Tensor) -> bool:
        """Whether `x` is what the proof speaks of, and as it was."""
        return self.of() is x and self.state == _state(x)


_forms: dict[int, _Proof] = {}
_numbers: dict[int, _Proof] = {}


def _state(x: Tensor) -> _State:
    """Changes with whatever can change the contents of `x`.

    On a CPU, memory that is shared for copying on write is copied as soon as anybody asks for a place to write to:
    operators in place, `x.data`, numpy, DLPack. Elsewhere only what autograd counts is seen. An array that numpy made
    of the memory before the proof is not seen.
    """
    if x.is_cpu:
        return is_cow_tensor(x) or (x._version,), data_address(x), x.stride(), x.shape
    return x._version, x.data_ptr(), x.stride(), x.shape


def _is_buffer(x: Tensor | None) -> bool:
    return x is not None and not x.is_meta and type(x) in (Tensor, nn.Buffer)


def buffer_form(x: Tensor | None) -> str | None:
    """The form that `x` is proved to have, None if none; proved once for each state of its memory.

    Memory that cannot be watched (that of a numpy array, of a mapped file) proves nothing.
    """
    if x is None or x.ndim < 2 or not _is_buffer(x):
        return None
    known = _forms.get(id(x))
    if known is None or not known.stands(x):
        with unobserved():
            known = _proved(x)
        _forms[id(x)] = known
    return known.found  # type: ignore[return-value]


def _proved(x: Tensor) -> _Proof:
    form, shadow = _form(x), None
    if form is not None and x.is_cpu:
        shadow = _watched(x)
        form = form if shadow is not None and _form(x) == form else None
    return _Proof(_forgotten_with(x, _forms), _state(x), form, shadow)


def _forgotten_with(x: Tensor, proofs: dict[int, _Proof]) -> weakref.ref[Tensor]:
    key = id(x)
    return weakref.ref(x, lambda _: proofs.pop(key, None))


@torch.no_grad()
def _watched(x: Tensor) -> Tensor | None:
    """A second owner of the memory of `x`; None where torch has no say in who writes to it."""
    try:
        shadow: Tensor = lazy_clone(x)
    except RuntimeError:  # the memory is another's
        return None
    return shadow if is_cow_tensor(x) else None


@assumed_constant
def holds_form(x: Tensor | None, form: str) -> bool:
    """The guard that generated code asks: does the buffer still have the form that a proof rested on?

    A compiler asks it once, of the buffer itself, and an export of a fake, behind which the buffer is looked for.
    """
    if x is None:
        return False
    known = _forms.get(id(x))
    if known is not None and known.found == form:
        state = known.state
        if x.is_cpu:  # _state(x), in half of its time
            if is_cow_tensor(x) and data_address(x) == state[1] and x.stride() == state[2]:
                return True
        elif state == _state(x):
            return True
    return buffer_form(_with_numbers(x)) == form


def buffer_number(x: Tensor | None) -> float | None:
    """The fill in a buffer of one element, such as GPT-2's `masked_bias`; None where it holds something else."""
    if x is None or x.ndim or not _is_buffer(x) or not x.dtype.is_floating_point:
        return None
    number = _number(x)
    return number if number <= SMALLEST_FILL else None


def _number(x: Tensor) -> float:
    """Read anew at each call on a CPU, where that is no wait."""
    known = _numbers.get(id(x))
    if x.is_cpu or known is None or not known.stands(x):
        with unobserved():
            number = float(x)
        if x.is_cpu:
            return number
        known = _Proof(_forgotten_with(x, _numbers), _state(x), number)
        _numbers[id(x)] = known
    return known.found  # type: ignore[return-value]


@assumed_constant
def holds_number(x: Tensor | None, number: float) -> bool:
    """The guard for such a buffer."""
    return buffer_number(_with_numbers(x)) == number


def _with_numbers(x: Tensor | None) -> Tensor | None:
    """`x` itself, or the buffer for which an export, which runs on tensors that are shapes only, has put it."""
    return x if x is None or type(x) in (Tensor, nn.Buffer) else real_behind(x)


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
