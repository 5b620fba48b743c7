"""Compiles a function of tensors with Inductor, once for some sizes, and finds what was compiled before on the disk.

Knows Inductor; must not know which compilation serves which call (compiled_regions.py, dynamic_regions.py), nor how
compiled code is kept (region_store.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from autofuse.kernels import region_store
from autofuse.kernels.own_thread import in_own_thread
from autofuse.kernels.packages import loaded
from autofuse.kernels.size_conditions import SizeConditions, size_of
from autofuse.torch_private import FakeTensorMode, on_demand

_SYMBOLS = "torch.fx.experimental.symbolic_shapes"  # imports sympy, which only compiling takes
Loop = Callable[[list[Any]], Any]


@dataclass(frozen=True)
class Compilation:
    """What a compiler made of a function of tensors, None and plain values, for arguments of some sizes.

    loop: takes a list of the tensors and gives a tuple of results. places: which arguments are tensors. single: whether
    the function gives one tensor, and no tuple. sizes: what was compiled in, and what was assumed of the rest.
    """

    loop: Loop
    places: tuple[int, ...]
    single: bool
    sizes: SizeConditions

    def runner(self) -> Callable[..., Any]:
        """What can be called like the function that was compiled."""
        loop, places = self.loop, self.places

        def run(*args: Any) -> Any:
            return loop([args[i] for i in places])

        def run_for_one(*args: Any) -> Any:
            return loop([args[i] for i in places])[0]

        return run_for_one if self.single else run

    def serves(self, args: Sequence[Any]) -> bool:
        """Whether sizes and strides are what was compiled for: each number or expression, and what was assumed."""
        return self.sizes.hold([n for i in self.places for n in (*args[i].shape, *args[i].stride())])


def compilation(function: Callable[..., Any], args: Sequence[Any], symbolic: Sequence[Sequence[int]], key: str
                ) -> Compilation:  # fmt: skip
    """What is compiled of `function` for arguments like `args`, from the disk where it is there.

    symbolic: for each argument, the dimensions whose size may be another one. key: what compilations of `function` that
    may serve each other's calls have in common. Raises whatever a compiler raises.
    """
    place = region_store.place_of(function, args, key)
    for kept in place.kept():
        if (found := _from_disk(kept, args)) is not None:
            return found
    name = getattr(function, "__qualname__", "a region")
    return in_own_thread(lambda: _compiled(function, args, symbolic, place), f"compiling {name}")


def _from_disk(kept: region_store.KeptRegion, args: Sequence[Any]) -> Compilation | None:
    """What is kept, if it serves these arguments."""
    places = tuple(i for i, x in enumerate(args) if isinstance(x, Tensor))
    sizes = SizeConditions.from_texts(kept.layout, kept.guards)
    if sizes is None or not sizes.hold([n for i in places for n in (*args[i].shape, *args[i].stride())]):
        return None
    loop = kept.loop()
    return None if loop is None else Compilation(loop, places, kept.single, sizes)


def _compiled(
    function: Callable[..., Any],
    args: Sequence[Any],
    symbolic: Sequence[Sequence[int]],
    place: region_store.RegionPlace,
) -> Compilation:
    inductor, config = on_demand.compile_fx, on_demand.inductor_config
    spelled_out = on_demand.select_decomp_table()  # casts and ranges have no loop else
    places = tuple(i for i, x in enumerate(args) if isinstance(x, Tensor))
    shapes, single = loaded(_SYMBOLS).ShapeEnv(), list[bool]()
    mode = FakeTensorMode(shape_env=shapes)
    fakes = [_fake(mode, args[i].detach(), symbolic[i]) for i in places]
    layout = [size_of(n) for fake in fakes for n in (*fake.shape, *fake.stride())]
    with torch.no_grad(), mode:

        def of_tensors(*tensors: Tensor) -> tuple[Tensor, ...]:
            whole = list(args)
            for i, x in zip(places, tensors, strict=True):
                whole[i] = x
            made = function(*whole)
            single.append(not isinstance(made, tuple))
            return (made,) if single[-1] else made

        graph = make_fx(of_tensors, spelled_out)(*fakes)
    settings = {"cpp.threads": place.threads, "compile_threads": 1}  # no pool of processes for one file
    with torch.no_grad(), config.patch(settings):
        compiled = inductor.compile_fx_inner(graph, fakes)
    sizes = SizeConditions(tuple(layout), tuple(size_of(guard.expr) for guard in shapes.guards))
    # What stands around the loop in Inductor's object serves profilers and accelerators.
    loop = getattr(compiled, "current_callable", None) or compiled
    place.keep(compiled, single[0], sizes.texts())
    return Compilation(loop, places, single[0], sizes)


def _fake(mode: FakeTensorMode, x: Tensor, symbolic: Sequence[int]) -> Tensor:
    symbols, kinds = loaded(_SYMBOLS), loaded(_SYMBOLS).DimDynamic
    sizes = [kinds.DYNAMIC if i in symbolic else kinds.STATIC for i in range(x.ndim)]
    made: Tensor = mode.from_tensor(x, symbolic_context=symbols.StatelessSymbolicContext(dynamic_sizes=sizes))
    return made
