"""Remembers kinds of calls whose tensors passed the guards.

Guards check classes, dtypes, shapes and devices one by one, in Python. torch's TensorGuards compares all of these with
an earlier call in a third of the time, together with the state of the dispatcher (autocast, modes, transforms). So if a
call is of a known kind, the guards hold. Any other call runs them.
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
FEWEST_TESTS = 3  # fewer tests are faster than a comparison
# A layout belongs to the state of the dispatcher. Nested tensors are never of a known kind.
_METADATA = frozenset({"dtype", "shape", "ndim", "is_cpu", "device", "requires_grad", "layout", "is_nested"})
_FUNCTIONS = frozenset({"type", "isinstance", "len", "min", "max", "_Tensor", "_keeps"})
_NO_AUTOCAST = "not (_any_autocast() and _autocast('cpu'))"
_CONSTANTS = (torch.dtype, torch.device, torch.layout, int, float, str, bool, type)
_KINDS = 64  # remembered at first
_PATIENCE = 1000  # after so many calls of new kinds, one more is remembered


class SeenKind(NamedTuple):
    """A kind of call. `check(*tensors)` returns whether a call is of this kind. `level` is `SEEN_BEFORE` or `QUIET`."""

    check: Callable[..., bool]
    level: int


SEEN_BEFORE, QUIET = 1, 2  # quiet: no tensor requires grad, and each has few elements


class SeenCalls:
    """The last two kinds of calls that passed; two, because training and evaluation alternate.

    All modules that run a forward share one object. Calls that a tracer, mode or transform observes are not remembered
    (`_is_watched`), so a call of a remembered kind is not observed either.

    Nested tensors must not be passed: they have no strides, and torch's comparison ends the process.

    Args:
        sizes: for each tensor, the dimensions whose sizes belong to the kind; None for all dimensions.
        below: in a `QUIET` kind each tensor has fewer elements than this, unless it is 0.
    """

    __slots__ = ("_before", "_below", "_kinds_left", "_others", "_sizes", "kind")

    def __init__(self, sizes: Sequence[frozenset[int] | None] = (), below: int = 0) -> None:
        self.kind = self._before = SeenKind(_always_false, 0)  # assigned together: another thread may call learn()
        self._kinds_left, self._others = _KINDS, 0
        self._sizes, self._below = sizes, below

    def check(self, *tensors: Any) -> bool:
        """Whether a call is of the latest kind."""
        return self.kind.check(*tensors)

    def learn(self, *tensors: Any) -> bool:
        """Remember the kind of a call whose guards held. Returns True, so that it can follow them in an `and`."""
        if self._before.check(*tensors):
            self.kind, self._before = self._before, self.kind
        elif self._has_room() and not _is_watched() and all(type(t) is Tensor for t in tensors):
            self._remember(tensors)
        return True

    def _has_room(self) -> bool:
        """Whether to remember one more kind. If each call is of a new kind, remembering costs more than it saves."""
        self._others += 1
        if self._kinds_left > 0:
            self._kinds_left -= 1
            return True
        return self._others % _PATIENCE == 0

    def _remember(self, tensors: Sequence[Tensor]) -> None:
        try:
            sizes, any_strides = self._tested_sizes(tensors), [[None] * t.ndim for t in tensors]
            check = TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=any_strides).check
            same = check(*tensors)  # False if one tensor is passed twice
        except Exception:  # for example a symbolic size
            return
        if same:
            self.kind, self._before = SeenKind(check, self._level(tensors)), self.kind

    def _tested_sizes(self, tensors: Sequence[Tensor]) -> list[list[int | None]]:
        """The sizes of a call of this kind; None for dimensions that do not matter."""
        kept = self._sizes or [None] * len(tensors)
        return [
            [n if dims is None or at in dims or at - t.ndim in dims else None for at, n in enumerate(t.shape)]
            for t, dims in zip(tensors, kept, strict=True)
        ]

    def _level(self, tensors: Sequence[Tensor]) -> int:
        few = not self._below or all(t.numel() < self._below for t in tensors)
        return QUIET if few and not any(t.requires_grad for t in tensors) else SEEN_BEFORE


def _is_watched() -> bool:
    """Whether a tracer, a dispatch mode or a transform of torch.func observes this call."""
    return bool(get_tracing_state() is not None or len_torch_dispatch_stack() or peek_interpreter_stack() is not None)


def _always_false(*_: Any) -> bool:
    return False


def metadata_tests(
    tests: Mapping[str, ast.expr], tensors: frozenset[str], constants: Mapping[str, Any]
) -> frozenset[str]:
    """The tests that only read metadata of these arguments which `SeenCalls` compares, and constants."""
    found = {text for text, test in tests.items() if _is_of_metadata(test, tensors, constants)}
    if found:
        found |= {text for text in tests if text == NO_DISPATCH_MODE}
    if any(
        text == f"{tensor}.is_cpu" for text in found for tensor in tensors
    ):  # the dispatcher's state includes autocast for CPUs
        found |= {text for text in tests if text == _NO_AUTOCAST}
    return frozenset(found)


def dimensions_read(tests: Collection[ast.expr], tensor: str) -> frozenset[int] | None:
    """The dimensions of an argument whose sizes the tests read; None if they may read any."""
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


def tensor_test_argument(test: ast.expr) -> str | None:
    """The argument that a `_keeps_functions` test checks to be an ordinary tensor; None for other tests."""
    match test:
        case ast.BoolOp(ast.Or(), [ast.Compare(ast.Call(ast.Name("type"), [ast.Name(name)]), [ast.Is()], [kind]), _]):
            return name if isinstance(kind, ast.Name) and kind.id == "_Tensor" else None
    return None
