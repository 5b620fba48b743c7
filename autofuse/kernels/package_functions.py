"""Functions of other packages: found when they are first called, called only if they are what they were.

Knows how a function of a package is reached, how its parameters are compared with what is passed here, and what happens
to a derivative of a gradient; must not know which operation it computes. A package that changed its mind about a
parameter raises Unavailable before anything is computed, and the choice falls on another provider.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor

from autofuse.kernels.operation import OPERATIONS
from autofuse.kernels.operators import by_formula
from autofuse.kernels.packages import Unavailable, loaded

_EMPTY = inspect.Parameter.empty
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True)
class PackageFunction:
    """A function of another package, or an autograd function, which is called by its `apply`.

    `positional` are the names of the parameters that are passed by position, in that order, `named` of those that are
    passed by name. All others have to have defaults.
    """

    module: str
    name: str
    positional: tuple[str, ...]
    named: tuple[str, ...] = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _function(self)(*args, **kwargs)

    def refusal(self, parameters: Sequence[inspect.Parameter]) -> str:
        """Why a function of these parameters cannot be called as this one is, as a sentence; "" where it can."""
        if any(p.kind in _VARIADIC for p in parameters):
            return f"{self.path} takes any arguments: what it does with them cannot be known."
        by_position = [p.name for p in parameters if p.kind is not inspect.Parameter.KEYWORD_ONLY]
        if tuple(by_position[: len(self.positional)]) != self.positional:
            return f"{self.path} takes ({', '.join(by_position)}), where ({', '.join(self.positional)}) is expected."
        by_name = {p.name for p in parameters if p.kind is not inspect.Parameter.POSITIONAL_ONLY}
        unknown = [name for name in self.named if name not in by_name]
        if unknown:
            return f"{self.path} does not take {', '.join(unknown)}."
        passed = {*self.positional, *self.named}
        wanted = [p.name for p in parameters if p.default is _EMPTY and p.name not in passed]
        return f"{self.path} wants {', '.join(wanted)} as well." if wanted else ""

    @property
    def path(self) -> str:
        return f"{self.module}.{self.name}"


@cache
def _function(borrowed: PackageFunction) -> Callable[..., Any]:
    """What is called. Raises Unavailable where it is not there, or not what it was."""
    there = getattr(loaded(borrowed.module), borrowed.name, None)
    if there is None:
        raise Unavailable(f"{borrowed.module} has no {borrowed.name}.")
    is_autograd = isinstance(there, type) and issubclass(there, torch.autograd.Function)
    try:
        parameters = list(inspect.signature(there.forward if is_autograd else there).parameters.values())
    except (TypeError, ValueError) as error:
        raise Unavailable(f"{borrowed.path} does not say what it takes: {error}") from error
    if is_autograd and parameters and parameters[0].name == "ctx":
        parameters = parameters[1:]
    refusal = borrowed.refusal(parameters)
    if refusal:
        raise Unavailable(refusal)
    called: Callable[..., Any] = there.apply if is_autograd else there
    return called


# Derivatives of gradients. Nobody's kernels have them, and most give zeros without a word.


def twice_differentiable(operation: str, run: Callable[..., Any]) -> Callable[..., Any]:
    """`run`, in which a backward pass that builds a graph of itself takes the gradients of the plain formula.

    The formula is what the provider "torch" of `operation` computes. The operands are kept for it: this is for kernels
    that keep them anyway.
    """

    def differentiable(*args: Any, **kwargs: Any) -> Any:
        operands = _differentiated(args, kwargs)
        if not operands:
            return run(*args, **kwargs)
        asked = _Asked(operation, args, kwargs, tuple(operands))
        made = asked.put(_Entrance.apply(asked, *operands.values()))  # type: ignore[no-untyped-call]
        result = run(*made[0], **made[1])
        for place, part in enumerate(result if isinstance(result, tuple) else (result,)):
            if part.requires_grad:
                part.register_hook(_keeping(asked, place))
        return result

    return differentiable


def once_differentiable(provider: str, run: Callable[..., Any]) -> Callable[..., Any]:
    """`run`, in which a backward pass that builds a graph of itself is an error instead of a wrong derivative."""

    def refuse(gradient: Tensor) -> None:
        if torch.is_grad_enabled():
            raise RuntimeError(
                f"The derivative of a gradient was asked for (create_graph=True) of a kernel of {provider}, which has "
                "none. Set the environment variable AUTOFUSE_PROVIDERS=torch,triton,compiled to leave such kernels out."
            )

    def differentiable(*args: Any, **kwargs: Any) -> Any:
        result = run(*args, **kwargs)
        for part in result if isinstance(result, tuple) else (result,):
            if part.requires_grad:
                part.register_hook(refuse)
        return result

    return differentiable


@dataclass
class _Asked:
    """A call, the places of the operands that get a gradient in it, and the gradients of its results."""

    operation: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    places: tuple[int | str, ...]
    gradients: dict[int, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """The operands are not kept here, where torch would not see them, but with the node that needs them."""
        self.args, self.kwargs = self.put([None] * len(self.places))

    def put(self, operands: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The call's arguments with other operands in their places."""
        args, kwargs = list(self.args), dict(self.kwargs)
        for place, operand in zip(self.places, operands, strict=True):
            if isinstance(place, int):
                args[place] = operand
            else:
                kwargs[place] = operand
        return tuple(args), kwargs

    def formula(self, *operands: Tensor) -> Any:
        args, kwargs = self.put(operands)
        return OPERATIONS[self.operation].torch.run(*args, **kwargs)


