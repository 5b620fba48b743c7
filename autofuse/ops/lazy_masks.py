"""Lazy attention masks: tensors of known form whose numbers are computed only if they are read.

Fused attention needs the form of a mask (known_masks.py) and not its numbers. Any other operation computes the numbers,
once, and uses a plain tensor. This file does not depend on the code that builds masks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from autofuse.ops.known_masks import KnownMask
from autofuse.torch_private import DisableTorchFunctionSubclass, pytree

_ATEN: Any = torch.ops.aten
_LEAST: ContextVar[int] = ContextVar("least", default=2**18)  # entries; a smaller mask is never lazy


class MaskForm(NamedTuple):
    """The memory layout and the contents of a mask (..., T, S).

    Attributes:
        is_causal: query i keeps keys 0 to i, and T == S. Otherwise each query keeps all keys.
        fill: the entry for a dropped key. The entry for a kept key is 0. Boolean masks do not use it: True keeps a key.
    """

    shape: torch.Size
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    is_causal: bool
    fill: float

    @property
    def known_mask(self) -> KnownMask:
        """The description of the mask that attention uses."""
        return KnownMask(not self.is_causal, self.is_causal, self.fill if self.is_causal else -float("inf"), True)

    def square(self) -> Tensor:
        """The mask for one entry of the leading dimensions, (T, S). It is the same for all of them."""
        rows, columns = self.shape[-2:]
        kept = torch.ones(rows, columns, dtype=torch.bool, device=self.device)
        kept = kept.tril() if self.is_causal else kept
        if self.dtype is torch.bool:
            return kept
        return torch.zeros(rows, columns, dtype=self.dtype, device=self.device).masked_fill_(~kept, self.fill)

    def make(self) -> Tensor:
        """The mask as a plain tensor."""
        with torch.no_grad():
            made = torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=self.device)
            square = self.square()
            if 0 in self.strides:  # copy_ refuses to write to memory that several entries share
                one = tuple(slice(0, 1) if s == 0 else slice(None) for s in self.strides)
                made[one].copy_(square)
                return made
            return made.copy_(square)


@torch.no_grad()
def form_of(mask: Any) -> MaskForm | None:
    """The form of `mask` if it is causal or keeps everything, otherwise None. Compares each entry."""
    if type(mask) is not Tensor or mask.ndim < 2 or mask.requires_grad or not mask.numel() or mask.is_inference():
        return None
    boolean = mask.dtype is torch.bool
    if not boolean and not mask.dtype.is_floating_point:
        return None
    corner = mask[(0,) * (mask.ndim - 2)][0, -1]  # the last key of the first query
    is_causal = not bool(corner) if boolean else bool(corner != 0)
    if is_causal and (mask.shape[-1] != mask.shape[-2] or mask.shape[-1] < 2):
        return None
    fill = 0.0 if boolean else float(corner)
    form = MaskForm(mask.shape, mask.stride(), mask.dtype, mask.device, is_causal, -float("inf") if boolean else fill)
    if is_causal and not boolean and not fill < 0:
        return None
    return form if bool((mask == form.square()).all()) else None


@contextmanager
def lazy_at_any_size() -> Iterator[None]:
    """In the block, small masks can be lazy, too."""
    token = _LEAST.set(0)
    try:
        yield
    finally:
        _LEAST.reset(token)


def least_entries() -> int:
    """The number of entries from which on a mask is lazy. To compute a smaller mask takes less time than the checks."""
    return _LEAST.get()


@dataclass
class _Memory:
    """The state that a mask shares with the views of all its entries."""

    form: MaskForm
    value: Tensor | None = None

    def make(self) -> Tensor:
        """The mask as a plain tensor, the same at each call."""
        if self.value is None:
            with DisableTorchFunctionSubclass():
                self.value = self.form.make()
        return self.value


class LazyMask(Tensor):
    """A mask whose numbers are computed when they are read."""

    memory: _Memory

    @staticmethod
    def of(form: MaskForm) -> LazyMask:
        """A mask of this form, not computed yet."""
        return _mask_of(_Memory(form))

    @property
    def is_made(self) -> bool:
        """Whether the numbers have been computed."""
        return self.memory.value is not None

    @property
    def known_mask(self) -> KnownMask | None:
        """The contents of the mask. None if it requires a gradient, or was computed and may have been written."""
        return None if self.is_made or self.requires_grad else self.memory.form.known_mask

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        """Shows the numbers, as for any tensor."""
        with DisableTorchFunctionSubclass():
            return repr(self.memory.make())

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _READS_MEMORY:
            args, kwargs = pytree.tree_map_only(LazyMask, _numbers, (args, kwargs))
        elif func == _SET_DATA and isinstance(args[0], LazyMask):
            _set_data(args[0], args[1])
            return None
        with DisableTorchFunctionSubclass():
            return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if args and isinstance(args[0], LazyMask) and _is_whole(func, args[0], args[1:], kwargs):
            return _mask_of(args[0].memory)
        written = _written_masks(func, args, kwargs)
        if written and torch.Tag.inplace_view in func.tags:
            raise RuntimeError(
                f"{func} changes the shape of a lazy mask in place. autofuse does not support this. {_ADVICE}"
            )
        plain_args, plain_kwargs = pytree.tree_map_only(LazyMask, lambda x: x.memory.make(), (args, kwargs))
        result = func(*plain_args, **plain_kwargs)
        if not written:
            return result
        back = {id(x.memory.value): x for x in written}
        return pytree.tree_map_only(Tensor, lambda t: back.get(id(t), t), result)


def _mask_of(memory: _Memory) -> LazyMask:
    form = memory.form
    made: LazyMask = Tensor._make_wrapper_subclass(
        LazyMask, form.shape, strides=form.strides, dtype=form.dtype, device=form.device,
    )  # fmt: skip
    made.memory = memory
    return made


def plain_mask(mask: Any) -> Any:
    """A lazy mask as a plain tensor, through which its gradient flows. Any other object unchanged."""
    if type(mask) is not LazyMask:
        return mask
    return mask.clone() if mask.requires_grad else mask.memory.make()


def _numbers(mask: LazyMask) -> Tensor:
    """The mask as a plain tensor, for functions that read memory without an operator of torch."""
    value = mask.memory.make()
    return value.detach().requires_grad_() if mask.requires_grad else value


def with_plain_masks(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call with plain tensors in place of lazy masks."""
    if any(type(x) is LazyMask for x in args):
        args = tuple(map(plain_mask, args))
    if any(type(x) is LazyMask for x in kwargs.values()):
        kwargs = {name: plain_mask(x) for name, x in kwargs.items()}
    return args, kwargs


