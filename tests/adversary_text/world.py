"""Runs the files of a program in a process that is put back afterwards, in one context of dtype, mode and autocast.

The words that a drive knows, beside what model.py holds:

    t(2, 5, scale=1.0)   a tensor of the context's dtype that needs a gradient; `fixed(...)` needs none
    positive(2, 5)       the same, of entries between 0.5 and 1.5
    bools(2, 5)          True in two of three, and at the first entry of each row; ints(9, 2, 5): below 9
    made(module)         the module in the context's dtype and mode, with parameters drawn
    here                 the module model.py itself
    tried(call)          what a call gives, or the exception that it raises
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
RAISES = "raises"  # how the outcome of `tried` begins where torch raised an error
_ROUNDED = 16  # steps of rounding that a chain of a few operations may take
_CONSTANTS = 1e-9  # constants are written with so many digits


def tolerance_of(dtype: torch.dtype) -> float:
    """Relative to the largest entry."""
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
class Seen:
    """What one run shows. error: what it let out, by type and, where the program raised it itself, by message."""

    outcome: Any
    gradients: Any
    printed: str
    warned: tuple[str, ...]
    error: str


def seen_of(folder: Path, drive: str, context: Context) -> Seen:
    """Run the files in `folder` once."""
    printed, maker = io.StringIO(), _Maker(context)
    outcome, gradients, error = None, None, ""
    with _put_back(), warnings.catch_warnings(record=True) as told, _at(folder), contextlib.redirect_stdout(printed):
        warnings.simplefilter("always")
        torch.set_warn_always(True)
        try:
            with contextlib.redirect_stderr(printed):
                outcome = _driven(folder / f"{NAME}.py", drive, maker)
            gradients = plain(maker.gradients(outcome), NAME)
            outcome = plain(outcome, NAME)
        except Exception as raised:
            error = _told(raised, folder)
        finally:
            torch.set_warn_always(False)
    return Seen(outcome, gradients, printed.getvalue(), tuple(str(w.message) for w in told), error)


def _driven(path: Path, drive: str, maker: _Maker) -> Any:
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


def _told(error: Exception, folder: Path) -> str:
    """Its type; its message too where the program itself raised it, by `raise` or `assert`."""
    place = error.__traceback__
    while place and place.tb_next:
        place = place.tb_next
    if place is None or not place.tb_frame.f_code.co_filename.startswith(str(folder)):
        return type(error).__name__
    line = linecache.getline(place.tb_frame.f_code.co_filename, place.tb_lineno)
    return f"{type(error).__name__}: {error}" if re.search(r"\b(?:raise|assert)\b", line) else type(error).__name__


class _Maker:
    """Makes what a program is given, and knows all of it that can have a gradient."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.drawn = torch.Generator().manual_seed(1)
        self.leaves: list[Tensor] = []
        self.modules: list[nn.Module] = []

    def words(self) -> dict[str, Any]:
        names = ("t", "fixed", "positive", "bools", "ints", "made", "tried")
        return {name: getattr(self, name) for name in names} | {"dtype": self.context.dtype}

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

    def made(self, module: nn.Module) -> nn.Module:
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
        """Of all leaves, for a weighted sum of everything that the outcome holds."""
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
def _at(folder: Path) -> Iterator[None]:
    """`folder`, and the libraries beside this file, can be imported from; what was imported is forgotten."""
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
def _put_back() -> Iterator[None]:
    """What a program may have done to the process is undone: patches of torch, default dtype, generators."""
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
