"""The value of a lazy tensor: the output of a linear layer, or of operations on it, computed when it is needed.

A `Source` is one call of the layer. An optimizer's step may write its operands after the call. So a source detects
writes, and copies what it still needs. A `Node` is one tensor that was computed from the source. This file does not use
autograd: values have no graph. The lazy tensors (tensor.py) have one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from weakref import WeakSet

import torch
import torch.nn.functional as F
from torch import Tensor

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class OperandsChanged(RuntimeError):
    """Logits were read for the first time after the weight, or the input, of their layer was overwritten."""


class Step(NamedTuple):
    """One operation on a tensor.

    Attributes:
        kind: "rows", "number", "cast", "same" or "log_softmax" (steps.py).
        function: the operator.
        args: its arguments after the tensor.
        kwargs: its keyword arguments.
    """

    kind: str
    function: Callable[..., Tensor]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __call__(self, x: Tensor) -> Tensor:
        return self.function(x, *self.args, **self.kwargs)


class Watch:
    """Whether the program asks for the gradient of one lazy tensor: by a hook, retain_grad or torch.autograd.grad."""

    __slots__ = ("on",)

    def __init__(self) -> None:
        self.on = False


class Source:
    """One call of a linear layer.

    Args:
        x: the input, shape (..., D).
        weight: shape (V, D).
        bias: shape (V,), or None.
        lower: the dtype in which autocast computes; None without autocast.
    """

    def __init__(self, x: Tensor, weight: Tensor, bias: Tensor | None, lower: torch.dtype | None) -> None:
        self.operands = x, weight, bias  # with their graph
        self.x, self.weight, self.lower = x.detach(), weight.detach(), lower
        self.bias = None if bias is None else bias.detach()
        self.nodes: WeakSet[Node] = WeakSet()
        self.value: Tensor | None = None
        self._kept = False
        self._versions = self._now()
        self._prints = tuple(_print(t) for t in self._parameters())

    def compute(self) -> Tensor:
        """The layer's output. Raises OperandsChanged if an operand was overwritten since the call."""
        if self.value is None:
            self.check()
            with _original_modes(self.x):
                self.value = F.linear(*self.cast())
        return self.value

    def cast(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """The operands as the layer multiplies them."""
        if self.lower is None:
            return self.x, self.weight, self.bias
        return (
            self.x.to(self.lower),
            self.weight.to(self.lower),
            None if self.bias is None else self.bias.to(self.lower),
        )

    def check(self) -> None:
        """Raises OperandsChanged if an operand was overwritten since the call."""
        if not self.is_unchanged():
            raise OperandsChanged(
                "Logits were read after the weight or the input of their linear layer was overwritten. autofuse "
                "computes the logits of a training step when they are first used. Read them before the weight is "
                "written, or pass ignore='AF502' to autofuse.optimize."
            )

    def is_unchanged(self) -> bool:
        """Whether the operands are unchanged. Compares versions, and bits, because `.data` has no version."""
        if self._kept:
            return True
        if not self.is_unwritten:
            return False
        return all(torch.equal(a, b) for t, p in zip(self._parameters(), self._prints, strict=True)
                   for a, b in zip(_print(t), p, strict=True))  # fmt: skip

    @property
    def is_unwritten(self) -> bool:
        """Whether the versions of the operands are those of the call."""
        return self._kept or self._versions == self._now()

    def keep(self) -> None:
        """Prepare for a write to the parameters: a later read gets the logits of the call.

        Copies the weight, or computes the logits if they are few. Does nothing if no tensor can read them any more.
        """
        if self._kept or self.value is not None or all(n.value is not None for n in self.nodes):
            return
        if not self.is_unchanged():
            return  # a read raises OperandsChanged
        if 2 * self.x.shape[:-1].numel() <= self.x.shape[-1]:  # logits of few rows are much smaller than the weight
            self.compute()
            return
        self.weight = self.weight.clone()
        self.bias = None if self.bias is None else self.bias.clone()
        self._kept = True

    def settle(self) -> None:
        """Compute every tensor that was computed from this call, because one of them is about to be written."""
        for node in list(self.nodes):
            node.compute()

    def _parameters(self) -> tuple[Tensor, ...]:
        return (self.weight,) if self.bias is None else (self.weight, self.bias)

    def _now(self) -> tuple[int, ...]:
        return tuple(t._version for t in (self.x, *self._parameters()))


class Node:
    """One lazy tensor.

    Attributes:
        source: the call of the layer.
        axis: the dimension of the classes; None if there is none any more.
        steps: the operations from the layer's output to this tensor.
        watches: whether the program asks for the gradient of this tensor, or of a tensor that it is computed from.
    """

    __slots__ = ("__weakref__", "_parent", "axis", "source", "steps", "value", "watches")

    def __init__(self, source: Source, parent: Node | None, step: Step | None, axis: int | None) -> None:
        self.source, self._parent, self.axis = source, parent, axis
        self.steps: tuple[Step, ...] = () if parent is None or step is None else (*parent.steps, step)
        self.watches: tuple[Watch, ...] = (*(parent.watches if parent is not None else ()), Watch())
        self.value: Tensor | None = None
        source.nodes.add(self)

    def compute(self) -> Tensor:
        """The value, the same tensor at each call. Raises OperandsChanged as `Source.compute` does."""
        if self.value is None:
            if self._parent is None:
                self.value = self.source.compute()
            else:
                before = self._parent.compute()
                with _original_modes(before):
                    self.value = self.steps[-1](before)
                self._parent = None
        return self.value

    def recipe(self) -> Recipe:
        """The computation of this value, without a reference to the value."""
        return Recipe(self.source, self.steps, self.watches)


class Recipe(NamedTuple):
    """The steps from the call of a layer to one tensor."""

    source: Source
    steps: tuple[Step, ...]
    watches: tuple[Watch, ...]

    @property
    def is_watched(self) -> bool:
        """Whether the program asks for a gradient of one of the tensors."""
        return any(w.on for w in self.watches)

    def compute_again(self) -> Tensor:
        """The value of the forward pass, computed again, because the stored value may have been written since."""
        source = self.source
        source.check()
        with _original_modes(source.x):
            value = F.linear(*source.cast())
            for step in self.steps:
                value = step(value)
        return value


def _print(parameter: Tensor) -> tuple[Tensor, ...]:
    """Sums of a parameter's bits by row and by column. They detect writes that do not change its version."""
    with torch.no_grad():
        bits = parameter.detach().view(_BITS[parameter.element_size()])
        return tuple(bits.sum(d, dtype=torch.int64) for d in range(bits.ndim))


@contextmanager
def _original_modes(x: Tensor) -> Iterator[None]:
    """The modes in which a layer's output is computed, whatever the modes at the read are."""
    with torch.inference_mode(False), torch.no_grad(), torch.autocast(x.device.type, enabled=False):
        yield
