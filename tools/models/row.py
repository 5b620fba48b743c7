"""What one line of the table is made from: a model of somebody else's, tiny, and how it is called.

Each package has one file here with a tuple `ROWS` of these. Such a file imports its library at the top: where the
library is missing, all its rows are left out, and the table says so.
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

    name: unique in the table; the name that the library gives its class, if that says enough.
    package: the name under which the library is installed, for its version.
    make: builds the model with small random weights. Nothing in it may be random when it is called: dropout rates and
        the like are 0, for the table compares training steps. torch is seeded before the call.
    inputs: makes what the model is called with, as `autofuse.optimize` takes it: a tensor, a tuple of arguments, or a
        dict of keyword arguments. torch is seeded before this call too.
    expects: codes of the rules that must fuse something; a row without them shows that a model without anything to
        fuse runs as before.
    note: what a reader should know of the row: why nothing can be fused, say.
    """

    name: str
    package: str
    make: Callable[[], nn.Module]
    inputs: Callable[[], Tensor | tuple[Any, ...] | dict[str, Any]]
    expects: tuple[str, ...] = ("AF101",)
    note: str = ""


def tokens(count: int = 50, batch: int = 2, length: int = 7) -> Tensor:
    """Random tokens (batch, length), none of the first three, which models keep for padding, beginnings and ends."""
    return torch.randint(3, count, (batch, length))


def without_dropout(model: nn.Module) -> nn.Module:
    """The same model with every dropout layer's rate at 0."""
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
    return model
