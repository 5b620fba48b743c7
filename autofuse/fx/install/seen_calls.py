"""Remembers which kinds of calls have passed the tests of their tensors, so that those need no second look.

Tests of tensors ask for classes, dtypes, shapes and devices one by one, in Python. torch compares all of that with a
call that passed before in a third of the time, and with it the state of its dispatcher: autocast, modes, transforms. So
where a call is of a kind that has passed, the tests are known to hold; any other call takes them.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from autofuse.fx.install.guard_code import NO_DISPATCH_MODE
from autofuse.torch_private import TensorGuards, get_tracing_state, len_torch_dispatch_stack, peek_interpreter_stack

MOST_TENSORS = 8
FEWEST_TESTS = 3  # fewer are asked faster than a kind of call is compared
_METADATA = frozenset({"dtype", "shape", "ndim", "is_cpu", "device", "requires_grad"})
_FUNCTIONS = frozenset({"type", "isinstance", "len", "min", "max", "_Tensor", "_keeps"})
_NO_AUTOCAST = "not (_any_autocast() and _autocast('cpu'))"
_CONSTANTS = (torch.dtype, torch.device, int, float, str, bool, type)
_KINDS = 64  # that are remembered at first
_PATIENCE = 1000  # calls of a new kind after which one more is remembered


class SeenKind(NamedTuple):
    """A kind of call: `check(*tensors)` says whether a call is of it. `level` is `SEEN_BEFORE`, or `QUIET`."""

    check: Callable[..., bool]
    level: int


SEEN_BEFORE, QUIET = 1, 2  # quiet: no tensor requires grad, and each has fewer elements than was asked for


class SeenCalls:
    """The last two kinds of calls that passed. `kind` is the latest of them.

    `sizes` are the dimensions whose sizes make a kind, for each tensor; None where all of them do. In a `QUIET` kind
    each tensor has fewer than `below` elements, where that is not 0.

    Nested tensors must not be given to it: they have no strides to compare, and torch's comparison ends the process.

    A forward keeps one for all modules that run it. Two, because training and evaluation take turns. Nothing looked at
    the calls that are remembered (`_is_watched`), so nothing looks at a call of their kind.
    """

    __slots__ = ("_before", "_below", "_kinds_left", "_others", "_sizes", "kind")

    def __init__(self, sizes: Sequence[frozenset[int] | None] = (), below: int = 0) -> None:
        self.kind = self._before = SeenKind(_never, 0)  # both at once: another thread may learn while one asks
        self._kinds_left, self._others = _KINDS, 0
        self._sizes, self._below = sizes, below

    def check(self, *tensors: Any) -> bool:
        """Whether a call is of the latest kind."""
        return self.kind.check(*tensors)

    def learn(self, *tensors: Any) -> bool:
        """Remember the kind of a call whose tests have held. Always true, so that it can stand behind them."""
        if self._before.check(*tensors):
            self.kind, self._before = self._before, self.kind
        elif self._has_room() and not _is_watched() and all(type(t) is Tensor for t in tensors):
            self._remember(tensors)
        return True

    def _has_room(self) -> bool:
        """Whether to remember one more: where each call is of a new kind, that costs more than it gives."""
        self._others += 1
        if self._kinds_left > 0:
            self._kinds_left -= 1
            return True
        return self._others % _PATIENCE == 0

    def _remember(self, tensors: Sequence[Tensor]) -> None:
        try:
            sizes, any_strides = self._asked(tensors), [[None] * t.ndim for t in tensors]
            check = TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=any_strides).check
            same = check(*tensors)  # never so where one tensor is given twice
        except Exception:  # a size that is a symbol, say
            return
        if same:
            self.kind, self._before = SeenKind(check, self._level(tensors)), self.kind

    def _asked(self, tensors: Sequence[Tensor]) -> list[list[int | None]]:
        """The sizes that a call of this kind has; None for those that do not matter."""
        kept = self._sizes or [None] * len(tensors)
        return [
            [n if dims is None or at in dims or at - t.ndim in dims else None for at, n in enumerate(t.shape)]
            for t, dims in zip(tensors, kept, strict=True)
        ]

    def _level(self, tensors: Sequence[Tensor]) -> int:
        few = not self._below or all(t.numel() < self._below for t in tensors)
        return QUIET if few and not any(t.requires_grad for t in tensors) else SEEN_BEFORE


def _is_watched() -> bool:
    """Whether a tracer, a mode of torch's dispatcher or a transform of torch.func looks at this call."""
    return bool(get_tracing_state() is not None or len_torch_dispatch_stack() or peek_interpreter_stack() is not None)


def _never(*_: Any) -> bool:
    return False


def metadata_tests(
    tests: Mapping[str, ast.expr], tensors: frozenset[str], constants: Mapping[str, Any]
) -> frozenset[str]:
    """Those of `tests` that ask for nothing but what `SeenCalls` compares of these arguments, and for constants."""
    found = {text for text, test in tests.items() if _is_of_metadata(test, tensors, constants)}
    if found:
        found |= {text for text in tests if text == NO_DISPATCH_MODE}
    if any(text == f"{tensor}.is_cpu" for text in found for tensor in tensors):  # which hears of a CPU's autocast
        found |= {text for text in tests if text == _NO_AUTOCAST}
    return frozenset(found)


def sizes_asked(tests: Collection[ast.expr], tensor: str) -> frozenset[int] | None:
    """The dimensions of an argument whose sizes tests ask for; None where that may be any."""
    found: set[int] = set()
    read = len_asked = 0
    for node in (n for test in tests for n in ast.walk(test)):
        match node:
            case ast.Subscript(ast.Attribute(ast.Name(name), "shape"), index) if name == tensor:
                if not isinstance(place := _constant(index), int):
                    return None
                found.add(place)
                read += 1
            case ast.Call(ast.Name("len"), [ast.Attribute(ast.Name(name), "shape")]) if name == tensor:
                len_asked += 1
    whole = sum(_is_shape(n, tensor) for test in tests for n in ast.walk(test))
    return frozenset(found) if whole == read + len_asked else None


def _constant(tree: ast.expr) -> object:
    try:
        return ast.literal_eval(tree)
    except ValueError:
        return None


def _is_shape(node: ast.AST, tensor: str) -> bool:
    match node:
        case ast.Attribute(ast.Name(name), "shape"):
            return name == tensor
    return False


def _is_of_metadata(test: ast.expr, tensors: frozenset[str], constants: Mapping[str, Any]) -> bool:
    names = {n.id for n in ast.walk(test) if isinstance(n, ast.Name)}
    attributes = [n for n in ast.walk(test) if isinstance(n, ast.Attribute)]
    known = all(n in tensors or n in _FUNCTIONS or isinstance(constants.get(n), _CONSTANTS) for n in names)
    read = all(a.attr in _METADATA and isinstance(a.value, ast.Name) and a.value.id in tensors for a in attributes)
    return known and read and not names.isdisjoint(tensors)


def asked_for_as_tensor(test: ast.expr) -> str | None:
    """The argument that a test says is a tensor that computes as any: "_keeps_functions" of the guards' language."""
    match test:
        case ast.BoolOp(ast.Or(), [ast.Compare(ast.Call(ast.Name("type"), [ast.Name(name)]), [ast.Is()], [kind]), _]):
            return name if isinstance(kind, ast.Name) and kind.id == "_Tensor" else None
    return None
