"""Shortens a copy of a deep model, so that a step costs the same at any depth.

Layers that take the same time follow each other in a container, often in a pattern: every second layer has a window.
A few repetitions of the pattern show whether a step is faster. All chains of a model are shortened by the same factor,
so their shares of the step stay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

KEPT = 4  # layers of the shortest chain
_LONGEST_PATTERN = 4  # layers

Describe = Callable[[nn.Module], Hashable]


@dataclass(frozen=True)
class _Chain:
    """A container, its layers, and after how many of them the pattern repeats."""

    container: nn.Module
    layers: tuple[nn.Module, ...]
    period: int

    def length(self, factor: float) -> int:
        """The number of layers that stay if chains are shortened by this factor: whole repetitions of the pattern."""
        repetitions = max(1, round(len(self.layers) / factor / self.period))
        return min(len(self.layers), repetitions * self.period)


class ShortCopy:
    """A copy of a model with shorter chains.

    Attributes:
        size: how many layers are left, "4 of 48 layers"; "" if there is nothing to shorten.
        layers: the layers that are left.
        factor: how many times as many layers the model has.
    """

    def __init__(self, copy: nn.Module, describe: Describe) -> None:
        """Shorten a copy.

        Args:
            copy: a copy of a model. It is changed.
            describe: returns equal values for layers that take the same time.
        """
        chains = list(_chains_of(copy, describe))
        self.factor = min((len(c.layers) for c in chains), default=0) / KEPT
        cut = [(c, c.length(self.factor)) for c in chains if self.factor > 1.0]
        self._before = [(c.container, dict(c.container._modules)) for c, _ in cut]
        self.layers = tuple(layer for c, kept in cut for layer in c.layers[:kept])
        every = sum(len(c.layers) for c, _ in cut)
        self.size = f"{len(self.layers)} of {every} layers" if len(self.layers) < every else ""
        for chain, kept in cut:
            _replace_children(chain.container, dict(list(chain.container._modules.items())[:kept]))

    def undo(self) -> None:
        """Put all layers back."""
        for container, children in self._before:
            _replace_children(container, children)
        self.size, self.layers = "", ()

    @contextmanager
    def count_calls(self) -> Iterator[Counter[nn.Module]]:
        """In the block, the calls of the remaining layers are counted."""
        calls: Counter[nn.Module] = Counter()
        hooks = [layer.register_forward_pre_hook(partial(_count, calls)) for layer in self.layers]
        try:
            yield calls
        finally:
            for hook in hooks:
                hook.remove()


def _count(calls: Counter[nn.Module], layer: nn.Module, *_: Any) -> None:
    calls[layer] += 1


def _replace_children(container: nn.Module, children: dict[str, nn.Module | None]) -> None:
    container._modules.clear()
    container._modules.update(children)


def _chains_of(model: nn.Module, describe: Describe) -> Iterator[_Chain]:
    """The outermost containers that hold nothing but a repeated pattern of layers."""
    inside: set[nn.Module] = set()
    for container in model.modules():
        if container in inside or type(container) not in (nn.ModuleList, nn.Sequential):
            continue
        layers = tuple(container.children())
        period = _period([describe(layer) for layer in layers]) if len(layers) > KEPT else 0
        if period and len(layers) == len(container._modules):
            inside.update(container.modules())
            yield _Chain(container, layers, period)


def _period(kinds: Sequence[Hashable]) -> int:
    """After how many entries a list repeats, at least twice; 0 if it does not."""
    longest = min(_LONGEST_PATTERN, len(kinds) // 2)
    periods = (p for p in range(1, longest + 1) if all(a == b for a, b in zip(kinds, kinds[p:], strict=False)))
    return next(periods, 0)
