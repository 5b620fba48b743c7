"""The lazy tensor. For autograd it is the output of a linear layer; its numbers are computed when they are needed.

Views, casts and arithmetic with numbers return lazy tensors. Losses (losses.py) are computed without the numbers. Every
other operation computes the numbers, once, and uses a plain tensor. If the program asks for the gradient of a lazy
tensor, a loss computes it as torch does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor

from autofuse.fx.lazy.nodes import Node, Source
from autofuse.fx.lazy.steps import ALIASES, is_followed, step_of
from autofuse.fx.trace.source_lines import SourceLine, user_place
from autofuse.torch_private import DisableTorchFunctionSubclass, pytree

Loss = Callable[..., Any]
LOSSES: dict[
    Any, Loss
] = {}  # function of torch -> function that computes it for lazy tensors, or returns NotImplemented


class Read(NamedTuple):
    """The numbers of a layer's output, or of a tensor computed from it, were used at this line."""

    source: Source
    place: SourceLine | None


_READS: ContextVar[list[Read] | None] = ContextVar("reads", default=None)


@contextmanager
def record_reads() -> Iterator[list[Read]]:
    """Collects the reads of lazy logits in the block."""
    heard: list[Read] = []
    token = _READS.set(heard)
    try:
        yield heard
    finally:
        _READS.reset(token)


class _Thread(threading.local):
    follows = False  # whether all tensors of the current call are lazy; then a 0-dim operand is a number


_THREAD = _Thread()


class LazyLogits(Tensor):
    """The output of a linear layer, or a tensor computed from it, whose numbers are computed when they are used."""

    node: Node

    @staticmethod
    def of(node: Node, like: Tensor) -> LazyLogits:
        """A lazy tensor for `node`, with the sizes, strides and dtype of `like`, which may be on any device."""
        made: LazyLogits = Tensor._make_wrapper_subclass(
            LazyLogits, like.shape, strides=like.stride(), dtype=like.dtype, device=node.source.x.device,
        )  # fmt: skip
        made.node = node
        return made

    @property
    def is_computed(self) -> bool:
        """Whether its numbers were computed."""
        return self.node.value is not None

    def __repr__(self, *, tensor_contents: Any = None) -> Any:  # type: ignore[override]
        """The numbers, as for any tensor: a program that prints logits reads them."""
        with DisableTorchFunctionSubclass():
            text = repr(self.node.compute())
            return f"{text[:-1]}, grad_fn=<{type(self.grad_fn).__name__}>)" if self.grad_fn is not None else text

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in LOSSES:
            found = LOSSES[func](*args, **kwargs)
            if found is not NotImplemented:
                return found
        if func in _ASKS_FOR_GRADIENTS:
            for x in _lazy_in((args, kwargs)):
                x.node.watches[-1].on = True
        if func == _SET_DATA and isinstance(args[0], LazyLogits):
            return _set_data(*args)
        if func in _READS_MEMORY or func is Tensor.__deepcopy__ and args[0].is_leaf:
            _note_reads(args, kwargs)
            args, kwargs = pytree.tree_map_only(LazyLogits, _plain_tensor, (args, kwargs))
        others = any(isinstance(x, Tensor) and not isinstance(x, LazyLogits) for x in _flat_arguments(args, kwargs))
        with DisableTorchFunctionSubclass(), _following(not others):
            return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if (_THREAD.follows or func in ALIASES) and args and isinstance(args[0], LazyLogits):
            made = _lazy_result(func, args[0], args[1:], kwargs)
            if made is not None:
                return made
        return _plain_result(func, args, kwargs)


def lazy_of(source: Source, like: Tensor) -> LazyLogits:
    """The output of a layer's call, with the sizes, strides and dtype of `like`."""
    return LazyLogits.of(Node(source, None, None, like.ndim - 1), like)


