"""The activations, one file for each family. Importing this folder imports all files in it.

A file adds its activations to the table (autofuse/ops/activation_table.py). Its `__all__` lists those that autofuse.ops
has as functions.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

from torch import Tensor

from autofuse.ops.activation_table import ACTIVATIONS, in_kernels

Activation = str | Callable[[Tensor], Tensor]  # a name in ACTIVATIONS, or a function

_FILES = [importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)]
FUNCTIONS: dict[str, Callable[..., Any]] = {name: getattr(file, name) for file in _FILES for name in file.__all__}


def activation(x: Tensor, name: Activation) -> Tensor:
    """The activation `name` of `x`, elementwise, or `name(x)` for a function or a module.

    Args:
        x: any shape.
        name: a name in ACTIVATIONS, or a function.

    Returns:
        A tensor of x's shape.

    Raises:
        ValueError: if the name is not in ACTIVATIONS.
    """
    if not isinstance(name, str):
        return name(x)
    function = ACTIVATIONS.get(name)
    if function is None:
        raise ValueError(f"The activation {name!r} is unknown. Use one of {', '.join(sorted(ACTIVATIONS))}.")
    return function(x)


def activation_refusal(name: Activation) -> str:
    """The reason why our kernels do not compute an activation, as a sentence; "" if they do."""
    if not isinstance(name, str):
        return "It needs an activation by name, not a function."
    return "" if in_kernels(name) else f"Our kernels do not have the activation {name!r}."
