"""Activations by name, each in a file of its own here, found by walking this folder.

A file defines its activations (autofuse/ops/activation_table.py) and lists in `__all__` which of them autofuse.ops has
as functions. Knows which there are; must not know where an activation's input comes from.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

from torch import Tensor

from autofuse.ops.activation_table import ACTIVATIONS, in_kernels

Activation = str | Callable[[Tensor], Tensor]  # a name in ACTIVATIONS, or what computes it

_FILES = [importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)]
FUNCTIONS: dict[str, Callable[..., Any]] = {name: getattr(file, name) for file in _FILES for name in file.__all__}


def activation(x: Tensor, name: Activation) -> Tensor:
    """The activation called `name`, one of ACTIVATIONS, elementwise; or what a function or a module makes of `x`.

    Raises ValueError for a name that is not in ACTIVATIONS.
    """
    if not isinstance(name, str):
        return name(x)
    function = ACTIVATIONS.get(name)
    if function is None:
        raise ValueError(f"There is no activation called {name!r}. Use one of {', '.join(sorted(ACTIVATIONS))}.")
    return function(x)


def named(name: Activation) -> str:
    """Why our kernels do not compute an activation, as a sentence; "" where they do."""
    if not isinstance(name, str):
        return "It takes activations by name, not functions."
    return "" if in_kernels(name) else f"It has no activation called {name!r}."
