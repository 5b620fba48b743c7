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
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from autofuse.kernels.packages import give_up, loaded

_LOG = logging.getLogger("autofuse")
_LOCK = threading.RLock()
_BUCKET = 3  # bits: one compilation serves row counts up to eight times each other


def region(rows: str) -> Callable[[Callable[..., Any]], Region]:
    """Compile a function of tensors, None and plain values; `rows` names the tensors whose first size is that of rows.

    That size is one number in a call, and every other size is compiled in, as are strides and plain values. The
    function must not write into its arguments or return them, and gives its results in new memory, as a tensor or a
    tuple. Gradients do not pass through it.
    """

    def decorated(function: Callable[..., Any]) -> Region:
        return Region(function, frozenset(rows.split()))

    return decorated


class Region:
    """A compiled function; one compilation for each combination of dtypes, sizes, plain values and threads."""

    def __init__(self, function: Callable[..., Any], rows: frozenset[str]) -> None:
        update_wrapper(self, function)
        self.function = function
        names = function.__code__.co_varnames[: function.__code__.co_argcount]
        unknown = rows - set(names)
        if unknown:
            raise ValueError(f"{function.__name__} has no argument called {', '.join(sorted(unknown))}.")
        self._rows = tuple(name in rows for name in names)
        self._made: dict[tuple[Any, ...], Callable[..., Any]] = {}

    def __call__(self, *args: Any) -> Any:
        key = self._key(args)
        made = self._made.get(key)
        if made is None:
            made = self._made[key] = self._compiled(args)
        return made(*args)

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

    def _compiled(self, args: Sequence[Any]) -> Callable[..., Any]:
        with _LOCK:
            try:
                return _compile(self.function, args, self._rows)
            except Exception as error:  # whatever a compiler may raise
                why = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
                _LOG.warning("autofuse: %s could not be compiled and runs as it is: %s", self.function.__name__, why)
                give_up("compiled", f"A region could not be compiled: {why}")
                return self.function


def _compile(function: Callable[..., Any], args: Sequence[Any], by_row: Sequence[bool]) -> Callable[..., Any]:
    """`function` for arguments like `args`, with any number of rows that the compiler's guards admit."""
    inductor, config = loaded("torch._inductor.compile_fx"), loaded("torch._inductor.config")
    spelled_out = loaded("torch._inductor.decomposition").select_decomp_table()  # casts and ranges have no loop else
    places = [i for i, x in enumerate(args) if isinstance(x, Tensor)]
    shapes, single = ShapeEnv(), list[bool]()
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
    return _Compiled(function, compiled, places, single[0], _guards_on_rows(shapes), by_row.index(True))


def _fake(mode: FakeTensorMode, x: Tensor, by_row: bool) -> Tensor:
    symbolic = by_row and x.shape[0] > 1
    sizes = [DimDynamic.DYNAMIC if symbolic and i == 0 else DimDynamic.STATIC for i in range(x.ndim)]
    made: Tensor = mode.from_tensor(x, symbolic_context=StatelessSymbolicContext(dynamic_sizes=sizes))
    return made


def _guards_on_rows(shapes: ShapeEnv) -> Callable[[int], bool]:
    """Whether what was compiled holds for a number of rows: what tracing and compiling assumed of it."""
    expressions = [guard.expr for guard in shapes.guards]

    def hold(rows: int) -> bool:
        return all(bool(e.subs(dict.fromkeys(e.free_symbols, rows))) for e in expressions)

    return hold


class _Compiled:
    """What Inductor made, behind the guards on the number of rows."""

    def __init__(
        self, function: Callable[..., Any], compiled: Any, places: Sequence[int], single: bool,
        guards: Callable[[int], bool], rows: int,
    ) -> None:  # fmt: skip
        self._function, self._compiled, self._places, self._single = function, compiled, tuple(places), single
        self._guards, self._rows = guards, rows
        self._held: dict[int, bool] = {}

    def __call__(self, *args: Any) -> Any:
        rows = args[self._rows].shape[0]
        held = self._held.get(rows)
        if held is None:
            held = self._held[rows] = self._guards(rows)
        if not held:
            return self._function(*args)
        made = self._compiled([args[i] for i in self._places])
        return made[0] if self._single else made
