"""Compiled regions on the disk: what Inductor made for a CPU is found again by the next process, without Inductor.

Importing Inductor takes seconds, and so does compiling; running what it made needs neither. Kept are the Python code
around the loops, and the loops as shared libraries, each named for the digest of its bytes, in the folder of
autofuse/kernels/cache.py. What is not exactly understood is not kept: a name that this file does not know, another
device, a function that is not autofuse's own. What is damaged counts as absent.
Knows files and the form of Inductor's code; must not know what regions compute, nor which serves which call.
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
_MOST = 8  # compilations of one region that are kept for calls of one kind
_OWN = ("autofuse.kernels.", "autofuse.ops.")
_SET_BY = ("TORCHINDUCTOR_", "TORCH_COMPILE_", "ATEN_CPU_CAPABILITY", "CXX", "CFLAGS", "CPATH")
_NOT_COUNTED = "TORCHINDUCTOR_CACHE_DIR"
_HEADER = f"from {NAMES['compile_fx'].paths[0].rpartition('.')[0]}"  # what Inductor's code begins with


@dataclass(frozen=True)
class RegionPlace:
    """Where compilations of one region for calls of one kind are kept. `name` is empty where they are not."""

    name: str
    threads: int
    cache: Cache | None

    def kept(self) -> Iterator[KeptRegion]:
        """What is there, as far as it can be read."""
        for entry in _entries(self.cache).get(self.name, []) if self.cache and self.name else []:
            try:
                yield KeptRegion(
                    entry["source"], tuple(entry["loops"]), entry["single"], entry["layout"], entry["guards"]
                )
            except (TypeError, KeyError):
                continue

    def keep(self, compiled: Any, single: bool, sizes: tuple[list[Plain], list[Plain]] | None) -> None:
        """Keep what Inductor made, where it is understood; nothing here raises."""
        if self.cache is None or not self.name or sizes is None:
            return
        try:
            self._keep(self.cache, compiled, single, sizes)
        except Exception as error:  # private code of torch's may be anything
            _LOG.debug("%s is not kept: %s: %s", self.name, type(error).__name__, error)

    def _keep(self, cache: Cache, compiled: Any, single: bool, sizes: tuple[list[Plain], list[Plain]]) -> None:
        source = _without_header(compiled.source_code)
        spaces = compiled.current_callable.__func__.__globals__
        loops = [_library_of(spaces[name]) for name in _loops(source)]
        _require_understood(source, spaces, len(loops))
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
    """One compilation: Inductor's code, the names of its libraries, and what it assumed of sizes."""

    source: str
    loops: tuple[str, ...]
    single: bool
    layout: Sequence[Plain]
    guards: Sequence[Plain]

    def loop(self) -> Callable[[list[Any]], Any] | None:
        """What runs it; None where a file is gone or damaged."""
        try:
            paths = [find_kept_file(name) for name in self.loops]
            if not all(paths):
                return None
            made = _run(self.source, [_loaded(path) for path in paths if path])
            loop: Callable[[list[Any]], Any] = made["call"]
            return loop
        except Exception as error:  # a library of another kind of machine, say
            _LOG.debug("A compiled region could not be loaded: %s: %s", type(error).__name__, error)
            return None


def place_of(function: Callable[..., Any], args: Sequence[Any], key: str) -> RegionPlace:
    """Where compilations of `function` for such arguments are kept."""
    threads = torch.get_num_threads()
    module, name = getattr(function, "__module__", "") or "", getattr(function, "__qualname__", "")
    tensors = [x for x in args if isinstance(x, Tensor)]
    plain = all(isinstance(x, Tensor) or _is_plain(x) for x in args)
    if not (module.startswith(_OWN) and name.isidentifier() and plain) or any(x.device.type != "cpu" for x in tensors):
        return RegionPlace("", threads, None)
    return RegionPlace(f"{module}.{name} {torch.get_default_dtype()} {key}", threads, _cache(threads))


def _is_plain(value: object) -> bool:
    """Whether its text says all that there is to it."""
    if type(value) is tuple:
        return all(map(_is_plain, value))
    return type(value) in (bool, int, float, str, type(None))


def _cache(threads: int) -> Cache | None:
    from_environment = {k: v for k, v in os.environ.items() if k.startswith(_SET_BY) and k != _NOT_COUNTED}
    return _cache_for(threads, tuple(sorted(from_environment.items())))


_caches: dict[tuple[Any, ...], Cache] = {}
_read: dict[object, dict[str, Any]] = {}  # by the path of the file


