"""Compiled regions on the disk: the next process loads what Inductor compiled for a CPU, without importing Inductor.

Importing Inductor takes seconds, and so does compiling. Running the result needs neither. The store has Inductor's
Python code around the loops, and the loops as shared libraries. Each library is named after the digest of its bytes, in
the folder of autofuse/kernels/cache.py. Code that is not fully understood is not stored: an unknown name, another
device, a function that is not autofuse's own. Damaged files count as absent.
"""

from __future__ import annotations

import ast
import builtins
import importlib.machinery
import importlib.util
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import RLock
from typing import Any

import torch
from torch import Tensor

from autofuse.kernels.cache import KEPT, LIBRARY, Cache, find_kept_file, keep_file
from autofuse.kernels.decisions import hardware, versions
from autofuse.kernels.size_conditions import Plain
from autofuse.torch_private import on_demand
from autofuse.torch_private.names import NAMES

_LOG = logging.getLogger("autofuse")
_LOCK = RLock()
_MOST = 8  # stored compilations of one region for calls of one kind
_OWN = ("autofuse.kernels.", "autofuse.ops.")
_SET_BY = ("TORCHINDUCTOR_", "TORCH_COMPILE_", "ATEN_CPU_CAPABILITY", "CXX", "CFLAGS", "CPATH")
_NOT_COUNTED = "TORCHINDUCTOR_CACHE_DIR"
_HEADER = f"from {NAMES['compile_fx'].paths[0].rpartition('.')[0]}"  # the beginning of Inductor's code


@dataclass(frozen=True)
class RegionPlace:
    """The place where compilations of one region for calls of one kind are stored. `name` is empty if they are not."""

    name: str
    threads: int
    cache: Cache | None

    def stored_regions(self) -> Iterator[KeptRegion]:
        """The readable stored compilations."""
        for entry in _entries(self.cache).get(self.name, []) if self.cache and self.name else []:
            try:
                yield KeptRegion(
                    entry["source"], tuple(entry["loops"]), entry["single"], entry["layout"], entry["guards"]
                )
            except (TypeError, KeyError):
                continue

    def keep(self, compiled: Any, single: bool, sizes: tuple[list[Plain], list[Plain]] | None) -> None:
        """Stores what Inductor compiled, if it is understood. Never raises an error."""
        if self.cache is None or not self.name or sizes is None:
            return
        try:
            self._keep(self.cache, compiled, single, sizes)
        except Exception as error:  # private code of torch may change in any way
            _LOG.debug("%s is not kept: %s: %s", self.name, type(error).__name__, error)

    def _keep(self, cache: Cache, compiled: Any, single: bool, sizes: tuple[list[Plain], list[Plain]]) -> None:
        source = _without_header(compiled.source_code)
        spaces = compiled.current_callable.__func__.__globals__
        loops = [_library_bytes(spaces[name]) for name in _loop_names(source)]
        _require_known_names(source, spaces, len(loops))
        names = [keep_file(content, LIBRARY) for content in loops]
        if None in names:
            return
        entry = {"source": source, "loops": names, "single": single, "layout": sizes[0], "guards": sizes[1]}
        with _LOCK:
            entries = [*_entries(cache).get(self.name, []), entry][-_MOST:]
            _entries(cache)[self.name] = entries
        cache.add({self.name: entries})


@dataclass(frozen=True)
class KeptRegion:
    """One stored compilation.

    Attributes:
        source: Inductor's code.
        loops: the names of its libraries.
        single: whether the function returns one tensor.
        layout: the sizes and strides.
        guards: the assumptions about sizes.
    """

    source: str
    loops: tuple[str, ...]
    single: bool
    layout: Sequence[Plain]
    guards: Sequence[Plain]

    def loop(self) -> Callable[[list[Any]], Any] | None:
        """The function that runs it; None if a file is missing or damaged."""
        try:
            paths = [find_kept_file(name) for name in self.loops]
            if not all(paths):
                return None
            namespace = _execute(self.source, [_load_library(path) for path in paths if path])
            loop: Callable[[list[Any]], Any] = namespace["call"]
            return loop
        except Exception as error:  # for example a library of another architecture
            _LOG.debug("A compiled region could not be loaded: %s: %s", type(error).__name__, error)
            return None


def place_of(function: Callable[..., Any], args: Sequence[Any], key: str) -> RegionPlace:
    """The place where compilations of `function` for such arguments are stored."""
    threads = torch.get_num_threads()
    module, name = getattr(function, "__module__", "") or "", getattr(function, "__qualname__", "")
    tensors = [x for x in args if isinstance(x, Tensor)]
    plain = all(isinstance(x, Tensor) or _is_plain(x) for x in args)
    if not (module.startswith(_OWN) and name.isidentifier() and plain) or any(x.device.type != "cpu" for x in tensors):
        return RegionPlace("", threads, None)
    return RegionPlace(f"{module}.{name} {torch.get_default_dtype()} {key}", threads, _cache(threads))


def _is_plain(value: object) -> bool:
    """Whether the repr of a value determines the value."""
    if type(value) is tuple:
        return all(map(_is_plain, value))
    return type(value) in (bool, int, float, str, type(None))


