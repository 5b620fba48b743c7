"""Compiles a function of tensors with Inductor for some sizes, or loads what was compiled before from the disk.

compiled_regions.py and dynamic_regions.py decide which compilation serves which call; region_store.py stores them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from autofuse.kernels import region_store
from autofuse.kernels.own_thread import run_in_own_thread
from autofuse.kernels.packages import load_module
from autofuse.kernels.size_conditions import SizeConditions, size_of
from autofuse.kernels.vector_widths import only_widest_vectors, presumed_widest_vectors
from autofuse.torch_private import FakeTensorMode, on_demand

_SYMBOLS = "torch.fx.experimental.symbolic_shapes"  # imports sympy, which only compiling needs
Loop = Callable[[list[Any]], Any]
_LOG = logging.getLogger("autofuse")


@dataclass(frozen=True)
class Compilation:
    """A compiled function of tensors, None and plain values, for arguments of some sizes.

    Attributes:
        loop: takes a list of the tensors and returns a tuple of results.
        places: which arguments are tensors.
        single: whether the function returns one tensor instead of a tuple.
        sizes: what was compiled in, and what was assumed about the other sizes.
    """

    loop: Loop
    places: tuple[int, ...]
    single: bool
    sizes: SizeConditions

    def runner(self) -> Callable[..., Any]:
        """A function with the parameters of the compiled function."""
        loop, places = self.loop, self.places

        def run(*args: Any) -> Any:
            return loop([args[i] for i in places])

        def run_for_one(*args: Any) -> Any:
            return loop([args[i] for i in places])[0]

        return run_for_one if self.single else run

    def serves(self, args: Sequence[Any]) -> bool:
        """Whether sizes and strides equal what was compiled in, and meet the assumptions."""
        return self.sizes.hold([n for i in self.places for n in (*args[i].shape, *args[i].stride())])


def compilation(function: Callable[..., Any], args: Sequence[Any], symbolic: Sequence[Sequence[int]], key: str
                ) -> Compilation:  # fmt: skip
    """The compilation of `function` for arguments like `args`, from the disk if it is stored there.

    Args:
        function: the function.
        args: the arguments.
        symbolic: for each argument, the dimensions whose size may change.
        key: what compilations of `function` that may serve each other's calls have in common.

    Returns:
        The compilation. This raises whatever the compiler raises.
    """
    place = region_store.place_of(function, args, key)
    for stored in place.stored_regions():
        if (found := _from_disk(stored, args)) is not None:
            return found
    name = getattr(function, "__qualname__", "a region")
    return run_in_own_thread(lambda: _compile_with_vectors(function, args, symbolic, place), f"compiling {name}")


def _from_disk(stored: region_store.KeptRegion, args: Sequence[Any]) -> Compilation | None:
    """The stored compilation, if it serves these arguments."""
    places = tuple(i for i, x in enumerate(args) if isinstance(x, Tensor))
    sizes = SizeConditions.from_texts(stored.layout, stored.guards)
    if sizes is None or not sizes.hold([n for i in places for n in (*args[i].shape, *args[i].stride())]):
        return None
    loop = stored.loop()
    return None if loop is None else Compilation(loop, places, stored.single, sizes)


def _compile_with_vectors(
    function: Callable[..., Any], args: Sequence[Any], symbolic: Sequence[Sequence[int]],
    place: region_store.RegionPlace,
) -> Compilation:  # fmt: skip
    """The compilation for the widest vectors. If it fails, Inductor tries which vectors work."""
    with presumed_widest_vectors() as presumed:
        try:
            return _compile(function, args, symbolic, place)
        except Exception as error:
            if not presumed:
                raise
            _LOG.debug("compiling for the widest vectors raised %s: %s", type(error).__name__, error)
    with only_widest_vectors():
        return _compile(function, args, symbolic, place)


def _compile(
    function: Callable[..., Any],
    args: Sequence[Any],
    symbolic: Sequence[Sequence[int]],
    place: region_store.RegionPlace,
) -> Compilation:
    inductor, config = on_demand.compile_fx, on_demand.inductor_config
    decompositions = on_demand.select_decomp_table()  # without them casts and ranges have no loop
    places = tuple(i for i, x in enumerate(args) if isinstance(x, Tensor))
    shapes, single = load_module(_SYMBOLS).ShapeEnv(), list[bool]()
    mode = FakeTensorMode(shape_env=shapes)
    fakes = [_fake(mode, args[i].detach(), symbolic[i]) for i in places]
    layout = [size_of(n) for fake in fakes for n in (*fake.shape, *fake.stride())]
    with torch.no_grad(), mode:

        def of_tensors(*tensors: Tensor) -> tuple[Tensor, ...]:
            all_args = list(args)
            for i, x in zip(places, tensors, strict=True):
                all_args[i] = x
            result = function(*all_args)
            single.append(not isinstance(result, tuple))
            return (result,) if single[-1] else result

        graph = make_fx(of_tensors, decompositions)(*fakes)
    settings = {"cpp.threads": place.threads, "compile_threads": 1}  # one file needs no pool of processes
    with torch.no_grad(), config.patch(settings):
        compiled = inductor.compile_fx_inner(graph, fakes)
    sizes = SizeConditions(tuple(layout), tuple(size_of(guard.expr) for guard in shapes.guards))
    # Inductor's object wraps the loop for profilers and accelerators. CPUs do not need the wrapper.
    loop = getattr(compiled, "current_callable", None) or compiled
    place.keep(compiled, single[0], sizes.texts())
    return Compilation(loop, places, single[0], sizes)


def _fake(mode: FakeTensorMode, x: Tensor, symbolic: Sequence[int]) -> Tensor:
    symbols, kinds = load_module(_SYMBOLS), load_module(_SYMBOLS).DimDynamic
    sizes = [kinds.DYNAMIC if i in symbolic else kinds.STATIC for i in range(x.ndim)]
    result: Tensor = mode.from_tensor(x, symbolic_context=symbols.StatelessSymbolicContext(dynamic_sizes=sizes))
    return result