def _cache_for(threads: int, settings: tuple[tuple[str, str], ...]) -> Cache:
    if (threads, settings) not in _caches:
        python = {"python": sys.version, "torch at": os.path.dirname(torch.__file__)}
        belongs = hardware("cpu") | versions() | python | {"threads": str(threads), "settings": repr(settings)}
        _caches[threads, settings] = Cache("regions", tuple(sorted(belongs.items())), KEPT)
    return _caches[threads, settings]


def _entries(cache: Cache) -> dict[str, Any]:
    with _LOCK:
        path = cache.path
        if path not in _read:
            _read[path] = {k: v for k, v in cache.read().items() if isinstance(v, list)}
        return _read[path]


def forget() -> None:
    """Read the files again when they are next needed."""
    with _LOCK:
        _read.clear()


# Inductor's code, of which the beginning imports Inductor and the end is for benchmarks.


def _without_header(source: str) -> str:
    """The code without its imports of Inductor, and without what stands there for somebody who runs the file."""
    body = source.partition("\ndef get_args(")[0].partition("\ndef benchmark_compiled_module(")[0]
    return "\n".join(line for line in body.splitlines() if not line.startswith(_HEADER)) + "\n"


def _loops(source: str) -> list[str]:
    """The names that its loops have, in the order in which they are compiled."""
    return [
        statement.targets[0].id
        for statement in ast.parse(source).body
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)
        and isinstance(statement.value, ast.Call) and ast.unparse(statement.value.func) == "async_compile.cpp_pybinding"
    ]  # fmt: skip


def _require_understood(source: str, spaces: dict[str, Any], loops: int) -> None:
    """Raises ValueError where the code reads a name that is not given here, or calls another product than torch's."""
    made = _run(source, [_unused] * loops)
    tree = ast.parse(source)
    stored = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    stored |= {a.arg for n in ast.walk(tree) if isinstance(n, ast.arguments) for a in (*n.args, *n.kwonlyargs)}
    loaded = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    unknown = {n for n in loaded - stored if n not in made and not hasattr(builtins, n)}
    products = {
        n.attr for n in ast.walk(tree)
        if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and n.value.id == "extern_kernels"
    }  # fmt: skip
    unknown |= {n for n in products if getattr(spaces["extern_kernels"], n) is not vars(_Extern).get(n)}
    if unknown:
        raise ValueError(f"it reads {', '.join(sorted(unknown))}")


def _unused(*_: object) -> None:
    raise RuntimeError("a loop was called while its code was looked at.")


class _Extern:
    """The products that Inductor leaves to torch."""

    mm, addmm, bmm, baddbmm = torch.mm, torch.addmm, torch.bmm, torch.baddbmm


class _Loaded:
    """Stands where the code asks for a compiler: each loop has been compiled."""

    def __init__(self, loops: Sequence[Any]) -> None:
        self._loops = iter(loops)

    def cpp_pybinding(self, *_: Any, **__: Any) -> Any:
        """The next loop."""
        return next(self._loops)

    def wait(self, *_: Any) -> None:
        """Nothing is under way."""


def _run(source: str, loops: Sequence[Any]) -> dict[str, Any]:
    """The names that the code defines, with these loops in it."""
    made: dict[str, Any] = {"__name__": "autofuse region", "extern_kernels": _Extern,
                            "AsyncCompile": lambda: _Loaded(loops)}  # fmt: skip
    exec(compile(source, "<autofuse region>", "exec"), made)  # from a folder that nobody else can write to
    return made


def _library_of(loop: Any) -> bytes:
    """The file that a loop was loaded from. Raises what reading it raises."""
    return Path(loop.__self__.__spec__.origin).read_bytes()


_modules: dict[str, Any] = {}


def _loaded(path: Path) -> Any:
    """The loop of a library, which is loaded once. The bytes were compared with the file's name before."""
    with _LOCK:
        if path.name not in _modules:
            name = f"autofuse_{path.stem}.kernel"  # what follows the last dot names the function that initializes it
            os.environ["_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR"] = str(on_demand.tensor_data_pointer)
            loader = importlib.machinery.ExtensionFileLoader(name, str(path))
            spec = importlib.util.spec_from_file_location(name, str(path), loader=loader)
            assert spec is not None
            module = importlib.util.module_from_spec(spec)
            loader.exec_module(module)
            _modules[path.name] = module
        return _modules[path.name].kernel
