"""One call of one operation that can be repeated: copies of its arguments, its outcome, a step to time.

Arguments are trees of tensors. This file neither judges results nor measures time, and it treats all operations alike.
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
from autofuse.verify.differences import are_equal_tensors

Function = Callable[..., Any]
_SEED = 2026
_PERIOD = 1_000_003
_RATES = ("dropout_p", "p")  # names of the argument for the dropout probability


@dataclass(frozen=True)
class FunctionCall:
    """The arguments of one call.

    Tensors that require a gradient are leaves, and share no memory with the caller's tensors. `backward` is True if
    gradients are computed as well.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    backward: bool

    @classmethod
    def of(cls, args: Sequence[Any], kwargs: Mapping[str, Any], backward: bool) -> FunctionCall:
        """Return a copy of the arguments with the same sizes, strides and `requires_grad`.

        Without a tensor that requires a gradient, `backward` becomes False.
        """
        copied_args, copied_kwargs = pytree.tree_map(_copy_tensor, (tuple(args), dict(kwargs)))
        copy = cls(copied_args, copied_kwargs, backward)
        return copy if copy.leaves else cls(copied_args, copied_kwargs, False)

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors, in order."""
        return list(tensors_in((self.args, dict(self.kwargs))))

    @property
    def leaves(self) -> list[Tensor]:
        """The tensors that require a gradient."""
        return [t for t in self.tensors if t.requires_grad]

    @property
    def device(self) -> torch.device:
        """The device of the first tensor."""
        return self.tensors[0].device

    @property
    def bytes(self) -> int:
        """The memory of the tensors in bytes."""
        return sum(t.numel() * t.element_size() for t in self.tensors)

    def with_rounding_noise(self) -> FunctionCall:
        """Return the call in float64, with each floating-point number changed at random by up to one unit roundoff."""
        args, kwargs = pytree.tree_map(_add_rounding_noise, (self.args, dict(self.kwargs)))
        return FunctionCall(args, kwargs, self.backward).in_double()

    def copy(self) -> FunctionCall:
        """Return a copy, for code that may write into its arguments."""
        return FunctionCall.of(self.args, self.kwargs, self.backward)

    def in_double(self) -> FunctionCall:
        """Return the call in float64; on the CPU if the device has no float64."""
        device = self.device if self.device.type in ("cpu", "cuda", "xpu") else torch.device("cpu")
        args, kwargs = pytree.tree_map(lambda x: _to_double(x, device), (self.args, dict(self.kwargs)))
        return FunctionCall(args, kwargs, self.backward)

    def dropout_rate(self, run: Function) -> float:
        """Return the dropout rate of `run`; 0 if it has no dropout or is not in training."""
        bound = self._bind(run)
        arguments = {} if bound is None else bound.arguments
        rates = [float(arguments.get(name) or 0.0) for name in _RATES]
        return max(rates) if arguments.get("training", True) else 0.0

    def without_dropout(self, run: Function) -> FunctionCall:
        """Return the same call of `run` without dropout."""
        bound = self._bind(run)
        if bound is None:
            return self
        bound.arguments.update((name, 0.0) for name in _RATES if name in bound.arguments)
        return FunctionCall(bound.args, bound.kwargs, self.backward)

    def result_of(self, run: Function) -> Any:
        """Return the result of `run`; it keeps the tensors that are saved for backward alive."""
        with torch.set_grad_enabled(self.backward):
            return run(*self.args, **self.kwargs)

    def outcome(self, run: Function, dtypes: Sequence[torch.dtype] = ()) -> FunctionOutcome:
        """Run once, from the same random state every time.

        Two runs with the same output shapes get the same output gradients.

        Args:
            run: the function.
            dtypes: one dtype for each output; the output gradients are rounded to it first.

        Returns:
            The outputs, the gradients, and whether the arguments are unchanged.
        """
        copy = self.copy()
        seed_generators(self.device)  # both runs of a comparison then draw the same dropout
        outputs = list(tensors_in(copy.result_of(run)))
        incoming = random_output_gradients(outputs, dtypes) if self.backward else []
        # Some backward kernels write into the gradient that they receive.
        gradients = _gradients(outputs, copy.leaves, [g.clone() for g in incoming]) if self.backward else []
        arguments_unchanged = all(map(are_equal_tensors, self.tensors, copy.tensors))
        return FunctionOutcome(tuple(o.detach() for o in outputs), tuple(gradients), arguments_unchanged)

    def step(self, run: Function) -> Callable[[], object]:
        """Return the function to time: forward and backward, or forward alone if no gradient is needed."""
        if not self.backward:
            return lambda: self.result_of(run)
        leaves, incoming = self.leaves, random_output_gradients(list(tensors_in(self.result_of(run))))
        return lambda: _gradients(list(tensors_in(self.result_of(run))), leaves, incoming)

    def _bind(self, run: Function) -> inspect.BoundArguments | None:
        """The arguments by name; None for a builtin, which has no signature."""
        try:
            bound = inspect.signature(run).bind(*self.args, **self.kwargs)
        except ValueError:
            return None
        bound.apply_defaults()
        return bound


@dataclass(frozen=True)
class FunctionOutcome:
    """The result of one call.

    Attributes:
        outputs: its outputs.
        gradients: the gradient of each tensor that requires one; None if there is none.
        arguments_unchanged: whether the call left its arguments unchanged.
    """

    outputs: tuple[Tensor, ...]
    gradients: tuple[Tensor | None, ...]
    arguments_unchanged: bool

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        """The outputs and the gradients."""
        return self.outputs + self.gradients

    def name(self, place: int) -> str:
        """Return the name of the tensor at that position of `tensors`, for a message."""
        outputs = len(self.outputs)
        if place >= outputs:
            return f"gradient {place - outputs + 1}"
        return "the result" if outputs == 1 else f"result {place + 1}"


def seed_generators(device: torch.device) -> None:
    """Seed the generators that a kernel on `device` uses. Other devices are not seeded, which would initialize them."""
    torch.default_generator.manual_seed(_SEED)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(_SEED)


def random_output_gradients(outputs: Sequence[Tensor], dtypes: Sequence[torch.dtype] = ()) -> list[Tensor]:
    """Return a gradient for each output that requires one.

    Equal shapes get the same numbers; a single number gets ones.
    """
    rounded = dtypes or [o.dtype for o in outputs]
    return [
        _random_gradient(o, place).to(dtype).to(o.dtype)
        for place, (o, dtype) in enumerate(zip(outputs, rounded, strict=True))
        if o.requires_grad
    ]


def random_numbers(shape: Sequence[int], device: torch.device, seed: int) -> Tensor:
    """Return normally distributed float32 numbers, the same on every device.

    Beyond a million and three numbers, they repeat: drawing hundreds of millions takes seconds on a CPU. Rows still
    differ, because the period is odd.
    """
    count = math.prod(shape)
    few = torch.randn(min(count, _PERIOD), generator=torch.Generator().manual_seed(seed)).to(device)
    return few.repeat(-(-count // _PERIOD))[:count].view(tuple(shape)) if count > _PERIOD else few.view(tuple(shape))


def _random_gradient(like: Tensor, place: int) -> Tensor:
    if like.numel() == 1:
        return torch.ones_like(like)
    return random_numbers(like.shape, like.device, _SEED + place)


def _gradients(outputs: Iterable[Tensor], leaves: Sequence[Tensor], incoming: Sequence[Tensor]) -> list[Tensor | None]:
    differentiable = [o for o in outputs if o.requires_grad]
    if not differentiable:
        return [None] * len(leaves)
    return list(torch.autograd.grad(differentiable, leaves, incoming, allow_unused=True))


def _copy_tensor(x: Any) -> Any:
    """Return a copy of a tensor with its strides; an expanded dimension stays expanded."""
    if not isinstance(x, Tensor):
        return x
    source = x.detach()
    # `copy_` refuses memory that several entries share, so one entry of each expanded dimension is copied.
    for dim, stride in enumerate(source.stride()):
        if stride == 0 and source.shape[dim] > 1:
            source = source.narrow(dim, 0, 1)
    copy = torch.empty_strided(source.shape, source.stride(), dtype=x.dtype, device=x.device).copy_(source)
    return (copy if copy.shape == x.shape else copy.expand(x.shape)).requires_grad_(x.requires_grad)


def _add_rounding_noise(x: Any) -> Any:
    if not isinstance(x, Tensor) or not x.is_floating_point():
        return x
    # tanh limits each change to one unit roundoff.
    share = torch.tanh(random_numbers(x.shape, x.device, x.numel())).double()
    moved = x.detach().double() * (1 + share * torch.finfo(x.dtype).eps / 2)
    return moved.requires_grad_(x.requires_grad)


def _to_double(x: Any, device: torch.device) -> Any:
    if isinstance(x, torch.dtype):  # an argument such as dtype=torch.bfloat16
        return torch.float64 if x.is_floating_point else WIDER.get(x, x)
    if not isinstance(x, Tensor):
        return x
    dtype = torch.float64 if x.is_floating_point() else WIDER.get(x.dtype, x.dtype)
    return x.detach().to(device, dtype).requires_grad_(x.requires_grad)
