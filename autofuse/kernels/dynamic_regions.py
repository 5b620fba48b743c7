"""Compiled regions of which every size but chosen ones may change from call to call without a new compilation.

A region of autofuse/kernels/compiled_regions.py compiles in all sizes but one, which suits rows of one width. Where
lengths change with the batch, or a cache grows with each token, that would mean to compile again and again: here sizes
and strides stay symbols, but for those that are 1 or 0, which say what broadcasts, and those of named dimensions. Knows
Inductor and which compilation serves which call; must not know what regions compute.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import update_wrapper
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from autofuse.kernels.packages import give_up, loaded
from autofuse.torch_private import FakeTensorMode, on_demand

_LOG = logging.getLogger("autofuse")
_LOCK = threading.RLock()
_SYMBOLS = "torch.fx.experimental.symbolic_shapes"  # imports sympy, which only compiling takes
_MOST = 64  # compilations of one region in a process; what comes after runs as it is
_REMEMBERED = 2**12  # shapes that were looked up before; the table is emptied when it has grown so large


def free_region(**fixed: Sequence[int]) -> Callable[[Callable[..., Any]], DynamicRegion]:
    """Compile a function of tensors, None and plain values, for all sizes at once.

    `fixed` gives dimensions, by the argument's name, whose sizes are compiled in: `x=(-1,)`. So are plain values.
    The function must not write into its arguments or return them, and gives its results in new memory, as a tensor or
    a tuple. Gradients do not pass through it.
    """

    def decorated(function: Callable[..., Any]) -> DynamicRegion:
        return DynamicRegion(function, fixed)

    return decorated


class DynamicRegion:
    """A compiled function; as a rule one compilation for each combination of dtypes and broadcast dimensions."""

    def __init__(self, function: Callable[..., Any], fixed: Mapping[str, Sequence[int]]) -> None:
        update_wrapper(self, function)
        self.function = function
        names = function.__code__.co_varnames[: function.__code__.co_argcount]
        self._fixed = tuple(tuple(fixed.get(name, ())) for name in names)
        self._compiled: dict[tuple[Any, ...], list[_Compilation]] = {}
        self._known: dict[tuple[Any, ...], Callable[..., Any]] = {}

    def __call__(self, *args: Any) -> Any:
        parts: list[Any] = [torch.get_num_threads()]
        for x in args:
            parts += (x.dtype, x.shape, x.stride()) if isinstance(x, Tensor) else (x,)
        exact = tuple(parts)
        made = self._known.get(exact)
        if made is None:
            made = self._remembered(exact, self._found(args))
        return made(*args)

    def _remembered(self, exact: tuple[Any, ...], made: Callable[..., Any]) -> Callable[..., Any]:
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        self._known[exact] = made
        return made

    def _found(self, args: Sequence[Any]) -> Callable[..., Any]:
        """The compilation that serves these arguments, made if there is none; the function where none can be."""
        with _LOCK:
            made = self._compiled.setdefault(self._coarse(args), [])
            for compilation in made:
                if compilation.serves(args):
                    return compilation
            if sum(map(len, self._compiled.values())) >= _MOST:
                return self.function
            try:
                new = _Compilation(self.function, args, self._fixed)
                if new.serves(args):
                    made.append(new)
                    return new
                why = "what was compiled does not hold for what it was compiled for"
            except Exception as error:  # whatever a compiler may raise
                why = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
            _LOG.warning("autofuse: %s could not be compiled and runs as it is: %s", self.function.__name__, why)
            give_up("compiled", f"A region could not be compiled: {why}")
            return self.function

    def _coarse(self, args: Sequence[Any]) -> tuple[Any, ...]:
        parts: list[Any] = [torch.get_num_threads()]
        for x, fixed in zip(args, self._fixed, strict=True):
            if isinstance(x, Tensor):
                sizes = tuple(n if n < 2 else 2 for n in x.shape)
                strides = tuple(n if n < 2 else 2 for n in x.stride())
                parts += x.dtype, sizes, strides, tuple(x.shape[i] for i in fixed)
            else:
                parts.append(x)
        return tuple(parts)


class _Compilation:
    """What Inductor made of a function, and what it assumed of sizes and strides."""

    def __init__(self, function: Callable[..., Any], args: Sequence[Any], fixed: Sequence[Sequence[int]]) -> None:
        inductor, config = on_demand.compile_fx, on_demand.inductor_config
        self._places = [i for i, x in enumerate(args) if isinstance(x, Tensor)]
        shapes, self._single = loaded(_SYMBOLS).ShapeEnv(), False
        mode = FakeTensorMode(shape_env=shapes)
        fakes = [_fake(mode, args[i].detach(), fixed[i]) for i in self._places]
        self._layout = [_expressions(fake) for fake in fakes]  # tracing makes sizes that are compared one symbol
        decompositions = on_demand.select_decomp_table()
        with torch.no_grad(), torch.autocast("cpu", enabled=False), mode:  # it serves calls outside of it

            def of_tensors(*tensors: Tensor) -> tuple[Tensor, ...]:
                whole = list(args)
                for i, x in zip(self._places, tensors, strict=True):
                    whole[i] = x
                made = function(*whole)
                self._single = not isinstance(made, tuple)
                return (made,) if self._single else made

            graph = make_fx(of_tensors, decomposition_table=decompositions)(*fakes)
        settings = {"cpp.threads": torch.get_num_threads(), "compile_threads": 1}  # no pool of processes for one file
        with torch.no_grad(), config.patch(settings):
            self._compiled = inductor.compile_fx_inner(graph, fakes)
        self._guards = [guard.expr for guard in shapes.guards]

    def __call__(self, *args: Any) -> Any:
        made = self._compiled([args[i] for i in self._places])
        return made[0] if self._single else made

    def serves(self, args: Sequence[Any]) -> bool:
        """Whether sizes and strides are what was compiled for: each number or expression, and what was assumed."""
        values: dict[Any, int] = {}
        pairs = [
            pair
            for i, layout in zip(self._places, self._layout, strict=True)
            for pair in zip(layout, (*args[i].shape, *args[i].stride()), strict=True)
        ]
        for expression, actual in pairs:
            if getattr(expression, "is_Symbol", False) and values.setdefault(expression, actual) != actual:
                return False
        if any(_value(expression, values) != actual for expression, actual in pairs):
            return False
        return all(bool(_value(guard, values)) for guard in self._guards)


def _fake(mode: FakeTensorMode, x: Tensor, fixed: Sequence[int]) -> Tensor:
    static = {i % x.ndim for i in fixed}
    symbols, kinds = loaded(_SYMBOLS), loaded(_SYMBOLS).DimDynamic
    sizes = [kinds.STATIC if i in static or n < 2 else kinds.DYNAMIC for i, n in enumerate(x.shape)]
    made: Tensor = mode.from_tensor(x, symbolic_context=symbols.StatelessSymbolicContext(dynamic_sizes=sizes))
    return made


def _expressions(fake: Tensor) -> tuple[Any, ...]:
    """Sizes, then strides, as numbers and expressions of symbols."""
    return tuple(n.node.expr if isinstance(n, torch.SymInt) else n for n in (*fake.shape, *fake.stride()))


def _value(expression: Any, values: Mapping[Any, int]) -> Any:
    return expression.subs(values) if hasattr(expression, "subs") else expression