def _lazy_result(func: Any, x: LazyLogits, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The lazy result of an operator; None if the result must be computed."""
    node = x.node
    if node.value is not None:
        return None
    if func is _UNBIND:
        dim = args[0] if args else 0
        return [_lazy_result(_SELECT, x, (dim, i), {}) for i in range(x.shape[dim])]
    if not is_followed(func, x, args, kwargs):
        return None
    # A meta tensor shows the sizes, strides and dtype of the result without computing it.
    before = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")
    after = func(before, *args, **kwargs)
    step, axis = step_of(node, before, after, func, args, kwargs)
    return LazyLogits.of(Node(node.source, node, step, axis), after)


def _set_data(x: LazyLogits, value: Tensor) -> None:
    """x.data = value."""
    if value.shape != x.shape or value.dtype is not x.dtype or value.device != x.device:
        raise RuntimeError(f"`.data` of lazy logits was set to a tensor of another shape, dtype or device. {_ADVICE}")
    x.node.source.settle()
    x.node.value = value.node.compute() if isinstance(value, LazyLogits) else value.detach()


def _plain_result(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of the operator on the numbers. If it writes to a lazy tensor, the result is that lazy tensor."""
    written: list[LazyLogits] = []
    if func._schema.is_mutable:
        for place, given in enumerate(func._schema.arguments):
            value = args[place] if place < len(args) else kwargs.get(given.name)
            if given.alias_info is not None and given.alias_info.is_write:
                written += _lazy_in(value)
    if written and torch.Tag.inplace_view in func.tags:
        raise RuntimeError(f"{func} changes the shape of lazy logits in place. {_ADVICE}")
    for x in written:
        x.node.source.settle()  # other lazy tensors of this call must not see the write
    _note_reads(args, kwargs)
    plain_args, plain_kwargs = pytree.tree_map_only(LazyLogits, lambda x: x.node.compute(), (args, kwargs))
    result = func(*plain_args, **plain_kwargs)
    if not written:
        return result
    # An operator in place returns its operand. The program must get its lazy tensor back, and not the plain one.
    back = {id(x.node.value): x for x in written}
    return pytree.tree_map_only(Tensor, lambda t: back.get(id(t), t), result)


def _note_reads(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    heard = _READS.get()
    if heard is not None:
        heard += [Read(x.node.source, user_place()) for x in _lazy_in((args, kwargs))]


def _plain_tensor(x: LazyLogits) -> Tensor:
    """The numbers of `x` for code that does not use torch's operators. They require a gradient if x does."""
    value = x.node.compute()
    return value.detach().requires_grad_() if x.requires_grad else value


def _lazy_in(values: Any) -> list[LazyLogits]:
    return [x for x in pytree.tree_leaves(values) if isinstance(x, LazyLogits)]


def _flat_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Any]:
    for x in (*args, *kwargs.values()):
        if isinstance(x, list | tuple):
            yield from _flat_arguments(tuple(x), {})
        else:
            yield x


@contextmanager
def _following(on: bool) -> Iterator[None]:
    before, _THREAD.follows = _THREAD.follows, on
    try:
        yield
    finally:
        _THREAD.follows = before


_ADVICE = "Use logits.clone() instead, or pass ignore='AF502' to autofuse.optimize."
_TENSOR: Any = Tensor
_SET_DATA = _TENSOR.data.__set__
_UNBIND, _SELECT = torch.ops.aten.unbind.int, torch.ops.aten.select.int
_ASKS_FOR_GRADIENTS = frozenset({
    _TENSOR.register_hook, _TENSOR.retain_grad, _TENSOR.grad_fn.__get__, torch.autograd.grad,
})  # fmt: skip
_READS_MEMORY = frozenset({
    _TENSOR.data_ptr, _TENSOR.numpy, _TENSOR.tolist, _TENSOR.untyped_storage, _TENSOR.storage, _TENSOR._typed_storage,
    _TENSOR.share_memory_, _TENSOR.is_shared, _TENSOR.__array__, _TENSOR.__dlpack__, _TENSOR.__reduce_ex__,
    _TENSOR.__cuda_array_interface__.__get__, _TENSOR.pin_memory, _TENSOR.is_pinned,
})  # fmt: skip
