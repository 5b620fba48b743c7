"""Finds the kernels in a folder of Triton files, and checks those that are declared.

A kernel is a @triton.jit function that returns nothing and that no other such function of the folder calls by name.
This file does not know what the kernels compute.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from triton.runtime.jit import JITFunction

from autofuse.kernels.ahead_of_time import Ahead
from tools.ahead.launches import Launch, launches
from tools.ahead.targets import TARGETS, THREADS, Arch

KERNELS = Path(__file__).parents[2] / "autofuse" / "kernels" / "triton"
ARCHITECTURES = tuple(TARGETS)
_BY_LAUNCH = "launch it by autofuse.kernels.triton.launch."


@dataclass(frozen=True)
class Row:
    """One launch of a declared call on one architecture, and what is wrong with it ("" if nothing is).

    access: the width of loads and stores that the call promises.
    """

    file: str
    label: str
    arch: Arch
    launch: Launch
    trouble: str
    access: float = 0.0


def files(folder: Path) -> tuple[ModuleType, ...]:
    """Return the modules of a folder, sorted by name. The folder may belong to the package or not."""
    return tuple(_module(path) for path in sorted(folder.glob("*.py")) if path.stem != "__init__")


def rows(module: ModuleType, architectures: Iterable[Arch], quick: bool) -> Iterator[Row]:
    """Compile the declared calls of a module, all or only the quick ones."""
    for entry in declared(module):
        if entry.quick or not quick:
            for arch in architectures:
                for launch in launches(entry, arch):
                    yield Row(stem(module), entry.label, arch, launch, trouble(entry, launch, arch), entry.access)


def trouble(entry: Ahead, launch: Launch, arch: Arch) -> str:
    """The problems of a kernel, in a sentence for each; "" if there are none."""
    return " ".join(_troubles(entry, launch, arch))


def _troubles(entry: Ahead, launch: Launch, arch: Arch) -> Iterator[str]:
    used, target = launch.resources, TARGETS[arch]
    if used.local:
        yield f"It spills: a thread keeps {used.local} bytes in local memory. Use a smaller block or more warps."
    if used.shared > target.block_shared:
        yield f"It wants {used.shared} bytes of shared memory, and a block may have {target.block_shared}."
    elif used.threads(arch) > THREADS:
        yield f"Its blocks have {used.threads(arch)} threads, and a block may have {THREADS}: {_BY_LAUNCH}"
    elif used.occupancy(arch) < entry.occupancy:
        yield (
            f"Its occupancy is {used.occupancy(arch):.3f} ({used.registers} registers, {used.shared} bytes of shared "
            f"memory, {used.warps} warps), and {entry.occupancy} was promised."
        )
    if launch.narrow:
        yield f"It computes addresses in 32 bits, which 2**31 entries overflow: {'; '.join(launch.narrow)}."
    if not launch.guarded:
        yield f"It is launched on the current device, whatever device its tensors are on: {_BY_LAUNCH}"


def undeclared(modules: Iterable[ModuleType], launched: Iterable[tuple[str, str]]) -> list[str]:
    """Return a sentence for every kernel that is not among the (file, kernel) pairs in `launched`."""
    functions = {(stem(m), name): f for m in modules for name, f in _functions(m)}
    called = {name for function in functions.values() for name in _names_in(function)}
    kernels = [key for key, function in functions.items() if key[1] not in called and not _returns(function)]
    missing = sorted(set(kernels) - set(launched))
    return [f"{file}.{kernel} is not declared: no quick entry of AHEAD launches it." for file, kernel in missing]


def declared(module: ModuleType) -> tuple[Ahead, ...]:
    """The declared calls of a module; empty if it declares none."""
    return tuple(getattr(module, "AHEAD", ()))


def stem(module: ModuleType) -> str:
    return module.__name__.rpartition(".")[2]


def _functions(module: ModuleType) -> Iterator[tuple[str, JITFunction]]:
    for name, value in vars(module).items():
        if isinstance(value, JITFunction) and value.fn.__module__ == module.__name__:
            yield name, value


def _names_in(function: JITFunction) -> set[str]:
    """Every name that the body of the function reads, without its own."""
    body = ast.walk(ast.parse(function.src))
    names = {n.id if isinstance(n, ast.Name) else n.attr for n in body if isinstance(n, (ast.Name, ast.Attribute))}
    return names - {function.fn.__name__}


def _returns(function: JITFunction) -> bool:
    return any(isinstance(n, ast.Return) and n.value is not None for n in ast.walk(ast.parse(function.src)))


def _module(path: Path) -> ModuleType:
    if path.parent == KERNELS:
        return importlib.import_module(f"autofuse.kernels.triton.{path.stem}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be loaded as a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module
