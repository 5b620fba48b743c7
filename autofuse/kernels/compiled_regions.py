"""Compiled regions: a plain function of tensors, compiled by Inductor into one loop and called without Dynamo.

Knows Inductor and how often a region has to be compiled; must not know what regions compute. A call costs about three
microseconds, where a function under torch.compile costs twenty. Sizes are compiled in, but for the number of rows.
Where compiling fails (no compiler, another Inductor), the function itself runs, slower and the same, and no operation
asks for regions any more.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
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
_SEEN = 4096  # different sizes that a region remembers
_BUCKET = 3  # bits: one compilation serves row counts up to eight times each other


def region(rows: str) -> Callable[[Callable[..., Any]], CompiledRegion]:
    """Compile a function of tensors, None and plain values; `rows` names the tensors whose first size is that of rows.

    That size is one number in a call, and every other size is compiled in, as are strides and plain values. The
    function must not return its arguments, nor write into them but to fill one with a result (`argument.copy_(made)`),
    and gives its results in new memory, as a tensor or a tuple. Gradients do not pass through it.
    """

    def decorated(function: Callable[..., Any]) -> CompiledRegion:
        return CompiledRegion(function, frozenset(rows.split()))

    return decorated


class CompiledRegion:
    """A compiled function; one compilation for each combination of dtypes, sizes, plain values and threads."""

    def __init__(self, function: Callable[..., Any], rows: frozenset[str]) -> None:
        update_wrapper(self, function)
        self.function = function
        names = function.__code__.co_varnames[: function.__code__.co_argcount]
        unknown = rows - set(names)
        if unknown:
            raise ValueError(f"{function.__name__} has no argument called {', '.join(sorted(unknown))}.")
        self._rows = tuple(name in rows for name in names)
        self._made: dict[tuple[Any, ...], _Compiled | None] = {}
        self._seen: dict[tuple[Any, ...], Callable[..., Any]] = {}  # what runs for arguments of exactly these sizes

    def __call__(self, *args: Any) -> Any:
        exactly = [(x.shape, x.stride(), x.dtype) if isinstance(x, Tensor) else x for x in args]
        key = (torch.get_num_threads(), *exactly)
        runs = self._seen.get(key)
        if runs is None:
            if len(self._seen) >= _SEEN:
                self._seen.clear()
            runs = self._seen[key] = self._for(args)
        return runs(*args)

    def _for(self, args: Sequence[Any]) -> Callable[..., Any]:
        """What runs for such arguments: the compiled loop, or the function itself where that does not hold for them."""
        key = self._key(args)
        if key not in self._made:
            self._made[key] = self._compiled(args)
        made, rows = self._made[key], args[self._rows.index(True)].shape[0]
        return self.function if made is None or not made.holds(rows) else made.run

    def _key(self, args: Sequence[Any]) -> tuple[Any, ...]:
        parts: list[Any] = [torch.get_num_threads()]
        for x, by_row in zip(args, self._rows, strict=True):
            if not isinstance(x, Tensor):
                parts.append(x)
            elif by_row:
                rows = x.shape[0]
                parts += x.dtype, rows if rows < 2 else -(rows.bit_length() // _BUCKET), x.shape[1:], x.stride()
            else:
                parts += x.dtype, x.shape, x.stride()
        return tuple(parts)

    def _compiled(self, args: Sequence[Any]) -> _Compiled | None:
        with _LOCK:
            try:
                return _compile(self.function, args, self._rows)
            except Exception as error:  # whatever a compiler may raise
                why = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
                _LOG.warning("autofuse: %s could not be compiled and runs as it is: %s", self.function.__name__, why)
                give_up("compiled", f"A region could not be compiled: {why}")
                return None


def _compile(function: Callable[..., Any], args: Sequence[Any], by_row: Sequence[bool]) -> _Compiled:
    """`function` for arguments like `args`, with any number of rows that the compiler's guards admit."""
    inductor, config = on_demand.compile_fx, on_demand.inductor_config
    spelled_out = on_demand.select_decomp_table()  # casts and ranges have no loop else
    places = [i for i, x in enumerate(args) if isinstance(x, Tensor)]
    shapes, single = loaded(_SYMBOLS).ShapeEnv(), list[bool]()
    mode = FakeTensorMode(shape_env=shapes)
    fakes = [_fake(mode, args[i].detach(), by_row[i]) for i in places]
    with torch.no_grad(), torch.autocast("cpu", enabled=False), mode:  # what is compiled serves calls outside of it

        def of_tensors(*tensors: Tensor) -> tuple[Tensor, ...]:
            whole = list(args)
            for i, x in zip(places, tensors, strict=True):
                whole[i] = x
            made = function(*whole)
            single.append(not isinstance(made, tuple))
            return (made,) if single[-1] else made

        graph = make_fx(of_tensors, spelled_out)(*fakes)
    settings = {"cpp.threads": torch.get_num_threads(), "compile_threads": 1}  # no pool of processes for one file
    with torch.no_grad(), config.patch(settings):
        compiled = inductor.compile_fx_inner(graph, fakes)
    # What stands around the loop in Inductor's object serves profilers and accelerators.
    loop = getattr(compiled, "current_callable", None) or compiled
    return _Compiled(_caller(loop, tuple(places), single[0]), [guard.expr for guard in shapes.guards])


def _fake(mode: FakeTensorMode, x: Tensor, by_row: bool) -> Tensor:
    symbolic = by_row and x.shape[0] > 1
    symbols, kinds = loaded(_SYMBOLS), loaded(_SYMBOLS).DimDynamic
    sizes = [kinds.DYNAMIC if symbolic and i == 0 else kinds.STATIC for i in range(x.ndim)]
    made: Tensor = mode.from_tensor(x, symbolic_context=symbols.StatelessSymbolicContext(dynamic_sizes=sizes))
    return made


def _caller(loop: Callable[[list[Tensor]], Any], places: tuple[int, ...], single: bool) -> Callable[..., Any]:
    """The loop, which takes a list of tensors and gives several results, as the function that it was made of."""

    def run(*args: Any) -> Any:
        return loop([args[i] for i in places])

    def run_for_one(*args: Any) -> Any:
        return loop([args[i] for i in places])[0]

    return run_for_one if single else run


class _Compiled:
    """What Inductor made, and what tracing and compiling assumed of the number of rows."""

    def __init__(self, run: Callable[..., Any], guards: Sequence[Any]) -> None:
        self.run, self._guards = run, guards

    def holds(self, rows: int) -> bool:
        """Whether it may run for that many."""
        return all(bool(e.subs(dict.fromkeys(e.free_symbols, rows))) for e in self._guards)
