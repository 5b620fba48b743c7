"""Runs the files of a program in one context of dtype, mode and autocast, and then restores the process.

A drive can use the names of model.py and these functions:

    t(2, 5, scale=1.0)   a tensor of the context's dtype that requires a gradient; `fixed(...)` requires none
    positive(2, 5)       the same with entries between 0.5 and 1.5
    bools(2, 5)          True for two of three entries and for the first entry of each row; ints(9, 2, 5): below 9
    made(module)         the module in the context's dtype and mode, with random parameters
    here                 the module model.py itself
    tried(call)          the result of a call, or the exception that it raises
"""

from __future__ import annotations

import ast
import contextlib
import io
import linecache
import math
import random
import re
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tests.adversary.values import plain

NAME = "model"
BESIDE = Path(__file__).parent / "beside"
RAISES = "raises"  # the first word of the outcome of `tried` if the call raised an error
_ROUNDED = 16  # roundings in a chain of a few operations
_CONSTANTS = 1e-9  # the precision of constants in the programs


def tolerance_of(dtype: torch.dtype) -> float:
    """The tolerance of a result in this dtype, relative to the largest entry."""
    return max(_CONSTANTS, _ROUNDED * torch.finfo(dtype).eps)


@dataclass(frozen=True)
class Context:
    """How a program is run. tolerance: relative to the largest entry; gradients are sums of more terms."""

    name: str
    dtype: torch.dtype
    training: bool
    autocast: bool = False

    @property
    def tolerance(self) -> float:
        return tolerance_of(torch.bfloat16 if self.autocast else self.dtype)


CONTEXTS = (
    Context("float64, training", torch.float64, True),
    Context("float64, evaluation", torch.float64, False),
    Context("bfloat16", torch.bfloat16, False),
    Context("autocast", torch.float32, True, autocast=True),
)


@dataclass(frozen=True)
class RunRecord:
    """The record of one run. error: the type of its exception, with the message if the program itself raised it."""

    outcome: Any
    gradients: Any
    printed: str
    warned: tuple[str, ...]
    error: str


def record_run(folder: Path, drive: str, context: Context) -> RunRecord:
    """Runs the files in `folder` once."""
    printed, maker = io.StringIO(), _Maker(context)
    outcome, gradients, error = None, None, ""
    with (
        _restore_process(),
        warnings.catch_warnings(record=True) as told,
        _importable(folder),
        contextlib.redirect_stdout(printed),
    ):
        warnings.simplefilter("always")
        torch.set_warn_always(True)
        try:
            with contextlib.redirect_stderr(printed):
                outcome = _run_drive(folder / f"{NAME}.py", drive, maker)
            gradients = plain(maker.gradients(outcome), NAME)
            outcome = plain(outcome, NAME)
        except Exception as raised:
            error = _error_text(raised, folder)
        finally:
            torch.set_warn_always(False)
    return RunRecord(outcome, gradients, printed.getvalue(), tuple(str(w.message) for w in told), error)


def _run_drive(path: Path, drive: str, maker: _Maker) -> Any:
    module = types.ModuleType(NAME)
    module.__file__ = str(path)
    sys.modules[NAME] = module
    torch.manual_seed(0)
    exec(compile(path.read_text(), str(path), "exec", dont_inherit=True), vars(module))
    known = {**vars(module), **maker.words(), "here": module, "NAME": NAME}
    known |= {"torch": torch, "nn": nn, "np": np}
    *first, last = ast.parse(drive).body
    with torch.autocast("cpu", torch.bfloat16) if maker.context.autocast else contextlib.nullcontext():
        exec(compile(ast.Module(first, []), "<drive>", "exec"), known)
        if not isinstance(last, ast.Expr):
            raise TypeError("the last line of a drive is an expression")
        return eval(compile(ast.Expression(last.value), "<drive>", "eval"), known)


def _error_text(error: Exception, folder: Path) -> str:
    """The type of the error, with its message if the program raised it by `raise` or `assert`."""
    place = error.__traceback__
    while place and place.tb_next:
        place = place.tb_next
    if place is None or not place.tb_frame.f_code.co_filename.startswith(str(folder)):
        return type(error).__name__
    line = linecache.getline(place.tb_frame.f_code.co_filename, place.tb_lineno)
    return f"{type(error).__name__}: {error}" if re.search(r"\b(?:raise|assert)\b", line) else type(error).__name__


