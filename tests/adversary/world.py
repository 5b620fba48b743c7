"""Runs a program in a world of its own: each run executes the text again, so runs share nothing.

A run is recorded as a list of snapshots: the outputs and gradients of each call, its arguments after the call,
everything that the program's module and its model hold, the random number generators, and the printed text.
"""

from __future__ import annotations

import contextlib
import io
import random
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import autofuse
from tests.adversary.program import Program
from tests.adversary.values import of_namespace, plain

NAME = "adversary_program"


@dataclass
class RunRecord:
    """The record of one run: labelled snapshots, the state before and after `optimize`, and its report."""

    snapshots: list[tuple[str, Any]] = field(default_factory=list)
    before_optimize: Any = None
    after_optimize: Any = None
    fused: bool = False
    error: str = ""
    report: str = ""


def record_run(program: Program, way: str | None, folder: Path) -> RunRecord:
    """Runs the program: unchanged if `way` is None, otherwise optimized in that way."""
    seen, printed = RunRecord(), io.StringIO()
    with _world(program, folder) as module, contextlib.redirect_stdout(printed), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        world = _World(program, module, printed)
        try:
            model = world.model
            if way is not None:
                _optimize(world, way, seen)
            called = module.wrap(model) if hasattr(module, "wrap") else model
            for step, call in enumerate(program.sequence):
                seen.snapshots += world.snapshots(called, call, step)
            if way is not None:
                report = autofuse.report(model)
                seen.report = f"{report.summary}; {[(s.rule, s.status, s.reason[:90]) for s in report.sites]}"
                seen.fused = bool(report.with_status("fused"))
        finally:
            if hasattr(module, "undo"):
                module.undo(world.model)
    return seen


def _optimize(world: _World, way: str, seen: RunRecord) -> None:
    examples = world.arguments(0) if way == "examples" else None
    seen.before_optimize = world.everything(examples)
    try:
        autofuse.optimize(world.model, examples, tune=False)
    except Exception as error:
        seen.error = f"optimize raises {type(error).__name__}: {str(error)[:120]}"
    seen.after_optimize = world.everything(examples)


@contextlib.contextmanager
def _world(program: Program, folder: Path) -> Iterator[types.ModuleType]:
    """Executes the program's module from a file, and keeps it in sys.modules until the end of the block."""
    settings = ["adversary_settings"]
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    file = folder / f"{NAME}.py"
    file.write_text(program.full_text)
    module = types.ModuleType(NAME)
    module.__file__ = str(file)
    sys.modules[NAME] = module
    try:
        exec(compile(program.full_text, str(file), "exec", dont_inherit=True), vars(module))
        yield module
    finally:
        for name in [NAME, *settings]:
            sys.modules.pop(name, None)


