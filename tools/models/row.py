"""Defines the rows of the table: a small model of another library, and its inputs.

Each package has one file here with a tuple `ROWS`. The file imports its library at the top. If the library is missing,
its rows are left out, and the table says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Row:
    """One architecture.

    Attributes:
        name: a unique name; usually the name of the class in the library.
        package: the name of the installed distribution, for its version.
        make: builds the model with small random weights. torch is seeded before. The model must not be random when it
            is called: dropout rates are 0, because training steps are compared.
        inputs: makes the inputs, as for `autofuse.optimize`: a tensor, a tuple of arguments, or a dict of keyword
            arguments. torch is seeded before.
        expects: the codes of rules that must fuse something. A row without any shows that a model with nothing to fuse
            runs as before.
        note: a note for readers, such as why nothing can be fused.
    """

    name: str
    package: str
    make: Callable[[], nn.Module]
    inputs: Callable[[], Tensor | tuple[Any, ...] | dict[str, Any]]
    expects: tuple[str, ...] = ("AF101",)
    note: str = ""


def tokens(count: int = 50, batch: int = 2, length: int = 7) -> Tensor:
    """Random token ids (batch, length), int64, from 3 on: models use the first three as special tokens."""
    return torch.randint(3, count, (batch, length))


def without_dropout(model: nn.Module) -> nn.Module:
    """Set the rate of every dropout layer to 0, and return the model."""
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
    return model
