"""Sorts torch's functions: those that become a node, those with a known answer, and those that are refused.

This file only lists names. The recorder acts on them.
"""

from __future__ import annotations

import operator
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

# These need the numbers in a tensor. A graph that is recorded once cannot depend on them.
DATA = frozenset(
    """
    item tolist numpy __bool__ __int__ __float__ __index__ __complex__ __contains__ __array__ __format__
    __repr__ __str__ equal allclose is_nonzero __reduce_ex__ __deepcopy__ nonzero
""".split()
)
# These bypass torch's functions or change how gradients flow, in ways that a recorded graph does not repeat.
NOT_REPEATABLE = frozenset(
    """
    backward register_hook register_post_accumulate_grad_hook retain_grad requires_grad_ detach_ set_ data_ptr storage
    untyped_storage is_contiguous stride storage_offset is_shared share_memory_ __set__ __delete__
    resize_ resize_as_ __dlpack__ manual_seed
""".split()
)
# Attributes and methods that have the same value in all calls that pass the guards.
CONSTANT_ATTRIBUTES = frozenset(
    """
    device ndim is_cuda is_cpu is_mps is_xpu is_meta layout is_sparse is_sparse_csr is_nested is_quantized
    is_mkldnn itemsize
    is_complex is_vulkan is_ipu is_xla is_mtia is_maia
""".split()
)
CONSTANT_METHODS = frozenset(
    "dim ndimension is_floating_point is_complex element_size get_device is_tensor is_signed".split()
)
DTYPE_QUERIES = frozenset("is_floating_point is_complex is_signed element_size itemsize dtype".split())
LENGTHS = frozenset("size numel nelement".split())
TENSOR_ATTRIBUTES = frozenset("T mT H mH real imag data".split())

# Operations for which the number or the rank of the results depends on a size. The size is then guarded.
PARTS = frozenset("split unbind chunk tensor_split unsafe_chunk unsafe_split vsplit hsplit dsplit".split())
RANK_DEPENDS_ON_SIZE = frozenset("squeeze squeeze_ atleast_2d atleast_3d".split())

_REFLECTED: dict[str, Callable[..., Any]] = {
    "__rsub__": operator.sub, "__rtruediv__": operator.truediv, "__rdiv__": operator.truediv, "__rpow__": operator.pow,
    "__rfloordiv__": operator.floordiv, "__rmod__": operator.mod, "__radd__": operator.add, "__rmul__": operator.mul,
    "__rmatmul__": operator.matmul,
}  # fmt: skip
_OPERATORS: dict[str, Callable[..., Any]] = {
    f"__{name}__": getattr(operator, name)
    for name in "getitem setitem eq ne lt le gt ge add sub mul truediv floordiv mod matmul neg invert".split()
} | {"__pow__": operator.pow, "__and__": operator.and_, "__or__": operator.or_, "__xor__": operator.xor}

# Operators that torch.Tensor defines in Python under another name: `**` is a function called pow.
_DUNDERS: dict[Any, str] = {
    f: n for n, f in vars(torch.Tensor).items() if n.startswith("__") and isinstance(f, types.FunctionType)
}

# Operators that torch.Tensor defines itself, so that user code may replace them.
_OWN_OPERATORS: dict[str, Any] = {
    n: vars(torch.Tensor)[n]
    for word in vars(operator)
    for n in (f"__{word}__", f"__r{word}__", f"__i{word}__")
    if not word.startswith("_") and n in vars(torch.Tensor)
}

_METHODS = (types.MethodDescriptorType, types.WrapperDescriptorType)

GraphCall = tuple[str, Any, tuple[Any, ...]]  # the op, target and arguments of an fx node


def graph_call(function: Callable[..., Any], args: tuple[Any, ...]) -> GraphCall:
    """Returns the kind, target and arguments of the fx node for a call of `function`."""
    name = _DUNDERS.get(function) or getattr(function, "__name__", "")
    if is_method(function):
        if name in _REFLECTED and len(args) == 2:
            return "call_function", _REFLECTED[name], args[::-1]
        if name in _OPERATORS:
            return "call_function", _OPERATORS[name], args
        return "call_method", name, args
    return "call_function", function, args


def operators_of(function: Callable[..., Any]) -> Iterator[str]:
    """Yields those operators of torch.Tensor's own by which a program may have called `function`."""
    named = f"__{getattr(function, '__name__', '').strip('_')}__"
    yield from (n for n, f in _OWN_OPERATORS.items() if f is function or n == named)


def is_method(function: Callable[..., Any]) -> bool:
    """Returns whether `function` is a method of tensors."""
    name = getattr(function, "__name__", "")
    return isinstance(function, _METHODS) or function in _DUNDERS or getattr(torch.Tensor, name, None) is function


def rule_name(function: Callable[..., Any]) -> str:
    """Returns the name of the operation in size_sources.py."""
    return getattr(function, "__name__", "").strip("_") if is_method(function) else getattr(function, "__name__", "")
