"""Operators of our own in torch's dispatcher: what opaque kernels are called through.

Knows torch.library; must not know kernels. torch.library's functions are used one by one and not by `custom_op`, which
wraps them all. Where nobody looks on, an operator is not even dispatched: it is the same function and the same gradient
by an autograd.Function. Measured on a CPU, forward and backward of an empty operator with ten arguments cost 31
microseconds so, 88 through the dispatcher and 121 by `custom_op`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from autofuse.kernels.packages import loaded
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

    `overload` is what is registered. Compilers, tracers, modes, profilers, autocast and subclasses of tensors see that;
    a call that none of them looks at goes past the dispatcher.
    """

    def __init__(self, overload: Any, function: Callable[..., Any], direct: Callable[..., Any], name: str) -> None:
        self.overload, self.function, self.direct, self.name = overload, function, direct, name
        self._gradient: Callable[..., Any] | None = None  # of calls that nobody looks at
        kinds = [str(kind) for argument, kind in function.__annotations__.items() if argument != "return"]
        self._tensors = tuple(i for i, kind in enumerate(kinds) if "Tensor" in kind)

    def __call__(self, *args: Any) -> Any:
        if _is_observed():
            return self.overload(*args)
        wanted = False
        for i in self._tensors:  # at every call: a loop takes a third of what generators take
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
        """Give the gradient: `save(ctx, inputs, output)` in the forward pass, `backward(ctx, *gradients)`.

        forward: what the autograd.Function of calls that nobody looks at runs, `forward(ctx, *inputs)`, where it has
        less to do than the operator and `save`: results that only the backward pass reads need not become outputs.
        """
        torch.library.register_autograd(f"{NAMESPACE}::{self.name}", backward, setup_context=save, lib=_LIBRARY)
        function = self.function

        def as_registered(ctx: Any, *args: Any) -> Any:
            output = function(*args)
            save(ctx, args, output)
            return output

        members = {"forward": staticmethod(forward or as_registered), "backward": staticmethod(backward)}
        made: Any = type(f"{NAMESPACE}::{self.name}", (torch.autograd.Function,), members)
        # What torch's own `apply` calls once it has asked about functorch, as _is_observed has: 3 microseconds less.
        self._gradient = getattr(super(torch.autograd.Function, made), "apply", made.apply)


_PLAIN = frozenset({Tensor, torch.nn.Parameter})


def _is_observed() -> bool:
    """Whether anybody would miss a call that is not dispatched."""
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
    """`function` as torch.ops.autofuse.<its name without leading underscores>, for all devices.

    The schema is read off its annotations. It must write into none of its arguments, return none of them nor views of
    them, and see tensors without autograd. `fake` gives results of the same shapes, dtypes and strides without
    computing. `flops` takes shapes in place of tensors, as torch.utils.flop_counter has it; None counts none, which is
    right for what is no matrix product. `direct` is called instead where nobody looks on: it gives the same, but for
    results that hold nothing, which may be None.
    """
    name = function.__name__.strip("_")
    library: Any = _LIBRARY
    library.define(name + torch.library.infer_schema(function, mutates_args=()), tags=(torch.Tag.pt2_compliant_tag,))
    library.impl(name, function, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=_LIBRARY)
    packet = getattr(getattr(torch.ops, NAMESPACE), name)
    if flops is not None:
        _count(packet, flops)
    return RegisteredOperator(packet.default, function, direct or function, name)


def _count(packet: Any, flops: Callable[..., int]) -> None:
    """Tell torch's counter, once somebody imports it: that imports Triton, and may break there."""
    when_imported("torch.utils.flop_counter", lambda counter: counter.register_flop_formula(packet)(flops))


def differentiate(
    operator: RegisteredOperator, backward: Callable[..., Any], save: Callable[..., None],
    forward: Callable[..., Any] | None = None,
) -> None:  # fmt: skip
    """Give an operator its gradient, as `RegisteredOperator.differentiate` has it."""
    operator.differentiate(backward, save, forward)


def by_formula(
    formula: Callable[..., Any], inputs: Sequence[Any], gradients: Sequence[Tensor | None], wanted: Sequence[bool]
) -> list[Tensor | None]:
    """The gradients of `formula(*inputs)` as functions that have derivatives themselves.

    For a backward pass that builds a graph of itself (torch.is_grad_enabled() there), which kernels cannot. One entry
    for each input, None where it is not `wanted`.
    """
    with torch.enable_grad():
        own = [x.view_as(x) if isinstance(x, Tensor) and w else x for x, w in zip(inputs, wanted, strict=True)]
        made = formula(*own)
        results = made if isinstance(made, tuple) else (made,)
        pairs = [(r, g) for r, g in zip(results, gradients, strict=True) if g is not None]
        places = [i for i, w in enumerate(wanted) if w]
        found = torch.autograd.grad(
            [r for r, _ in pairs], [own[i] for i in places], [g for _, g in pairs], create_graph=True, allow_unused=True
        )
    answers: list[Tensor | None] = [None] * len(own)
    for place, gradient in zip(places, found, strict=True):
        answers[place] = gradient
    return answers


class Kernels:
    """The implementations of an operator by name: modules with functions of equal signatures, loaded when asked for.

    `Kernels(triton="autofuse.kernels.triton.norm")["triton"].forward(...)`.
    """

    def __init__(self, **modules: str) -> None:
        self._modules = modules
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        found = self._loaded.get(name)
        if found is None:
            found = self._loaded[name] = loaded(self._modules[name])
        return found
