"""Functions of other packages: looked up at the first call, and called only if their signature is the expected one.

A package that changed a parameter raises Unavailable before anything is computed, and the operation chooses another
provider. This file also handles derivatives of gradients, which no package has.
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
from autofuse.kernels.operators import formula_gradients
from autofuse.kernels.packages import Unavailable, load_module

_EMPTY = inspect.Parameter.empty
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True)
class PackageFunction:
    """A function of another package, or an autograd function, which is called through its `apply`.

    Attributes:
        module: the module of the function.
        name: its name there.
        positional: the names of the parameters that are passed by position, in order.
        named: the names of the parameters that are passed by name. All others need defaults.
    """

    module: str
    name: str
    positional: tuple[str, ...]
    named: tuple[str, ...] = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function.

        Raises:
            Unavailable: if it is missing or has another signature.
        """
        return _function(self)(*args, **kwargs)

    def refusal(self, parameters: Sequence[inspect.Parameter]) -> str:
        """The reason why a function with these parameters cannot be called like this one; "" if it can."""
        if any(p.kind in _VARIADIC for p in parameters):
            return f"{self.path} takes arbitrary arguments, so its signature cannot be checked."
        by_position = [p.name for p in parameters if p.kind is not inspect.Parameter.KEYWORD_ONLY]
        if tuple(by_position[: len(self.positional)]) != self.positional:
            return f"{self.path} takes ({', '.join(by_position)}), but ({', '.join(self.positional)}) is expected."
        by_name = {p.name for p in parameters if p.kind is not inspect.Parameter.POSITIONAL_ONLY}
        unknown = [name for name in self.named if name not in by_name]
        if unknown:
            return f"{self.path} has no parameter {', '.join(unknown)}."
        passed = {*self.positional, *self.named}
        required = [p.name for p in parameters if p.default is _EMPTY and p.name not in passed]
        return f"{self.path} also requires {', '.join(required)}." if required else ""

    @property
    def path(self) -> str:
        """The path of the function, for messages."""
        return f"{self.module}.{self.name}"


@cache
def _function(expected: PackageFunction) -> Callable[..., Any]:
    """The function to call.

    Raises:
        Unavailable: if it is missing or has another signature.
    """
    function = getattr(load_module(expected.module), expected.name, None)
    if function is None:
        raise Unavailable(f"{expected.module} has no {expected.name}.")
    is_autograd = isinstance(function, type) and issubclass(function, torch.autograd.Function)
    try:
        parameters = list(inspect.signature(function.forward if is_autograd else function).parameters.values())
    except (TypeError, ValueError) as error:
        raise Unavailable(f"{expected.path} has no readable signature: {error}") from error
    if is_autograd and parameters and parameters[0].name == "ctx":  # `apply` passes the context itself
        parameters = parameters[1:]
    refusal = expected.refusal(parameters)
    if refusal:
        raise Unavailable(refusal)
    callee: Callable[..., Any] = function.apply if is_autograd else function
    return callee


# Derivatives of gradients. No package's kernels have them, and most silently return zeros.


def twice_differentiable(operation: str, run: Callable[..., Any]) -> Callable[..., Any]:
    """`run`, where a backward pass that builds a graph of itself takes the gradients of the plain formula.

    The formula is what the provider "torch" of `operation` computes. The operands are saved for it, so this is for
    kernels that save them anyway.
    """

    def differentiable(*args: Any, **kwargs: Any) -> Any:
        operands = _arguments_with_gradient(args, kwargs)
        if not operands:
            return run(*args, **kwargs)
        call = _Call(operation, args, kwargs, tuple(operands))
        made = call.put(_FormulaGradients.apply(call, *operands.values()))  # type: ignore[no-untyped-call]
        result = run(*made[0], **made[1])
        for place, part in enumerate(result if isinstance(result, tuple) else (result,)):
            if part.requires_grad:
                part.register_hook(_gradient_hook(call, place))
        return result

    return differentiable


def once_differentiable(provider: str, run: Callable[..., Any]) -> Callable[..., Any]:
    """`run`, where a backward pass that builds a graph of itself raises an error instead of a wrong derivative."""

    def refuse(gradient: Tensor) -> None:
        if torch.is_grad_enabled():
            raise RuntimeError(
                f"The kernel of {provider} has no derivative of its gradient, which create_graph=True requests. "
                "Set the environment variable AUTOFUSE_PROVIDERS=torch,triton,compiled to exclude such kernels."
            )

    def differentiable(*args: Any, **kwargs: Any) -> Any:
        result = run(*args, **kwargs)
        for part in result if isinstance(result, tuple) else (result,):
            if part.requires_grad:
                part.register_hook(refuse)
        return result

    return differentiable


@dataclass
class _Call:
    """A call, the places of the operands that get a gradient, and the gradients of its results."""

    operation: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    places: tuple[int | str, ...]
    gradients: dict[int, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Drops the operands: the node that needs them saves them, so that torch sees them."""
        self.args, self.kwargs = self.put([None] * len(self.places))

    def put(self, operands: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The call's arguments with other operands in these places."""
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


class _FormulaGradients(torch.autograd.Function):
    """Returns the operands unchanged.

    Its backward pass replaces the kernel's gradients by those of the formula if a graph is built.
    """

    @staticmethod
    def forward(ctx: Any, call: _Call, *operands: Tensor) -> tuple[Tensor, ...]:
        ctx.call = call
        ctx.save_for_backward(*operands)
        # New tensors, so that the gradients of the kernel flow through this node and not past it.
        return tuple(x.view_as(x) for x in operands)

    @staticmethod
    def backward(ctx: Any, *found: Tensor | None) -> tuple[Tensor | None, ...]:
        call: _Call = ctx.call
        if not torch.is_grad_enabled() or not call.gradients:
            return None, *found
        operands = ctx.saved_tensors
        gradients = [call.gradients.pop(place, None) for place in range(max(call.gradients) + 1)]
        formula = _keep_first_results(call.formula, len(gradients))
        return None, *formula_gradients(formula, operands, gradients, [True] * len(operands))


def _keep_first_results(formula: Callable[..., Any], count: int) -> Callable[..., Any]:
    """`formula` with only the first `count` of its results. The others got no gradient."""

    def first_results(*operands: Tensor) -> Any:
        result = formula(*operands)
        return result[:count] if isinstance(result, tuple) else result

    return first_results


def _gradient_hook(call: _Call, place: int) -> Callable[[Tensor], None]:
    """A hook that stores a result's gradient for `_FormulaGradients`, which runs after the kernel's backward pass."""

    def keep(gradient: Tensor) -> None:
        if torch.is_grad_enabled():  # kept only if the gradients are replaced, because it is as large as the result
            call.gradients[place] = gradient

    return keep


def _arguments_with_gradient(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[int | str, Tensor]:
    """The arguments that get a gradient, by place or name."""
    if not torch.is_grad_enabled():
        return {}
    places: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
    return {place: x for place, x in places if isinstance(x, Tensor) and x.requires_grad}


def first_result(made: Any) -> Tensor:
    """The result of a package's attention. Some versions return the log-sum-exp too."""
    result: Tensor = made[0] if isinstance(made, tuple) else made
    return result


def with_contiguous_gradient(result: Tensor) -> Tensor:
    """`result` of a kernel that reads its gradient as contiguous, and may write into it: the kernel gets a copy."""
    if result.requires_grad:
        result.register_hook(_contiguous_copy)  # type: ignore[no-untyped-call]
    return result


def _contiguous_copy(gradient: Tensor) -> Tensor:
    return gradient.clone(memory_format=torch.contiguous_format)