class _Maker:
    """Makes the arguments of a program, and keeps those that can have a gradient."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.drawn = torch.Generator().manual_seed(1)
        self.leaves: list[Tensor] = []
        self.modules: list[nn.Module] = []

    def words(self) -> dict[str, Any]:
        names = ("t", "fixed", "positive", "bools", "ints", "tried")
        named = {name: getattr(self, name) for name in names}
        return named | {"made": self.prepare_module, "dtype": self.context.dtype}

    def fixed(self, *shape: int, scale: float = 1.0) -> Tensor:
        return (torch.randn(shape, generator=self.drawn, dtype=torch.float64) * scale).to(self.context.dtype)

    def t(self, *shape: int, scale: float = 1.0) -> Tensor:
        return self._leaf(self.fixed(*shape, scale=scale))

    def positive(self, *shape: int) -> Tensor:
        return self._leaf((torch.rand(shape, generator=self.drawn, dtype=torch.float64) + 0.5).to(self.context.dtype))

    def _leaf(self, made: Tensor) -> Tensor:
        self.leaves.append(made.requires_grad_())
        return made

    def bools(self, *shape: int) -> Tensor:
        drawn = torch.rand(shape, generator=self.drawn) < 0.67
        drawn[..., 0] = True
        return drawn

    def ints(self, below: int, *shape: int) -> Tensor:
        return torch.randint(below, shape, generator=self.drawn)

    def prepare_module(self, module: nn.Module) -> nn.Module:
        module = module.to(self.context.dtype).train(self.context.training)
        with torch.no_grad():
            for p in module.parameters():
                p.copy_(torch.randn(p.shape, generator=self.drawn, dtype=torch.float64) * 0.5 + 0.1)
        self.modules.append(module)
        return module

    @staticmethod
    def tried(call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as error:
            return f"{RAISES} {type(error).__name__}"

    def gradients(self, outcome: Any) -> list[Tensor | None]:
        """The gradients of all leaves, for a weighted sum of all tensors in the outcome."""
        ends = [o for o in _tensors(outcome) if o.requires_grad and o.is_floating_point() and not o.is_inference()]
        leaves = [*self.leaves, *(p for m in self.modules for p in m.parameters())]
        leaves = [leaf for leaf in leaves if leaf.requires_grad]
        if not ends or not leaves:
            return []
        total = sum(
            (o.double() * torch.linspace(0.1, 1, o.numel(), dtype=torch.float64).view(o.shape)).sum() for o in ends
        )
        found = torch.autograd.grad(total, leaves, allow_unused=True)
        return [torch.zeros_like(leaf) if g is None else g for g, leaf in zip(found, leaves, strict=True)]


def _weights(t: Tensor) -> Tensor:
    return torch.linspace(0.1, 1, t.numel(), dtype=torch.float64).view(t.shape)


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        return [t for v in value.values() for t in _tensors(v)]
    if isinstance(value, list | tuple):
        return [t for v in value for t in _tensors(v)]
    if hasattr(value, "__dict__") and not isinstance(value, nn.Module | type | types.FunctionType | types.ModuleType):
        return [t for v in vars(value).values() for t in _tensors(v)]
    return []


@contextlib.contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Makes `folder` and the libraries in `beside` importable, and forgets the imported modules at the end."""
    before = set(sys.modules)
    sys.path[:0] = [str(folder), str(BESIDE)]
    linecache.checkcache()
    written, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        yield
    finally:
        sys.path[:2] = []
        sys.dont_write_bytecode = written
        for name in set(sys.modules) - before:
            file = getattr(sys.modules[name], "__file__", None) or ""
            if name == NAME or file.startswith((str(folder), str(BESIDE))):
                del sys.modules[name]


_PATCHED = (torch, torch.nn.functional, torch.special, nn, math)
_PATCHED_CLASSES = (nn.Module, nn.Linear, nn.Softmax, nn.Dropout, nn.LayerNorm, nn.GELU, nn.SiLU)


@contextlib.contextmanager
def _restore_process() -> Iterator[None]:
    """Restores the process at the end of the block: patches of torch, the default dtype, random generators."""
    held = [(place, dict(vars(place))) for place in (*_PATCHED, *_PATCHED_CLASSES)]
    methods = {name: vars(Tensor)[name] for name in vars(Tensor)}
    default, drawn = torch.get_default_dtype(), torch.get_rng_state()
    random.seed(0)
    try:
        yield
    finally:
        for place, names in [*held, (Tensor, methods)]:
            _restore(place, names)
        torch.set_default_dtype(default)
        torch.set_rng_state(drawn)
        torch.set_grad_enabled(True)


def _restore(place: Any, names: dict[str, Any]) -> None:
    now = dict(vars(place))
    for name, value in names.items():
        if now.get(name) is not value and not name.startswith("__"):
            setattr(place, name, value)
    for name in now.keys() - names.keys():
        if not isinstance(now[name], types.ModuleType) and not name.startswith("_"):
            delattr(place, name)
