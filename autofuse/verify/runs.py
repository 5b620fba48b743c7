"""One run of a module: fresh inputs in, everything it leaves behind out, the module as it was before.

Knows how a module is called and what a call can change; must not judge what it finds.
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
from autofuse.verify.arithmetic import WIDER, AsWritten

_MOST_HELD = 10_000  # values in an argument that are compared
SMALL = 2**24  # bytes of a run that is kept for another comparison; a larger one is made again
SEED = 20  # any fixed number: runs that are compared draw the same random numbers


@dataclass(frozen=True)
class ModuleCall:
    """The arguments of a call of a module's forward, and the elements of the returned tuple that nobody reads.

    `gradients`: of every floating argument and parameter, of parameters and of what asks for one, or of nothing.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    unread: frozenset[int] = frozenset()
    copy_object: Callable[[Any], Any] = copy.deepcopy  # for arguments that are neither tensors nor containers of them
    gradients: Literal["every", "asked", "none"] = "every"
    copy_module: Callable[[nn.Module], nn.Module] = copy.deepcopy  # another where modules hold what deepcopy refuses


@dataclass
class ModuleRun:
    """What a call left behind: floating tensors by a name for each, gradients likewise, and everything else."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    gradients: dict[str, Tensor | None] = field(default_factory=dict)
    others: dict[str, Any] = field(default_factory=dict)
    with_gradient: frozenset[str] = frozenset()  # the results that carry one
    rates: tuple[float, ...] = ()  # of the dropouts that would have drawn
    rows: int = 1  # of the tensor on the way that has most

    def named(self, name: str) -> Tensor | None:
        """A tensor by its name, or a gradient by "gradient of" its source."""
        return self.tensors.get(name, self.gradients.get(name.removeprefix("gradient of ")))

    @property
    def bytes(self) -> int:
        """What its tensors and gradients take."""
        held = (*self.tensors.values(), *self.gradients.values())
        return sum(t.numel() * t.element_size() for t in held if t is not None)

    def held_with(self, equal: ModuleRun) -> ModuleRun:
        """This run, with the tensors of one that left the same behind: they are held once."""
        return replace(self, tensors=equal.tensors, gradients=equal.gradients)

    def lacks(self, name: str) -> bool:
        """Whether there is neither a tensor nor an answer to the question for that gradient."""
        return name not in self.tensors and name.removeprefix("gradient of ") not in self.gradients


def run(
    module: nn.Module, call: ModuleCall, training: bool, arithmetic: AsWritten, *, masks_too: bool = True
) -> ModuleRun:
    """Forward and backward of `module` under `arithmetic`, with the same random numbers and cotangents each time.

    Every floating input gets its gradient; without `masks_too`, one that is called a mask or a bias only where the
    caller asks for it: attention leaves its fused kernel for a mask that needs a gradient.
    """
    with torch.inference_mode(False), torch.enable_grad(), _as_before(module) as before, _seeded(module, SEED):
        inputs = _Inputs(module, call, arithmetic, masks_too)
        _set_mode(module, training)
        with arithmetic:
            returned = module(*inputs.args, **inputs.kwargs)
        results = dict(_leaves(returned, "result", call.unread)) | inputs.stored()
        differentiable = {n: r for n, r in results.items() if isinstance(r, Tensor) and r.requires_grad}
        parameters = {f"self.{n}": p for n, p in module.named_parameters() if p.requires_grad}
        sources = inputs.leaves | parameters if call.gradients != "none" else {}
        done = ModuleRun(with_gradient=frozenset(differentiable))
        done.gradients = _gradients(differentiable, sources, arithmetic)
        done.rates, done.rows = tuple(sorted(arithmetic.rates)), arithmetic.rows
        for name, value in {**results, **inputs.written(), **before.changes()}.items():
            _note(done, name, value)
        for name, value in results.items():
            if isinstance(value, Tensor) and value.layout is torch.strided:
                done.others[f"the layout of {name}"] = _layout(value)
                done.others[f"what shares memory with {name}"] = _sharing(value, {**inputs.given, **parameters})
    return done


def _layout(x: Tensor) -> str:
    """How a tensor lies in memory, but for dimensions of one entry, along which nobody steps."""
    steps = [stride if size > 1 else None for stride, size in zip(x.stride(), x.shape, strict=True)]
    return str(steps if x.numel() else None)


def _sharing(x: Tensor, others: Mapping[str, Tensor]) -> str:
    """The names of the tensors that lie where `x` lies."""
    plain = {n: t for n, t in others.items() if t.layout is torch.strided}
    return ", ".join(n for n, t in plain.items() if t.untyped_storage()._cdata == x.untyped_storage()._cdata)


def drawn(module: nn.Module, call: ModuleCall, training: bool, seed: int) -> dict[str, Tensor]:
    """The floating results of `module` with random numbers from `seed`, dropout and all."""
    with torch.inference_mode(False), torch.no_grad(), _as_before(module), _seeded(module, seed):
        inputs = _Inputs(module, call, None, False)
        _set_mode(module, training)
        results = dict(_leaves(module(*inputs.args, **inputs.kwargs), "result", call.unread))
        return {n: r.clone() for n, r in results.items() if isinstance(r, Tensor) and r.is_floating_point()}


def in_double(module: nn.Module, copy_module: Callable[[nn.Module], nn.Module] = copy.deepcopy) -> nn.Module:
    """A copy of `module` whose floating parameters, buffers and tensor attributes are in double."""
    module = copy_module(module).double()
    for m in module.modules():
        for place in (m._buffers, m.__dict__):
            for name, value in list(place.items()):
                if isinstance(value, Tensor) and value.dtype in WIDER:
                    place[name] = value.to(WIDER[value.dtype])
    return module


@contextmanager
def doubled(module: nn.Module, copy_module: Callable[[nn.Module], nn.Module] = copy.deepcopy) -> Iterator[nn.Module]:
    """`in_double` for the length of a block; its tensors are given back at the end, though somebody may hold it."""
    double = in_double(module, copy_module)
    try:
        yield double
    finally:
        empty(double, module)


def empty(made: nn.Module, of: nn.Module) -> None:
    """Take the tensors out of a copy `of` a module that nobody runs any more.

    A module that has a forward of its own is part of a cycle: it would hold its tensors until garbage is collected.
    A scripted module keeps its tensors, which lie outside of Python.
    """
    kept = {id(m) for m in of.modules()}
    for m in list(made.modules()):
        if id(m) in kept or isinstance(m, torch.jit.ScriptModule):
            continue
        m._parameters.clear()
        m._buffers.clear()
        for name in [n for n, value in m.__dict__.items() if isinstance(value, Tensor)]:
            del m.__dict__[name]


class _Inputs:
    """Copies of a call's arguments: of each floating tensor a leaf, and for the forward a copy that it may write to."""

    def __init__(self, module: nn.Module, call: ModuleCall, arithmetic: AsWritten | None, masks_too: bool) -> None:
        self.leaves: dict[str, Tensor] = {}
        self._arithmetic, self._masks_too, self._copy_object = arithmetic, masks_too, call.copy_object
        self._only_asked = call.gradients == "asked"
        self.given: dict[str, Tensor] = {}
        self._copies: dict[int, Any] = {}  # an argument that is given twice stays one
        names = _parameter_names(module, len(call.args))
        self.args = tuple(self._copied(a, n) for a, n in zip(call.args, names, strict=True))
        self.kwargs = {n: self._copied(a, n) for n, a in call.kwargs.items()}
        self._named = {**dict(zip(names, self.args, strict=True)), **self.kwargs}
        self._before = {id(v): (v, _version(v)) for _, v in self._held()}

    def stored(self) -> dict[str, Any]:
        """What the forward stored in containers and objects among the arguments: tensors, numbers and texts."""
        return {
            f"{name} after the call": value
            for name, value in self._held()
            if not isinstance(value, Tensor) or self._before.get(id(value), (None, None))[1] != _version(value)
        }

    def _held(self) -> Iterator[tuple[str, Any]]:
        """What lies in the arguments that are no tensors, as far as it can be compared."""
        held = (leaf for n, a in self._named.items() if not isinstance(a, Tensor) for leaf in _leaves(a, n))
        known = (Tensor, int, float, str, type(None))
        return ((n, v) for n, v in islice(held, _MOST_HELD) if isinstance(v, known))

    def written(self) -> dict[str, Tensor]:
        """The tensors among the arguments that the forward wrote to."""
        return {f"{n} after the call": t for n, t in self.given.items() if t._version}

    def _copied(self, value: Any, name: str) -> Any:
        if id(value) not in self._copies:
            self._copies[id(value)] = self._copy(value, name)
        return self._copies[id(value)]

    def _copy(self, value: Any, name: str) -> Any:
        if isinstance(value, Tensor):
            self.given[name] = self._tensor(value, name)
            return self.given[name]
        if type(value) in (list, tuple):
            return type(value)(self._copied(v, f"{name}[{i}]") for i, v in enumerate(value))
        if type(value) is dict:
            return {k: self._copied(v, f"{name}[{k!r}]") for k, v in value.items()}
        return self._copy_object(value)  # a key-value cache, say, which the forward extends

    def _tensor(self, value: Tensor, name: str) -> Tensor:
        copied = value.detach().clone()
        if self._arithmetic is None or not (copied.is_floating_point() or copied.is_complex()):
            return copied
        copied = self._arithmetic.given(copied)
        called_a_mask = any(word in name.lower() for word in ("mask", "bias"))
        if (called_a_mask and not self._masks_too or self._only_asked) and not value.requires_grad:
            return copied
        self.leaves[name] = copied.requires_grad_()
        return copied.clone()


