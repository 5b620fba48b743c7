"""What a file imports of its project: which files may be meant, by their paths.

Knows imports and paths; what is done with them is the business of given_files.py.
"""

from __future__ import annotations

import ast
import os
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from autofuse.source.capture.parsed_files import real_path
from autofuse.source.capture.project_files import LIBRARIES, own_class, starts_of
from autofuse.source.capture.scope import FileScope
from autofuse.source.capture.syntax import walk


def resolved(path: str | Path) -> str:
    """The path that a file really has."""
    return real_path(os.path.abspath(path))


@dataclass(frozen=True)
class Import:
    """One name that a file imports. `bases`: what a module may stand at, without `.py` and `/__init__.py`.

    scope: gives that of the file that imports. name: what the file calls it, "" for a whole module. original: its name
    where it is defined.
    """

    scope: Callable[[], FileScope | None]
    bases: tuple[str, ...]
    name: str
    original: str

    def brings(self, home: str, classes: Collection[str]) -> bool:
        """Whether it imports the file `home`, one of the `classes` that are defined there, or all of its package."""
        if any(home in files for files in self.files):
            return True
        if self.name in ("", "*"):
            return any(home.startswith(base + os.sep) for base in self.bases)
        return self.original in classes and self.defined == home

    def of(self, given: Collection[str]) -> Iterator[str]:
        """The files among those `given` that it may mean."""
        for files in self.files:
            yield from (f for f in files if f in given)
        if self.name and self.defined in given:
            yield self.defined

    @cached_property
    def defined(self) -> str:
        """The file of the class that it names; "" where it names none that can be found."""
        found = own_class(scope, ast.Name(self.name)) if (scope := self.scope()) is not None else None
        return resolved(found[1].file) if found is not None and found[1].file is not None else ""

    @cached_property
    def files(self) -> tuple[tuple[str, str], ...]:
        """The files that the module may be, for each place where it may stand."""
        return tuple((f"{base}.py", f"{base}{os.sep}__init__.py") for base in self.bases)


class Reached:
    """What a file imports, and those that it imports do: asked for one file after the other, so kept by file."""

    def __init__(self, imports: Sequence[Import]) -> None:
        self._files = {f for i in imports for files in i.files for f in files}
        self._packages = {base + os.sep for i in imports if i.name in ("", "*") for base in i.bases}
        self._named = defaultdict[str, list[Import]](list)
        for i in imports:
            if i.name not in ("", "*"):
                self._named[i.original].append(i)

    def brings(self, home: str, classes: Collection[str]) -> bool:
        """Whether one of the imports brings the file `home`, or one of the `classes` that are defined there."""
        if home in self._files or any(home.startswith(p) for p in self._packages):
            return True
        return any(i.defined == home for name in classes for i in self._named.get(name, ()))


def imports_of(tree: ast.Module, file: Path, scope: Callable[[], FileScope | None]) -> Iterator[Import]:
    """Every import of a file."""
    folder = Path(resolved(file)).parent
    for node in walk(tree):
        if isinstance(node, ast.Import):
            modules = [(a.name, "", "", 0) for a in node.names]
        elif isinstance(node, ast.ImportFrom):
            own = node.module or ""
            names = [(a.asname or a.name, a.name) for a in node.names]
            modules = [(own, local, name, node.level) for local, name in names]
            modules += [(f"{own}.{name}".lstrip("."), local, name, node.level) for local, name in names]
        else:
            continue
        for module, local, name, level in modules:
            if level or module.partition(".")[0] not in LIBRARIES:
                parts = module.split(".") if module else []
                bases = (os.path.normpath(os.path.join(start, *parts)) for start in starts_of(level, folder))
                yield Import(scope, tuple(bases), local, name)
