"""Runs a user's program in this process as `python program.py` would, and reports how it ended."""

from __future__ import annotations

import importlib.util
import io
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

_MAIN = "__main__"


class NoProgram(ValueError):
    """There is nothing to run. The message says what was searched, and where."""


@dataclass(frozen=True)
class Program:
    """The code of a program and its environment.

    name: for people.
    code: what is executed.
    file, arguments: become `sys.argv`.
    first: the first entry of `sys.path`.
    spec: of a module that is run with -m.
    """

    name: str
    code: types.CodeType
    file: str
    arguments: tuple[str, ...]
    first: str
    spec: ModuleSpec | None = None

    @contextmanager
    def in_place(self) -> Iterator[Callable[[], None]]:
        """Yield a function that runs the program. In the block, `__main__`, `sys.argv` and `sys.path` belong to it.

        They stay so after the program ran, so that pickle and inspect find what it defined. Processes that it spawns
        import the program and not the profiler, because they look up `__main__`, too.
        """
        main = types.ModuleType(_MAIN)
        main.__file__, main.__spec__ = self.file, self.spec
        main.__package__ = self.spec.parent if self.spec else None
        main.__dict__.update(__builtins__=__builtins__, __cached__=None)
        saved = sys.modules[_MAIN], sys.argv, list(sys.path)
        sys.modules[_MAIN], sys.argv = main, [self.file, *self.arguments]
        sys.path[: 0 if sys.flags.safe_path else 1] = [self.first]
        try:
            yield lambda: exec(self.code, main.__dict__)
        finally:
            sys.modules[_MAIN], sys.argv, sys.path[:] = saved


def script(path: str, arguments: Sequence[str]) -> Program:
    """Return the program in a file.

    Args:
        path: the file.
        arguments: the arguments of the program.

    Raises:
        NoProgram: Python cannot read the file.
    """
    file = Path(path)
    if file.is_dir():
        raise NoProgram(f"{path} is a folder: name the script in it, or run a package with -m.")
    try:
        with io.open_code(str(file.resolve())) as opened:
            text = opened.read()
    except OSError as error:
        hint = "" if file.suffix else " Run a module with -m; write a function that builds a model as MODULE:FUNCTION."
        raise NoProgram(f"{path} cannot be read: {error.strerror or error}.{hint}") from error
    return Program(file.name, _compile(text, path), path, tuple(arguments), str(file.resolve().parent))


def module(name: str, arguments: Sequence[str]) -> Program:
    """Return the program that `python -m name` runs.

    Args:
        name: the name of the module or package.
        arguments: the arguments of the program.

    Raises:
        NoProgram: There is no such module, or it cannot be run.
    """
    with _working_folder_importable():
        spec = _spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = _spec(f"{name}.__main__")
    if spec is None or spec.loader is None or not spec.origin or not hasattr(spec.loader, "get_code"):
        raise NoProgram(f"No module named {name!r} can be run from here, as python -m {name} would.")
    try:
        code: Any = spec.loader.get_code(spec.name)
    except SyntaxError as error:
        raise NoProgram(f"{spec.origin}:{error.lineno}: this is not Python: {error.msg}.") from error
    return Program(name, code, spec.origin, tuple(arguments), "", spec)


def _compile(text: bytes, path: str) -> types.CodeType:
    try:
        return compile(text, path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) else ""
        raise NoProgram(f"{path}{line}: this is not Python: {error}.") from error


def _spec(name: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None


@contextmanager
def _working_folder_importable() -> Iterator[None]:
    """In the block, modules of the working folder can be imported, as under python -m."""
    sys.path.insert(0, "")
    try:
        yield
    finally:
        sys.path.remove("")