class _Before:
    """How a module was: its attributes, and the contents of its buffers and tensor attributes."""

    def __init__(self, module: nn.Module) -> None:
        self._modules = [(name, m, dict(m.__dict__)) for name, m in module.named_modules()]
        self._tables = [
            (table, dict(table)) for _, m, _ in self._modules for table in (m._parameters, m._buffers, m._modules)
        ]
        held = {id(t): t for _, m, _ in self._modules for t in (*m._buffers.values(), *m.__dict__.values())}
        self._contents = [
            (t, t._version, t.detach().clone()) for t in held.values() if isinstance(t, Tensor) and not t.is_inference()
        ]

    def changes(self) -> dict[str, Any]:
        """What a forward has assigned or written since."""
        versions = {id(t): version for t, version, _ in self._contents}
        found: dict[str, Any] = {}
        for name, m, attributes in self._modules:
            for key, value in {**m._buffers, **m.__dict__}.items():
                old = attributes.get(key, self)
                known = isinstance(value, Tensor) and not value.is_inference()
                written = known and versions.get(id(value)) != value._version
                replaced = key not in m._buffers and old is not value and isinstance(value, Tensor | int | float | str)
                if key != "training" and (written or replaced):
                    found[f"self.{name}.{key} after the call".replace("..", ".")] = value
        return found

    def restore(self) -> None:
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
    """How often a tensor was written to."""
    return value._version if isinstance(value, Tensor) and not value.is_inference() else 0


