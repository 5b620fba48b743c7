"""One call of one operation, to be made again and again: copies of its arguments, its outcome, a step to time.

Knows arguments as trees of tensors; must not know which operation they belong to, what is right, nor clocks.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from autofuse.torch_private import pytree
from autofuse.torch_private.nested import tensors_in
from autofuse.verify.arithmetic import WIDER
from autofuse.verify.differences import same_bits

Function = Callable[..., Any]
_SEED = 2026
_PERIOD = 1_000_003
_RATES = ("dropout_p", "p")  # what operations call the probability that an entry is dropped with


@dataclass(frozen=True)
class FunctionCall:
    """The arguments of one call. Tensors that require a gradient are leaves, and share no memory with the user's.

    `backward`: whether gradients are asked for as well.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    backward: bool

    @classmethod
    def of(cls, args: Sequence[Any], kwargs: Mapping[str, Any], backward: bool) -> FunctionCall:
        """A copy with the same sizes, strides and requirements of gradients.

        No gradient is asked for where no tensor requires one.
        """
        own_args, own_kwargs = pytree.tree_map(_copied, (tuple(args), dict(kwargs)))
        copied = cls(own_args, own_kwargs, backward)
        return copied if copied.leaves else cls(own_args, own_kwargs, False)

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors, in order."""
        return list(tensors_in((self.args, dict(self.kwargs))))

    @property
    def leaves(self) -> list[Tensor]:
        """Those that a gradient is asked for of."""
        return [t for t in self.tensors if t.requires_grad]

    @property
    def device(self) -> torch.device:
        """Where the first tensor is."""
        return self.tensors[0].device

    @property
    def bytes(self) -> int:
        """What the tensors take."""
        return sum(t.numel() * t.element_size() for t in self.tensors)

    def roughened(self) -> FunctionCall:
        """Every number of a floating tensor moved at random by up to a unit of rounding of its dtype, in float64."""
        args, kwargs = pytree.tree_map(_rough, (self.args, dict(self.kwargs)))
        return FunctionCall(args, kwargs, self.backward).doubled()

    def copied(self) -> FunctionCall:
        """The same once more, for who may write into it."""
        return FunctionCall.of(self.args, self.kwargs, self.backward)

    def doubled(self) -> FunctionCall:
        """In float64, on the CPU where the device has none."""
        device = self.device if self.device.type in ("cpu", "cuda", "xpu") else torch.device("cpu")
        args, kwargs = pytree.tree_map(lambda x: _doubled(x, device), (self.args, dict(self.kwargs)))
        return FunctionCall(args, kwargs, self.backward)

    def dropout_rate(self, run: Function) -> float:
        """The rate of the dropout that `run` applies; 0 where it has none, or is told not to train."""
        bound = self._bound(run)
        named = {} if bound is None else bound.arguments
        rates = [float(named.get(name) or 0.0) for name in _RATES]
        return max(rates) if named.get("training", True) else 0.0

    def undropped(self, run: Function) -> FunctionCall:
        """The same call of `run` without dropout."""
        bound = self._bound(run)
        if bound is None:
            return self
        bound.arguments.update((name, 0.0) for name in _RATES if name in bound.arguments)
        return FunctionCall(bound.args, bound.kwargs, self.backward)

    def made(self, run: Function) -> Any:
        """What `run` gives, with what it keeps for a backward alive."""
        with torch.set_grad_enabled(self.backward):
            return run(*self.args, **self.kwargs)

    def outcome(self, run: Function, dtypes: Sequence[torch.dtype] = ()) -> FunctionOutcome:
        """What one run gives, from the same random state as every other, and whether it writes into what it is given.

        The gradients that come in are the same for all runs whose outputs have the same shapes; with `dtypes`, one for
        each output, they are rounded to those first.
        """
        own = self.copied()
        seeded(self.device)
        outputs = list(tensors_in(own.made(run)))
        incoming = incoming_of(outputs, dtypes) if self.backward else []
        gradients = _gradients(outputs, own.leaves, [g.clone() for g in incoming]) if self.backward else []
        untouched = all(map(same_bits, self.tensors, own.tensors))
        return FunctionOutcome(tuple(o.detach() for o in outputs), tuple(gradients), untouched)

    def step(self, run: Function) -> Callable[[], object]:
        """What is timed: forward and backward, or the forward where no gradient is asked for."""
        if not self.backward:
            return lambda: self.made(run)
        leaves, incoming = self.leaves, incoming_of(list(tensors_in(self.made(run))))
        return lambda: _gradients(list(tensors_in(self.made(run))), leaves, incoming)

    def _bound(self, run: Function) -> inspect.BoundArguments | None:
        """The arguments by name; None for a builtin, which does not tell its names."""
        try:
            bound = inspect.signature(run).bind(*self.args, **self.kwargs)
        except ValueError:
            return None
        bound.apply_defaults()
        return bound


@dataclass(frozen=True)
class FunctionOutcome:
    """What one call gave: its outputs, then the gradient of each tensor that requires one (None where it has none).

    `untouched`: whether the arguments are as they were.
    """

    outputs: tuple[Tensor, ...]
    gradients: tuple[Tensor | None, ...]
    untouched: bool

    @property
    def all(self) -> tuple[Tensor | None, ...]:
        """Outputs and gradients."""
        return self.outputs + self.gradients

    def name(self, place: int) -> str:
        """What the tensor at that place of `all` is, for a sentence."""
        outputs = len(self.outputs)
        if place >= outputs:
            return f"gradient {place - outputs + 1}"
        return "the result" if outputs == 1 else f"result {place + 1}"


def seeded(device: torch.device) -> None:
    """Start the generators that a kernel on `device` draws from anew; nobody else's, and no device is woken up."""
    torch.default_generator.manual_seed(_SEED)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(_SEED)