def _is_whole(func: Any, x: LazyMask, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether an operator returns a view of all entries with the same layout, as `mask[:, :, :, : mask.shape[-1]]`."""
    if func in _ALIASES:
        return True
    if func not in _VIEWS or kwargs:
        return False
    form = x.memory.form
    meta = torch.empty_strided(form.shape, form.strides, dtype=form.dtype, device="meta")
    after = func(meta, *args)
    return bool(after.shape == meta.shape and after.stride() == meta.stride() and after.storage_offset() == 0)


def _set_data(x: LazyMask, value: Tensor) -> None:
    """Set `x.data` to `value`.

    Raises:
        RuntimeError: The shape, dtype or device of the value differs.
    """
    if value.shape != x.shape or value.dtype is not x.dtype or value.device != x.device:
        raise RuntimeError(f"`.data` of a lazy mask was set to a tensor of another shape, dtype or device. {_ADVICE}")
    x.memory = value.memory if type(value) is LazyMask else _Memory(x.memory.form, value.detach())


def _written_masks(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[LazyMask]:
    """The lazy masks that an operator writes to."""
    found: list[LazyMask] = []
    if func._schema.is_mutable:
        for place, given in enumerate(func._schema.arguments):
            value = args[place] if place < len(args) else kwargs.get(given.name)
            if given.alias_info is not None and given.alias_info.is_write:
                found += [x for x in pytree.tree_leaves(value) if isinstance(x, LazyMask)]
    return found


_ADVICE = "Write to mask.clone() instead, or pass ignore='AF101' to autofuse.optimize."
_TENSOR: Any = Tensor
_SET_DATA = _TENSOR.data.__set__
_ALIASES = (_ATEN.detach.default, _ATEN.alias.default)
_VIEWS = (_ATEN.slice.Tensor, _ATEN.view.default, _ATEN.expand.default)
_READS_MEMORY = frozenset({
    _TENSOR.data_ptr, _TENSOR.numpy, _TENSOR.tolist, _TENSOR.untyped_storage, _TENSOR.storage, _TENSOR._typed_storage,
    _TENSOR.share_memory_, _TENSOR.is_shared, _TENSOR.__array__, _TENSOR.__dlpack__, _TENSOR.__reduce_ex__,
    _TENSOR.__deepcopy__, _TENSOR.__cuda_array_interface__.__get__, _TENSOR.pin_memory, _TENSOR.is_pinned,
})  # fmt: skip