class _World:
    """One run: the module and its model, with methods that call them and take snapshots."""

    def __init__(self, program: Program, module: types.ModuleType, printed: io.StringIO) -> None:
        self.program, self.module, self.printed = program, module, printed
        made: nn.Module = module.make() if hasattr(module, "make") else module.M()
        self.model = made.double() if program.double else made

    def arguments(self, step: int) -> tuple[Any, ...]:
        if hasattr(self.module, "inputs"):
            return tuple(self.module.inputs(step))
        return (self.module.numbers(2, 4, 8, step=step),)

    def everything(self, arguments: Any) -> Any:
        """A snapshot of everything that `optimize` must not change."""
        drawn = (hash(random.getstate()), hash(str(np.random.get_state())), _hash_of(torch.get_rng_state()))
        model = plain(self.model, NAME)
        return [of_namespace(self.module), model, plain(arguments, NAME), self.printed.getvalue(), drawn]

    def snapshots(self, called: Any, call: str, step: int) -> list[tuple[str, Any]]:
        if call in ("change", "back"):
            return self._apply_change(call, step)
        label = f"call {step + 1} ({call})"
        arguments = self.arguments(step)
        for p in self.model.parameters():
            p.grad = None
        try:
            with _mode(self.model, call):
                result = self._call_model(called, arguments, call)
                kept = [(f"{label} result", plain(result, NAME)), (f"{label} returned", _identities(result, arguments))]
                kept += [(f"{label} gradients", self._gradients(result, arguments))]
        except Exception as error:
            kept = [(f"{label} result", f"raises {type(error).__name__}")]
        return [*kept, *self._state(label, arguments)]

    def _apply_change(self, call: str, step: int) -> list[tuple[str, Any]]:
        try:
            getattr(self.module, call, lambda m: None)(self.model)
        except Exception as error:
            return [(f"call {step + 1} ({call})", f"raises {type(error).__name__}")]
        return [(f"call {step + 1} ({call})", "done")]

    def _call_model(self, called: Any, arguments: tuple[Any, ...], call: str) -> Any:
        if torch.is_grad_enabled():
            for a in arguments:
                if isinstance(a, Tensor) and a.is_floating_point() and a.is_leaf:
                    a.requires_grad_()
        return self.module.use(called, *arguments) if hasattr(self.module, "use") else called(*arguments)

    def _gradients(self, result: Any, arguments: tuple[Any, ...]) -> Any:
        outputs = [t for t in _tensors(result) if t.requires_grad and t.is_floating_point()]
        if not outputs or not torch.is_grad_enabled():
            return None
        weights = torch.Generator().manual_seed(3)
        torch.autograd.backward(
            [(t * torch.rand(t.shape, generator=weights, dtype=torch.float64).to(t.dtype)).sum() for t in outputs]
        )
        leaves = {f"argument {i}": t.grad for i, t in enumerate(_tensors(arguments)) if t.is_leaf}
        return plain({**leaves, **{n: p.grad for n, p in self.model.named_parameters()}}, NAME)

    def _state(self, label: str, arguments: tuple[Any, ...]) -> list[tuple[str, Any]]:
        everything = self.everything(arguments)
        names = ("the module", "the model", "its arguments", "printed", "random numbers")
        last = -1 if self.program.random else None
        return [(f"{label}, then {n}", v) for n, v in zip(names[:last], everything[:last], strict=True)]


@contextlib.contextmanager
def _mode(model: nn.Module, call: str) -> Iterator[None]:
    """Enters the modes that a call names, joined by "+": train, eval, no_grad, grad, inference, autocast, ..."""
    words = set(call.split("+"))
    if words & {"train", "eval"}:
        model.train("train" in words)
    with contextlib.ExitStack() as stack:
        grad = "grad" in words or "train" in words and "no_grad" not in words
        stack.enter_context(torch.inference_mode() if "inference" in words else torch.set_grad_enabled(grad))
        if "autocast" in words:
            stack.enter_context(torch.autocast("cpu", torch.bfloat16))
        if "deterministic" in words:
            torch.use_deterministic_algorithms(True)
            stack.callback(torch.use_deterministic_algorithms, False)
        if "double" in words:
            torch.set_default_dtype(torch.float64)
            stack.callback(torch.set_default_dtype, torch.float32)
        yield


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        return [t for v in value.values() for t in _tensors(v)]
    if isinstance(value, list | tuple):
        return [t for v in value for t in _tensors(v)]
    if hasattr(value, "__dict__") and not isinstance(value, nn.Module | type | Callable):
        return [t for v in vars(value).values() for t in _tensors(v)]
    return []


def _identities(result: Any, arguments: tuple[Any, ...]) -> Any:
    """The arguments that the result is, and for each tensor of the result those that share its memory."""
    given = [a for a in arguments if isinstance(a, Tensor | list | dict) or hasattr(a, "__dict__")]
    returned = [i for i, a in enumerate(given) if result is a]
    parts = [[i for i, a in enumerate(_tensors(arguments)) if _shares(t, a)] for t in _tensors(result)]
    return (returned, parts)


def _shares(a: Tensor, b: Tensor) -> bool:
    try:
        return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return a is b


def _hash_of(state: Tensor) -> int:
    return hash(state.numpy().tobytes())