def incoming_of(outputs: Sequence[Tensor], dtypes: Sequence[torch.dtype] = ()) -> list[Tensor]:
    """A gradient for each output that carries one: the same numbers for equal shapes, ones for a single number."""
    rounded = dtypes or [o.dtype for o in outputs]
    return [
        _drawn(o, place).to(dtype).to(o.dtype)
        for place, (o, dtype) in enumerate(zip(outputs, rounded, strict=True))
        if o.requires_grad
    ]


def drawn(shape: Sequence[int], device: torch.device, seed: int) -> Tensor:
    """Normally distributed numbers in float32, the same on every device.

    A million and three of them, again and again where there are more: drawing hundreds of millions takes a CPU seconds,
    and rows that repeat after so odd a number are still all different.
    """
    count = math.prod(shape)
    few = torch.randn(min(count, _PERIOD), generator=torch.Generator().manual_seed(seed)).to(device)
    return few.repeat(-(-count // _PERIOD))[:count].view(tuple(shape)) if count > _PERIOD else few.view(tuple(shape))


def _drawn(like: Tensor, place: int) -> Tensor:
    if like.numel() == 1:
        return torch.ones_like(like)
    return drawn(like.shape, like.device, _SEED + place)


def _gradients(outputs: Iterable[Tensor], leaves: Sequence[Tensor], incoming: Sequence[Tensor]) -> list[Tensor | None]:
    reached = [o for o in outputs if o.requires_grad]
    if not reached:
        return [None] * len(leaves)
    return list(torch.autograd.grad(reached, leaves, incoming, allow_unused=True))


def _copied(x: Any) -> Any:
    """A tensor's copy with its strides; what is expanded stays so."""
    if not isinstance(x, Tensor):
        return x
    source = x.detach()
    for dim, stride in enumerate(source.stride()):
        if stride == 0 and source.shape[dim] > 1:
            source = source.narrow(dim, 0, 1)
    copy = torch.empty_strided(source.shape, source.stride(), dtype=x.dtype, device=x.device).copy_(source)
    return (copy if copy.shape == x.shape else copy.expand(x.shape)).requires_grad_(x.requires_grad)


def _rough(x: Any) -> Any:
    if not isinstance(x, Tensor) or not x.is_floating_point():
        return x
    share = torch.tanh(drawn(x.shape, x.device, x.numel())).double()
    moved = x.detach().double() * (1 + share * torch.finfo(x.dtype).eps / 2)
    return moved.requires_grad_(x.requires_grad)


def _doubled(x: Any, device: torch.device) -> Any:
    if isinstance(x, torch.dtype):
        return torch.float64 if x.is_floating_point else WIDER.get(x, x)
    if not isinstance(x, Tensor):
        return x
    dtype = torch.float64 if x.is_floating_point() else WIDER.get(x.dtype, x.dtype)
    return x.detach().to(device, dtype).requires_grad_(x.requires_grad)
