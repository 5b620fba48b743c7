"""Names with two leading underscores to which Python, numpy or torch give a meaning. Other such names are ordinary."""

from __future__ import annotations

import enum
import types

import torch
from torch import nn

_PYTHON_TYPES = (object, type, int, float, complex, str, bytes, list, tuple, dict, set, types.FunctionType,
                 types.ModuleType, types.MethodType, nn.Module, torch.Tensor, enum.Enum, BaseException)  # fmt: skip
_SPECIAL = frozenset(n for t in _PYTHON_TYPES for n in dir(t) if n[:2] == "__") | frozenset(
    f"__{word}__"
    for word in "all annotations bases bool builtins call class_getitem copy debug deepcopy delete doc enter exit "
    "excepthook file fields get getattr getnewargs import index init instancecheck slots iter length_hint loader main "
    "match_args missing mro_entries name next orig_bases orig_class package parameters path post_init prepare repr "
    "set_name set signature spec subclasscheck trunc version_info weakref dataclass_fields dataclass_params "
    "static_attributes firstlineno type_params abstractmethods constants jit_unused_properties jit_ignored_attributes "
    "array array_interface array_priority array_struct array_ufunc array_function cuda_array_interface dlpack "
    "dlpack_device torch_function torch_dispatch cached_requires_grad await aiter anext aenter aexit del new".split()
)


def is_special(name: str) -> bool:
    """Returns whether Python, numpy or torch give a name with two leading underscores its meaning."""
    return name in _SPECIAL