def _cache(threads: int) -> Cache | None:
    from_environment = {k: v for k, v in os.environ.items() if k.startswith(_SET_BY) and k != _NOT_COUNTED}
    return _cache_for(threads, tuple(sorted(from_environment.items())))


_caches: dict[tuple[Any, ...], Cache] = {}
_entries_of_files: dict[object, dict[str, Any]] = {}  # by the path of the file


def _cache_for(threads: int, settings: tuple[tuple[str, str], ...]) -> Cache:
    if (threads, settings) not in _caches:
        python = {"python": sys.version, "torch at": os.path.dirname(torch.__file__)}
        belongs = hardware("cpu") | versions() | python | {"threads": str(threads), "settings": repr(settings)}
        _caches[threads, settings] = Cache("regions", tuple(sorted(belongs.items())), KEPT)
    return _caches[threads, settings]


def _entries(cache: Cache) -> dict[str, Any]:
    with _LOCK:
        path = cache.path
        if path not in _entries_of_files:
            _entries_of_files[path] = {k: v for k, v in cache.read().items() if isinstance(v, list)}
        return _entries_of_files[path]


def forget() -> None:
    """Makes the next access read the files again."""
    with _LOCK:
        _entries_of_files.clear()


# Inductor's code. Its beginning imports Inductor, and its end is for benchmarks.


def _without_header(source: str) -> str:
    """The code without its imports of Inductor, and without the part that runs it as a script."""
    body = source.partition("\ndef get_args(")[0].partition("\ndef benchmark_compiled_module(")[0]
    return "\n".join(line for line in body.splitlines() if not line.startswith(_HEADER)) + "\n"


def _loop_names(source: str) -> list[str]:
    """The names of its loops, in the order in which they are compiled."""
    return [
        statement.targets[0].id
        for statement in ast.parse(source).body
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)
        and isinstance(statement.value, ast.Call) and ast.unparse(statement.value.func) == "async_compile.cpp_pybinding"
    ]  # fmt: skip


def _require_known_names(source: str, spaces: dict[str, Any], loops: int) -> None:
    """Checks that the code is understood.

    Raises:
        ValueError: if the code reads an unknown name, or calls another matrix product than torch's.
    """
    namespace = _execute(source, [_refuse_call] * loops)
    tree = ast.parse(source)
    written_names = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    written_names |= {a.arg for n in ast.walk(tree) if isinstance(n, ast.arguments) for a in (*n.args, *n.kwonlyargs)}
    read_names = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    unknown = {n for n in read_names - written_names if n not in namespace and not hasattr(builtins, n)}
    products = {
        n.attr for n in ast.walk(tree)
        if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and n.value.id == "extern_kernels"
    }  # fmt: skip
    unknown |= {n for n in products if getattr(spaces["extern_kernels"], n) is not vars(_Extern).get(n)}
    if unknown:
        raise ValueError(f"it reads the unknown names {', '.join(sorted(unknown))}")


def _refuse_call(*_: object) -> None:
    raise RuntimeError("A loop was called while its code was checked.")


class _Extern:
    """The matrix products that Inductor leaves to torch."""

    mm, addmm, bmm, baddbmm = torch.mm, torch.addmm, torch.bmm, torch.baddbmm


class _LoadedLoops:
    """Replaces Inductor's compiler in the code: the loops are already compiled."""

    def __init__(self, loops: Sequence[Any]) -> None:
        self._loops = iter(loops)

    def cpp_pybinding(self, *_: Any, **__: Any) -> Any:
        """The next loop."""
        return next(self._loops)

    def wait(self, *_: Any) -> None:
        """Does nothing: all loops are ready."""


def _execute(source: str, loops: Sequence[Any]) -> dict[str, Any]:
    """Executes the code with these loops, and returns the names that it defines."""
    namespace: dict[str, Any] = {"__name__": "autofuse region", "extern_kernels": _Extern,
                            "AsyncCompile": lambda: _LoadedLoops(loops)}  # fmt: skip
    exec(compile(source, "<autofuse region>", "exec"), namespace)  # the folder is private to the user
    return namespace


def _library_bytes(loop: Any) -> bytes:
    """The bytes of the library of a loop. Raises whatever reading the file raises."""
    return Path(loop.__self__.__spec__.origin).read_bytes()


_modules: dict[str, Any] = {}


def _load_library(path: Path) -> Any:
    """The loop of a library, which is loaded once. `find_kept_file` has compared its bytes with its name."""
    with _LOCK:
        if path.name not in _modules:
            name = f"autofuse_{path.stem}.kernel"  # the part after the last dot is the name of the init function
            os.environ["_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR"] = str(on_demand.tensor_data_pointer)
            loader = importlib.machinery.ExtensionFileLoader(name, str(path))
            spec = importlib.util.spec_from_file_location(name, str(path), loader=loader)
            assert spec is not None
            module = importlib.util.module_from_spec(spec)
            loader.exec_module(module)
            _modules[path.name] = module
        return _modules[path.name].kernel
