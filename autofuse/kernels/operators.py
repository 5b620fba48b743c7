"""Operators of our own in torch's dispatcher, through which opaque kernels are called.

torch.library's functions are used directly instead of `custom_op`, which wraps them all. If nothing observes a call,
the operator is not even dispatched: the same function runs, with the same gradient in an autograd.Function. Measured on
a CPU, forward and backward of an empty operator with ten arguments cost 31 microseconds this way, 88 through the
dispatcher, and 121 with `custom_op`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from autofuse.kernels.packages import load_module
from autofuse.kernels.when_imported import when_imported
from autofuse.torch_private import (
    get_tracing_state,
    is_any_autocast_enabled,
    is_profiler_enabled,
    len_torch_dispatch_stack,
    peek_interpreter_stack,
)

NAMESPACE = "autofuse"
_LIBRARY = torch.library.Library(NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]


class RegisteredOperator:
    """A registered operator, called like a function of its positional arguments.

    `overload` is the registered operator. Compilers, tracers, modes, profilers, autocast and tensor subclasses see it.
    A call that none of them observes bypasses the dispatcher.
    """

    def __init__(self, overload: Any, function: Callable[..., Any], direct: Callable[..., Any], name: str) -> None:
        self.overload, self.function, self.direct, self.name = overload, function, direct, name
        self._gradient: Callable[..., Any] | None = None  # for calls that bypass the dispatcher
        kinds = [str(kind) for argument, kind in function.__annotations__.items() if argument != "return"]
        self._tensors = tuple(i for i, kind in enumerate(kinds) if "Tensor" in kind)

    def __call__(self, *args: Any) -> Any:
        """Calls the operator, past the dispatcher if nothing observes the call."""
        if _is_observed():
            return self.overload(*args)
        wanted = False
        for i in self._tensors:  # runs at every call, and a loop takes a third of the time of a generator
            a = args[i]
            if a is None:
                continue
            if type(a) not in _PLAIN:
                return self.overload(*args)
            wanted = wanted or a.requires_grad
        if not wanted or not torch.is_grad_enabled():
            return self.direct(*args)
        if self._gradient is None:
            return self.overload(*args)
        return self._gradient(*args)

    def differentiate(
        self, backward: Callable[..., Any], save: Callable[..., None], forward: Callable[..., Any] | None = None
    ) -> None:
        """Registers the gradient.

        Args:
            backward: `backward(ctx, *gradients)`, the backward pass.
            save: `save(ctx, inputs, output)`, runs in the forward pass.
            forward: `forward(ctx, *inputs)`, for calls that bypass the dispatcher, if it can do less than the operator
                and `save`: results that only the backward pass reads need not become outputs.
        """
        torch.library.register_autograd(f"{NAMESPACE}::{self.name}", backward, setup_context=save, lib=_LIBRARY)
        function = self.function

        def as_registered(ctx: Any, *args: Any) -> Any:
            output = function(*args)
            save(ctx, args, output)
            return output

        members = {"forward": staticmethod(forward or as_registered), "backward": staticmethod(backward)}
        autograd_function: Any = type(f"{NAMESPACE}::{self.name}", (torch.autograd.Function,), members)
        # torch's own `apply` first checks for functorch, which _is_observed has done. Skipping it saves 3 microseconds.
        self._gradient = getattr(super(torch.autograd.Function, autograd_function), "apply", autograd_function.apply)


_PLAIN = frozenset({Tensor, torch.nn.Parameter})


def _is_observed() -> bool:
    """Whether a mode, a transform or a profiler observes dispatched calls."""
    return (
        torch.compiler.is_compiling()
        or len_torch_dispatch_stack() > 0
        or is_any_autocast_enabled()
        or is_profiler_enabled()
        or peek_interpreter_stack() is not None
        or get_tracing_state() is not None
    )


def define(
    function: Callable[..., Any], fake: Callable[..., Any], flops: Callable[..., int] | None = None, *,
    direct: Callable[..., Any] | None = None,
) -> RegisteredOperator:  # fmt: skip
    """Registers `function` as torch.ops.autofuse.<its name without leading underscores>, for all devices.

    The schema follows from the annotations.

    Args:
        function: must not write into its arguments, nor return them or views of them. It sees tensors without autograd.
        fake: returns results with the same shapes, dtypes and strides without computing.
        flops: takes shapes in place of tensors, as torch.utils.flop_counter requires. None counts none, which is right
            for operators without matrix products.
        direct: is called instead if nothing observes the call. It computes the same, but may return None in place of
            empty results.

    Returns:
        The operator.
    """
    name = function.__name__.strip("_")
    library: Any = _LIBRARY
    library.define(name + torch.library.infer_schema(function, mutates_args=()), tags=(torch.Tag.pt2_compliant_tag,))
    library.impl(name, function, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=_LIBRARY)
    packet = getattr(getattr(torch.ops, NAMESPACE), name)
    if flops is not None:
        _register_flops(packet, flops)
    return RegisteredOperator(packet.default, function, direct or function, name)


def _register_flops(packet: Any, flops: Callable[..., int]) -> None:
    """Registers the formula with torch's FLOP counter once that is imported. Its import loads Triton and may fail."""
    when_imported("torch.utils.flop_counter", lambda counter: counter.register_flop_formula(packet)(flops))


def differentiate(
    operator: RegisteredOperator, backward: Callable[..., Any], save: Callable[..., None],
    forward: Callable[..., Any] | None = None,
) -> None:  # fmt: skip
    """Registers the gradient of an operator; see `RegisteredOperator.differentiate`."""
    operator.differentiate(backward, save, forward)


def formula_gradients(
    formula: Callable[..., Any], inputs: Sequence[Any], gradients: Sequence[Tensor | None], wanted: Sequence[bool]
) -> list[Tensor | None]:
    """The gradients of `formula(*inputs)` as differentiable functions.

    For a backward pass that builds a graph of itself (torch.is_grad_enabled() is True there), which kernels cannot do.

    Args:
        formula: the computation in torch's functions.
        inputs: its arguments.
        gradients: those of its results; None for none.
        wanted: for each input, whether its gradient is needed.

    Returns:
        One entry for each input; None for those that are not `wanted`.
    """
    with torch.enable_grad():
        leaves = [x.view_as(x) if isinstance(x, Tensor) and w else x for x, w in zip(inputs, wanted, strict=True)]
        autograd_function = formula(*leaves)
        results = autograd_function if isinstance(autograd_function, tuple) else (autograd_function,)
        pairs = [(r, g) for r, g in zip(results, gradients, strict=True) if g is not None]
        places = [i for i, w in enumerate(wanted) if w]
        found = torch.autograd.grad(
            [r for r, _ in pairs],
            [leaves[i] for i in places],
            [g for _, g in pairs],
            create_graph=True,
            allow_unused=True,
        )
    results_by_input: list[Tensor | None] = [None] * len(leaves)
    for place, gradient in zip(places, found, strict=True):
        results_by_input[place] = gradient
    return results_by_input


class Kernels:
    """The implementations of an operator by name: modules with equal functions, imported at the first use.

    `Kernels(triton="autofuse.kernels.triton.norm")["triton"].forward(...)`.
    """

    def __init__(self, **modules: str) -> None:
        self._modules = modules
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        found = self._loaded.get(name)
        if found is None:
            found = self._loaded[name] = load_module(self._modules[name])
        return found
