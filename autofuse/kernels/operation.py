"""An operation chooses one of its providers for each call.

The choice is made once for each kind of call (device, dtype, sizes, training): first the provider that was measured to
be the best, otherwise the defaults in order (our own kernel, then torch's). The provider "torch" takes every call:
plain torch code, which compilers, functorch and tensor subclasses can trace. Two groups of calls go to it at once: all
that is not plain eager execution, and small calls, where choosing and dispatching cost more than a kernel saves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from autofuse.kernels.decisions import Kind, has_measurements, measured_ranking
from autofuse.kernels.devices import run_on_device_of
from autofuse.kernels.failures import CallKind, Failures, call_kind
from autofuse.kernels.gpu_thresholds import GpuThreshold
from autofuse.kernels.packages import Unavailable, on_giving_up
from autofuse.kernels.policy import PROVIDERS, on_change, settings
from autofuse.kernels.provider import HALVES_AND_SINGLE, Provider
from autofuse.kernels.rehearsal import backward_compile_error
from autofuse.torch_private import forward_ad, get_tracing_state, is_any_autocast_enabled, peek_interpreter_stack
from autofuse.torch_private.autocast import is_autocast_on
from autofuse.verify.dropout_switch import is_dropout_off

LEAST = 2**16  # elements; below, a call costs about as much as its kernel
Sizes = Callable[..., tuple[int, ...]]
_Taker = tuple[Provider, Callable[..., Any]]  # the provider for a kind of call, and the function that runs the call

OPERATIONS: dict[str, Operation] = {}
RECORDERS: list[list[RecordedCall]] = []
_on_paper: list[None] = []
_TENSORS = frozenset({Tensor, nn.Parameter})
_DTYPES = frozenset({torch.float64, *HALVES_AND_SINGLE})
_REMEMBERED = 4096  # signatures
_CHECKPOINTING = "torch.utils.checkpoint"  # raises an exception to stop a recomputation early


def by_elements_and_width(x: Tensor, *others: Any, **named: Any) -> tuple[int, ...]:
    """The sizes that most operations use: elements, rounded up to a power of two, and the last size."""
    return (x.numel().bit_length(), x.shape[-1] if x.ndim else 1)


class RecordedCall(NamedTuple):
    """A call of an operation."""

    operation: Operation
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@contextmanager
def record_calls() -> Iterator[list[RecordedCall]]:
    """Records every call of an operation in the block, in order, including calls that operations make of each other."""
    calls: list[RecordedCall] = []
    RECORDERS.append(calls)
    try:
        yield calls
    finally:
        RECORDERS[:] = [r for r in RECORDERS if r is not calls]


@contextmanager
def on_paper() -> Iterator[None]:
    """In the block, calls with fake tensors choose the provider that real tensors would get.

    So what they save for the backward pass is what real calls would save.
    """
    _on_paper.append(None)
    try:
        yield
    finally:
        _on_paper.pop()


class Operation:
    """The providers of one operation. It is called like its public function, with the deciding tensor first."""

    def __init__(
        self, name: str, providers: Sequence[Provider], *, least: int = LEAST, sizes: Sizes = by_elements_and_width,
        keeps_layout: bool = False, on_gpu: GpuThreshold | None = None,
    ) -> None:  # fmt: skip
        self.name, self.least, self.sizes = name, least, sizes
        self._on_gpu, self._least_on_gpu = on_gpu, -1
        self.keeps_layout = keeps_layout  # whether every provider's result has the memory layout of torch's
        self.providers: tuple[Provider, ...] = tuple(providers)
        self.torch = next(p for p in self.providers if p.name == "torch")
        self.followers: list[Operation] = []  # operations whose checks depend on the choices of this one
        self._failures = Failures(name)
        self.counts: dict[str, int] = {}  # provider -> calls that it computed
        self._torchs: frozenset[torch.dtype] | None = None
        self._takers: dict[tuple[Any, ...], _Taker] = {}
        self._orders: dict[tuple[Any, ...], tuple[Provider, ...]] = {}
        self._kinds: dict[Kind, tuple[Provider, ...]] = {}
        OPERATIONS[name] = self

    def __call__(self, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Computes the operation with the provider that is chosen for these arguments.

        Raises:
            torch.OutOfMemoryError: as the provider raises it. After any other error the next provider computes the
                call.
        """
        if RECORDERS:
            for calls in RECORDERS:
                calls.append(RecordedCall(self, (x, *args), kwargs))
        if kwargs.get("dropout_p") and kwargs.get("training") and is_dropout_off(kwargs["dropout_p"]):
            kwargs["dropout_p"] = 0.0
        if is_traced() or x.dtype in (self._torchs or self._plain_dtypes()) or x.numel() < self.least_for(x):
            return self.torch.run(x, *args, **kwargs)
        key = _signature(x, args, kwargs)
        if key is None:
            return (self.taker(x, *args, **kwargs) if _on_paper else self.torch).run(x, *args, **kwargs)
        try:
            taker = self._takers.get(key)
        except TypeError:  # unhashable, for example a list, which may change before the next call
            return (self.taker(x, *args, **kwargs) if _on_paper else self.torch).run(x, *args, **kwargs)
        if taker is None:
            taker = self._remember(key, self._choose_compiling_provider(x, args, kwargs), x, args, kwargs)
        provider, run = taker
        try:
            result = run_on_device_of(x, run, args, kwargs)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            if provider is self.torch or type(error).__module__ == _CHECKPOINTING:
                raise
            why = str(error) if isinstance(error, Unavailable) else f"It raised {type(error).__name__}: {error}"
            self._give_up(provider, why, None if isinstance(error, Unavailable) else self._kind_of(x, args, kwargs))
            return self(x, *args, **kwargs)
        self.counts[provider.name] = self.counts.get(provider.name, 0) + 1
        return result

    def _plain_dtypes(self) -> frozenset[torch.dtype]:
        """The dtypes in which torch always computes the call: no other provider that may be chosen supports them."""
        measured = has_measurements(self.name)
        taken = {d for p in self.providers if p is not self.torch and (p.default or measured) for d in p.dtypes}
        self._torchs = _DTYPES - taken
        return self._torchs

    def _remember(
        self, key: tuple[Any, ...], provider: Provider, x: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> _Taker:
        """Stores the provider for a signature. A check depends only on the signature, and so does `prepare`."""
        if len(self._takers) >= _REMEMBERED:
            self._takers.clear()
        run = provider.run if provider.prepare is None else provider.prepare(x, *args, **kwargs)
        taker = self._takers[key] = (provider, run)
        return taker

    def provider(self, name: str) -> Provider:
        """The provider called `name`.

        Raises:
            ValueError: if there is none.
        """
        for provider in self.providers:
            if provider.name == name:
                return provider
        names = ", ".join(p.name for p in self.providers)
        raise ValueError(f"{self.name} has no provider called {name!r}. It has {names}.")

    @property
    def has_choice(self) -> bool:
        """Whether there is a provider besides plain torch code."""
        return len(self.providers) > 1

    def taker(self, x: Tensor, *args: Any, **kwargs: Any) -> Provider:
        """The provider that would compute such a call in plain eager execution. Fake tensors are enough."""
        if x.numel() >= self.least_for(x):
            for provider in self._order(x, *args, **kwargs):
                if provider is self.torch or not provider.check(x, *args, **kwargs):
                    return provider
        return self.torch

    def _kind_of(self, x: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CallKind:
        return call_kind((x, *args, *kwargs.values()), self.sizes(x, *args, **kwargs))

    def _choose_compiling_provider(self, x: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Provider:
        """The provider of a call. In training its backward kernels compile, because a backward pass has no fallback."""
        provider = self.taker(x, *args, **kwargs)
        while why := backward_compile_error(provider, (x, *args), kwargs):
            self._give_up(provider, why, self._kind_of(x, args, kwargs))
            provider = self.taker(x, *args, **kwargs)
        return provider

    def least_for(self, x: Tensor) -> int:
        """The number of elements below which plain torch code runs on the device of `x`."""
        if self._on_gpu is None or not x.is_cuda:
            return self.least
        if self._least_on_gpu < 0:
            self._least_on_gpu = self._on_gpu.least(settings().launch_bound)
        return self._least_on_gpu

    def least_on_gpu(self, launch_bound: bool | None) -> int:
        """The number of elements on a GPU, depending on what the model's steps wait for."""
        return self.least if self._on_gpu is None else self._on_gpu.least(launch_bound)

    def add(self, *providers: Provider) -> None:
        """Adds providers after the existing ones."""
        self.providers = (*self.providers, *providers)
        self.forget()

    def forget(self) -> None:
        """Discards all choices, because decisions or installed packages have changed."""
        self._orders.clear()
        self._takers.clear()
        self._torchs, self._least_on_gpu = None, -1
        for follower in self.followers:
            follower.forget()

    def orders(self) -> list[tuple[Kind, tuple[Provider, ...]]]:
        """The kinds of calls so far, with their providers in order."""
        return list(self._kinds.items())

    def kind(self, x: Tensor, *args: Any, **kwargs: Any) -> Kind:
        """The kind of a call, which decides about its provider."""
        training = torch.is_grad_enabled() and x.requires_grad
        dtype = str(x.dtype).removeprefix("torch.")
        sizes = self.sizes(x, *args, **kwargs)
        return Kind(self.name, x.device.type, dtype, sizes, training, settings().repeatable)

    def candidates(self, kind: Kind, dtype: torch.dtype) -> tuple[Provider, ...]:
        """Every provider that may be measured for such calls. Its `check` of the arguments comes in addition."""
        return tuple(p for p in self.providers if not self.refusal(p, kind, dtype))

    def refusal(self, provider: Provider, kind: Kind, dtype: torch.dtype) -> str:
        """The reason why a provider does not support this kind of call, as a sentence; "" if it may support it."""
        if provider is self.torch:
            return ""
        if failed := self._failures.for_all(provider.name):
            return failed
        if not settings().allows(provider.name):
            return f"The settings ({PROVIDERS}) exclude it."
        return provider.unsuited(kind.device, dtype, kind.deterministic)

    def _order(self, x: Tensor, *args: Any, **kwargs: Any) -> tuple[Provider, ...]:
        """The providers of a call in order. The last one takes every call."""
        kind_of_call = self._kind_of(x, args, kwargs)
        needs_x_gradient = torch.is_grad_enabled() and x.requires_grad
        key = (*kind_of_call, needs_x_gradient, torch.are_deterministic_algorithms_enabled())
        order = self._orders.get(key)
        if order is None:
            kind = self.kind(x, *args, **kwargs)
            usable = (p for p in self._make_order(kind, x.dtype) if not self._failures.at(p.name, kind_of_call))
            order = self._orders[key] = tuple(usable)
            self._kinds[kind] = order
        return order

    def _make_order(self, kind: Kind, dtype: torch.dtype) -> tuple[Provider, ...]:
        possible = self.candidates(kind, dtype)
        measured = [p for name in measured_ranking(kind) for p in possible if p.name == name]
        if self.torch in measured:
            return tuple(measured[: measured.index(self.torch) + 1])
        defaults = [p for p in possible if p.default and p not in measured and p is not self.torch]
        return (*measured, *defaults, self.torch)

    @property
    def failures(self) -> dict[str, str]:
        """The last reason for each provider that failed."""
        return self._failures.last_reasons()

    def failure(self, provider: str) -> str:
        """The reason why a provider is no longer used for any call, as a sentence; "" if it is used."""
        return self._failures.for_all(provider)

    def _give_up(self, provider: Provider, why: str, kind: CallKind | None) -> None:
        """Excludes a provider that failed from calls of that kind, or from all calls."""
        self._failures.add(provider.name, why, kind)
        self.forget()


def _signature(x: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...] | None:
    """Everything that a choice can depend on; None if the call is not plain eager execution on plain tensors.

    It runs at every call and is written for speed: no generators, and rare cases last.
    """
    if peek_interpreter_stack() is not None or forward_ad._current_level >= 0:
        return None
    parts: list[Any] = [torch.is_grad_enabled(), torch.are_deterministic_algorithms_enabled()]
    for a in (x, *args, *kwargs.values()) if kwargs else (x, *args):
        if type(a) in _TENSORS:
            parts.append((a.shape, a.stride(), a.dtype, a.requires_grad, a.device))
        elif isinstance(a, Tensor):
            return None
        else:
            parts.append(a)
    if kwargs:
        parts.append(tuple(kwargs))
    if x.is_cuda:
        parts.append(torch.cuda.is_current_stream_capturing())
    if is_any_autocast_enabled():
        parts.append(_autocast_dtype(x.device.type))
    return tuple(parts)


def _autocast_dtype(device: str) -> torch.dtype | None:
    """The dtype of autocast on that type of device, None if autocast is off. Checks depend on it too."""
    if not is_any_autocast_enabled() or not is_autocast_on(device):
        return None
    return torch.get_autocast_dtype(device)


def _is_transformed() -> bool:
    """Whether functorch or forward-mode derivatives transform the call."""
    return peek_interpreter_stack() is not None or forward_ad._current_level >= 0


def is_traced() -> bool:
    """Whether a compiler or tracer records the call. Then even a size may not be a number."""
    return torch.compiler.is_compiling() or get_tracing_state() is not None


def is_eager() -> bool:
    """Whether nothing traces, transforms or records calls, so that an operation may take a shortcut."""
    return not (RECORDERS or is_traced() or _is_transformed())


def is_plain(*arguments: Any) -> bool:
    """Whether a call is plain eager execution on plain tensors: no tracer, transform or subclass."""
    return not _is_transformed() and all(type(a) in _TENSORS or not isinstance(a, Tensor) for a in arguments)


def _forget_all() -> None:
    for operation in OPERATIONS.values():
        operation.forget()


on_change(_forget_all)
on_giving_up(_forget_all)