class _Entrance(torch.autograd.Function):
    """The operands as they are; backward, the formula's gradients in place of the kernel's where a graph is built."""

    @staticmethod
    def forward(ctx: Any, asked: _Asked, *operands: Tensor) -> tuple[Tensor, ...]:
        ctx.asked = asked
        ctx.save_for_backward(*operands)
        return tuple(x.view_as(x) for x in operands)

    @staticmethod
    def backward(ctx: Any, *found: Tensor | None) -> tuple[Tensor | None, ...]:
        asked: _Asked = ctx.asked
        if not torch.is_grad_enabled() or not asked.gradients:
            return None, *found
        operands = ctx.saved_tensors
        gradients = [asked.gradients.pop(place, None) for place in range(max(asked.gradients) + 1)]
        formula = _only_first(asked.formula, len(gradients))
        return None, *by_formula(formula, operands, gradients, [True] * len(operands))


def _only_first(formula: Callable[..., Any], count: int) -> Callable[..., Any]:
    """`formula`, of several results the first `count`: the others got no gradient."""

    def shortened(*operands: Tensor) -> Any:
        result = formula(*operands)
        return result[:count] if isinstance(result, tuple) else result

    return shortened


def _keeping(asked: _Asked, place: int) -> Callable[[Tensor], None]:
    """A hook that keeps a result's gradient for the entrance, which is reached after the kernel's own backward."""

    def keep(gradient: Tensor) -> None:
        if torch.is_grad_enabled():
            asked.gradients[place] = gradient

    return keep


def _differentiated(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[int | str, Tensor]:
    """Which arguments get a gradient, by place or name."""
    if not torch.is_grad_enabled():
        return {}
    places: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
    return {place: x for place, x in places if isinstance(x, Tensor) and x.requires_grad}


def result_alone(made: Any) -> Tensor:
    """The result of a package's attention; some versions return the log-sum-exp with it."""
    result: Tensor = made[0] if isinstance(made, tuple) else made
    return result


def with_whole_gradient(result: Tensor) -> Tensor:
    """`result` of a kernel that reads its gradient as if it were contiguous, and may write into it."""
    if result.requires_grad:
        result.register_hook(_own)  # type: ignore[no-untyped-call]
    return result


def _own(gradient: Tensor) -> Tensor:
    return gradient.clone(memory_format=torch.contiguous_format)
