"""One run of a module: copies of the inputs, everything that the call leaves behind, and the module as it was before.

This file handles calls of modules and their side effects. It judges nothing.
"""

from __future__ import annotations

import copy
import inspect
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Literal

import torch
from torch import Tensor, nn

from autofuse.torch_private import run_backward
from autofuse.verify.arithmetic import WIDER, AsWrittenMode

_MAX_NESTED_VALUES = 10_000  # values inside an argument that are compared
SMALL = 2**24  # bytes; a run up to this size is kept for another comparison, a larger one is made again
Gradients = Literal["every", "asked", "none"]
SEED = 20  # any fixed number: runs that are compared draw the same random numbers


@dataclass(frozen=True)
class ModuleCall:
    """The arguments of a call of a module's forward.

    Attributes:
        args: the positional arguments.
        kwargs: the keyword arguments.
        unread: the elements of the returned tuple that are not read.
        copy_object: copies arguments that are neither tensors nor containers of tensors.
        gradients: which gradients are computed. "every": of each floating-point argument and parameter. "asked": of
            parameters, and of arguments that require a gradient. "none": none.
        copy_module: copies modules; an alternative to deepcopy for modules with members that deepcopy refuses.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    unread: frozenset[int] = frozenset()
    copy_object: Callable[[Any], Any] = copy.deepcopy
    gradients: Gradients = "every"
    copy_module: Callable[[nn.Module], nn.Module] = copy.deepcopy


@dataclass
class ModuleRun:
    """Everything that a call left behind.

    Attributes:
        tensors: floating-point tensors by name.
        gradients: gradients by the name of their source; None if there is none.
        others: everything else that is compared, by name.
        with_gradient: the results that carry a gradient.
        rates: the rates of the dropouts that would have drawn random numbers.
        rows: the largest number of rows in a tensor during the forward.
    """

    tensors: dict[str, Tensor] = field(default_factory=dict)
    gradients: dict[str, Tensor | None] = field(default_factory=dict)
    others: dict[str, Any] = field(default_factory=dict)
    with_gradient: frozenset[str] = frozenset()
    rates: tuple[float, ...] = ()
    rows: int = 1

    def find_tensor(self, name: str) -> Tensor | None:
        """Return a tensor by its name, or a gradient by "gradient of" and its source."""
        return self.tensors.get(name, self.gradients.get(name.removeprefix("gradient of ")))

    @property
    def bytes(self) -> int:
        """The memory of the tensors and gradients in bytes."""
        present = (*self.tensors.values(), *self.gradients.values())
        return sum(t.numel() * t.element_size() for t in present if t is not None)

    def share_tensors(self, equal: ModuleRun) -> ModuleRun:
        """Return this run with the tensors of an equal run, to keep them in memory only once."""
        return replace(self, tensors=equal.tensors, gradients=equal.gradients)

    def lacks(self, name: str) -> bool:
        """Whether the run has no such tensor, and no entry for such a gradient."""
        return name not in self.tensors and name.removeprefix("gradient of ") not in self.gradients


def run(
    module: nn.Module, call: ModuleCall, training: bool, arithmetic: AsWrittenMode, *, masks_too: bool = True
) -> ModuleRun:
    """Run forward and backward of `module` in `arithmetic`, with the same random numbers and cotangents each time.

    Args:
        module: the module.
        call: the arguments.
        training: whether the module is in training mode.
        arithmetic: the torch function mode.
        masks_too: compute gradients of arguments named as a mask or a bias even if they do not require one. Attention
            leaves its fused kernel for a mask that needs a gradient.
    """
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        _restored_afterwards(module) as before,
        _with_seed(module, SEED),
    ):
        inputs = _Inputs(module, call, arithmetic, masks_too)
        _set_mode(module, training)
        with arithmetic:
            returned = module(*inputs.args, **inputs.kwargs)
        results = dict(_leaves(returned, "result", call.unread)) | inputs.stored_values()
        differentiable = {n: r for n, r in results.items() if isinstance(r, Tensor) and r.requires_grad}
        parameters = {f"self.{n}": p for n, p in module.named_parameters() if p.requires_grad}
        sources = inputs.leaves | parameters if call.gradients != "none" else {}
        result = ModuleRun(with_gradient=frozenset(differentiable))
        result.gradients = _gradients(differentiable, sources, arithmetic)
        result.rates, result.rows = tuple(sorted(arithmetic.rates)), arithmetic.rows
        for name, value in {**results, **inputs.written_tensors(), **before.changes()}.items():
            _record(result, name, value)
        for name, value in results.items():
            if isinstance(value, Tensor) and value.layout is torch.strided:
                result.others[f"the layout of {name}"] = _describe_layout(value)
                result.others[f"what shares memory with {name}"] = _names_sharing_memory(
                    value, {**inputs.given, **parameters}
                )
    return result


def _describe_layout(x: Tensor) -> str:
    """The strides of a tensor, without those of dimensions of size 1, which do not matter."""
    steps = [stride if size > 1 else None for stride, size in zip(x.stride(), x.shape, strict=True)]
    return str(steps if x.numel() else None)


def _names_sharing_memory(x: Tensor, others: Mapping[str, Tensor]) -> str:
    """The names of the tensors that share memory with `x`."""
    plain = {n: t for n, t in others.items() if t.layout is torch.strided}
    return ", ".join(n for n, t in plain.items() if t.untyped_storage()._cdata == x.untyped_storage()._cdata)


def results_with_dropout(module: nn.Module, call: ModuleCall, training: bool, seed: int) -> dict[str, Tensor]:
    """Return the floating-point results of `module` with random numbers from `seed`, dropout included."""
    with torch.inference_mode(False), torch.no_grad(), _restored_afterwards(module), _with_seed(module, seed):
        inputs = _Inputs(module, call, None, False)
        _set_mode(module, training)
        results = dict(_leaves(module(*inputs.args, **inputs.kwargs), "result", call.unread))
        return {n: r.clone() for n, r in results.items() if isinstance(r, Tensor) and r.is_floating_point()}


def copy_in_double(module: nn.Module, copy_module: Callable[[nn.Module], nn.Module] = copy.deepcopy) -> nn.Module:
    """Return a copy of `module` with its floating-point parameters, buffers and tensor attributes in double."""
    module = copy_module(module).double()
    for m in module.modules():
        for place in (m._buffers, m.__dict__):
            for name, value in list(place.items()):
                if isinstance(value, Tensor) and value.dtype in WIDER:
                    place[name] = value.to(WIDER[value.dtype])
    return module


@contextmanager
def temporary_double_copy(
    module: nn.Module, copy_module: Callable[[nn.Module], nn.Module] = copy.deepcopy
) -> Iterator[nn.Module]:
    """Give `copy_in_double` inside a block, and release its tensors at the end, even if a reference to it remains."""
    double = copy_in_double(module, copy_module)
    try:
        yield double
    finally:
        release_tensors(double, module)


def release_tensors(copied: nn.Module, original: nn.Module) -> None:
    """Remove the tensors from a copy of a module that is no longer used.

    A module with its own forward is part of a reference cycle, so it would keep its tensors until the next garbage
    collection. A scripted module keeps its tensors, because they belong to C++.

    Args:
        copied: the copy.
        original: the original; its modules are not changed.
    """
    original_ids = {id(m) for m in original.modules()}
    for m in list(copied.modules()):
        if id(m) in original_ids or isinstance(m, torch.jit.ScriptModule):
            continue
        m._parameters.clear()
        m._buffers.clear()
        for name in [n for n, value in m.__dict__.items() if isinstance(value, Tensor)]:
            del m.__dict__[name]


class _Inputs:
    """Copies of a call's arguments.

    Each floating-point tensor becomes a leaf, and a copy of the leaf that the forward may write to.
    """

    def __init__(self, module: nn.Module, call: ModuleCall, arithmetic: AsWrittenMode | None, masks_too: bool) -> None:
        self.leaves: dict[str, Tensor] = {}
        self._arithmetic, self._masks_too, self._copy_object = arithmetic, masks_too, call.copy_object
        self._required_only = call.gradients == "asked"
        self.given: dict[str, Tensor] = {}
        self._copies: dict[int, Any] = {}  # by id, so that an argument that is passed twice stays one object
        names = _parameter_names(module, len(call.args))
        self.args = tuple(self._copy_once(a, n) for a, n in zip(call.args, names, strict=True))
        self.kwargs = {n: self._copy_once(a, n) for n, a in call.kwargs.items()}
        self._named = {**dict(zip(names, self.args, strict=True)), **self.kwargs}
        self._versions = {id(v): (v, _version(v)) for _, v in self._nested_values()}

    def stored_values(self) -> dict[str, Any]:
        """Return the tensors, numbers and strings that the forward stored inside the arguments."""
        return {
            f"{name} after the call": value
            for name, value in self._nested_values()
            if not isinstance(value, Tensor) or self._versions.get(id(value), (None, None))[1] != _version(value)
        }

    def _nested_values(self) -> Iterator[tuple[str, Any]]:
        """Yield the comparable values inside the arguments that are no tensors."""
        leaves = (leaf for n, a in self._named.items() if not isinstance(a, Tensor) for leaf in _leaves(a, n))
        comparable = (Tensor, int, float, str, type(None))
        return ((n, v) for n, v in islice(leaves, _MAX_NESTED_VALUES) if isinstance(v, comparable))

    def written_tensors(self) -> dict[str, Tensor]:
        """Return the tensors among the arguments that the forward wrote to."""
        return {f"{n} after the call": t for n, t in self.given.items() if t._version}

    def _copy_once(self, value: Any, name: str) -> Any:
        if id(value) not in self._copies:
            self._copies[id(value)] = self._copy(value, name)
        return self._copies[id(value)]

    def _copy(self, value: Any, name: str) -> Any:
        if isinstance(value, Tensor):
            self.given[name] = self._copy_tensor(value, name)
            return self.given[name]
        if type(value) in (list, tuple):
            return type(value)(self._copy_once(v, f"{name}[{i}]") for i, v in enumerate(value))
        if type(value) is dict:
            return {k: self._copy_once(v, f"{name}[{k!r}]") for k, v in value.items()}
        return self._copy_object(value)  # for instance a key-value cache, which the forward extends

    def _copy_tensor(self, value: Tensor, name: str) -> Tensor:
        copied = value.detach().clone()
        if self._arithmetic is None or not (copied.is_floating_point() or copied.is_complex()):
            return copied
        copied = self._arithmetic.convert(copied)
        called_a_mask = any(word in name.lower() for word in ("mask", "bias"))
        if (called_a_mask and not self._masks_too or self._required_only) and not value.requires_grad:
            return copied
        self.leaves[name] = copied.requires_grad_()
        return copied.clone()


class _ModuleState:
    """The state of a module: its attributes, and the contents of its buffers and tensor attributes."""

    def __init__(self, module: nn.Module) -> None:
        self._modules = [(name, m, dict(m.__dict__)) for name, m in module.named_modules()]
        self._tables = [
            (table, dict(table))
            for _, m, _ in self._modules
            if not isinstance(m, torch.jit.ScriptModule)  # its tables belong to C++, and its forward cannot change them
            for table in (m._parameters, m._buffers, m._modules)
        ]
        buffers_and_attributes = {
            id(t): t for _, m, _ in self._modules for t in (*m._buffers.values(), *m.__dict__.values())
        }
        self._contents = [
            (t, t._version, t.detach().clone())
            for t in buffers_and_attributes.values()
            if isinstance(t, Tensor) and not t.is_inference()
        ]

    def changes(self) -> dict[str, Any]:
        """Return the attributes and buffers that a forward has assigned or written since."""
        versions = {id(t): version for t, version, _ in self._contents}
        changed: dict[str, Any] = {}
        for name, m, attributes in self._modules:
            for key, value in {**m._buffers, **m.__dict__}.items():
                old = attributes.get(key, self)
                is_tracked = isinstance(value, Tensor) and not value.is_inference()
                is_written = is_tracked and versions.get(id(value)) != value._version
                is_replaced = (
                    key not in m._buffers and old is not value and isinstance(value, Tensor | int | float | str)
                )
                if key != "training" and (is_written or is_replaced):
                    changed[f"self.{name}.{key} after the call".replace("..", ".")] = value
        return changed

    def restore(self) -> None:
        """Restore the module."""
        for table, entries in self._tables:
            table.clear()
            table.update(entries)
        for _, m, attributes in self._modules:
            m.__dict__.clear()
            m.__dict__.update(attributes)
        with torch.no_grad():
            for t, version, content in self._contents:
                if t._version != version:
                    t.copy_(content)


def _version(value: Any) -> int:
    """The number of writes to a tensor."""
    return value._version if isinstance(value, Tensor) and not value.is_inference() else 0


@contextmanager
def _restored_afterwards(module: nn.Module) -> Iterator[_ModuleState]:
    before = _ModuleState(module)
    try:
        yield before
    finally:
        before.restore()


@contextmanager
def _with_seed(module: nn.Module, seed: int) -> Iterator[None]:
    """Use random numbers from `seed` inside a block; afterwards the generators continue where they were."""
    tensors = (*module.parameters(), *module.buffers())
    devices = {t.device.index for t in tensors if t.device.type == "cuda" and t.device.index is not None}
    state = random.getstate()
    with torch.random.fork_rng(sorted(devices), device_type="cuda"):
        # torch.manual_seed would record a stack trace for each device that is not initialized.
        torch.default_generator.manual_seed(seed)
        for device in devices:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        random.seed(seed)
        try:
            yield
        finally:
            random.setstate(state)


def _set_mode(module: nn.Module, training: bool) -> None:
    for m in module.modules():
        m.training = training


def _gradients(
    results: Mapping[str, Tensor], sources: Mapping[str, Tensor], arithmetic: AsWrittenMode
) -> dict[str, Tensor | None]:
    """The gradients of all sources, for a fixed random cotangent of each result."""
    if not results or not sources:
        return dict.fromkeys(sources)
    cotangents = _cotangents(results.values())
    with arithmetic:
        # torch.autograd.grad leaves the mode, but checkpoints recompute the forward during backward.
        gradients = run_backward(
            tuple(results.values()), cotangents, False, False, tuple(sources.values()), True, accumulate_grad=False
        )
    return dict(zip(sources, gradients, strict=True))


def _cotangents(results: Iterable[Tensor]) -> tuple[Tensor, ...]:
    """Random bfloat16 numbers, which are exact in every dtype."""
    generator = torch.Generator().manual_seed(SEED)
    numbered = ((r, torch.randn(r.shape, generator=generator, dtype=torch.float32)) for r in results)
    return tuple(numbers.bfloat16().to(r.device, r.dtype) for r, numbers in numbered)


def _record(result: ModuleRun, name: str, value: Any) -> None:
    if isinstance(value, float):
        result.tensors[name] = torch.tensor(value, dtype=torch.float64)
    elif isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex()):
        result.tensors[name] = value.detach().clone()
    else:
        result.others[name] = value.clone() if isinstance(value, Tensor) else value


def _leaves(
    value: Any, name: str, unread: frozenset[int] = frozenset(), within: tuple[int, ...] = ()
) -> Iterator[tuple[str, Any]]:
    """Yield the parts of `value`, each with a name; containers and the attributes of objects are searched."""
    if isinstance(value, Mapping):
        parts = [(f"{name}[{k!r}]", v) for k, v in value.items()]
    elif isinstance(value, tuple | list) and not isinstance(value, torch.Size):
        parts = [(f"{name}[{i}]", v) for i, v in enumerate(value) if i not in unread]
    elif _is_opaque(value) or id(value) in within:
        yield name, value
        return
    else:
        parts = [(f"{name}.{k}", v) for k, v in vars(value).items()]
    yield f"{name} as a whole", type(value)
    for part, v in parts:
        yield from _leaves(v, part, within=(*within, id(value)))


def _is_opaque(value: Any) -> bool:
    return (
        isinstance(value, Tensor | nn.Module | type | torch.Size) or callable(value) or not hasattr(value, "__dict__")
    )


def _parameter_names(module: nn.Module, count: int) -> list[str]:
    """The names of the forward's first `count` parameters."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [n for n, p in inspect.signature(module.forward).parameters.items() if p.kind in kinds]
    return [names[i] if i < len(names) else f"argument {i}" for i in range(count)]