@contextmanager
def _as_before(module: nn.Module) -> Iterator[_Before]:
    before = _Before(module)
    try:
        yield before
    finally:
        before.restore()


@contextmanager
def _seeded(module: nn.Module, seed: int) -> Iterator[None]:
    """Random numbers from `seed`; afterwards the generators go on where they were."""
    tensors = (*module.parameters(), *module.buffers())
    devices = {t.device.index for t in tensors if t.device.type == "cuda" and t.device.index is not None}
    state = random.getstate()
    with torch.random.fork_rng(sorted(devices), device_type="cuda"):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed notes a stack for each device that sleeps
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
    results: Mapping[str, Tensor], sources: Mapping[str, Tensor], arithmetic: AsWritten
) -> dict[str, Tensor | None]:
    """The gradients of all sources for a fixed random cotangent of each result."""
    if not results or not sources:
        return dict.fromkeys(sources)
    cotangents = _cotangents(results.values())
    with arithmetic:
        # torch.autograd.grad would leave the mode, and checkpoints are recomputed during backward.
        found = run_backward(
            tuple(results.values()), cotangents, False, False, tuple(sources.values()), True, accumulate_grad=False
        )
    return dict(zip(sources, found, strict=True))


def _cotangents(results: Iterable[Tensor]) -> tuple[Tensor, ...]:
    """Numbers of bfloat16, which are the same in every dtype."""
    generator = torch.Generator().manual_seed(SEED)
    drawn = ((r, torch.randn(r.shape, generator=generator, dtype=torch.float32)) for r in results)
    return tuple(numbers.bfloat16().to(r.device, r.dtype) for r, numbers in drawn)


def _note(done: ModuleRun, name: str, value: Any) -> None:
    if isinstance(value, float):
        done.tensors[name] = torch.tensor(value, dtype=torch.float64)
    elif isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex()):
        done.tensors[name] = value.detach().clone()
    else:
        done.others[name] = value.clone() if isinstance(value, Tensor) else value


def _leaves(
    value: Any, name: str, unread: frozenset[int] = frozenset(), within: tuple[int, ...] = ()
) -> Iterator[tuple[str, Any]]:
    """What `value` is made of, each with a name; containers of any kind are walked, and objects by their attributes."""
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
    """What the forward calls its first `count` arguments."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    named = [n for n, p in inspect.signature(module.forward).parameters.items() if p.kind in kinds]
    return [named[i] if i < len(named) else f"argument {i}" for i in range(count)]
