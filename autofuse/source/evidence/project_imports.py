"""The imports of a file, and the project files that they may refer to.

given_files.py uses them to find the files that matter for an edit.
"""

from __future__ import annotations

import ast
import os
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from autofuse.source.capture.node_index import node_index
from autofuse.source.capture.parsed_files import real_path
from autofuse.source.capture.project_files import LIBRARIES, import_roots
from autofuse.source.capture.scope import FileScope
from autofuse.source.evidence.class_names import classes_named


def resolve_path(path: str | Path) -> str:
    """Return the absolute path of a file, with symbolic links resolved."""
    return real_path(os.path.abspath(path))


@dataclass(frozen=True)
class ProjectImport:
    """One name that a file imports.

    Attributes:
        scope: returns the scope of the importing file.
        bases: the paths where the module may be, without `.py` and `/__init__.py`.
        name: the local name; "" for a whole module.
        original: the name in the module that defines it.
    """

    scope: Callable[[], FileScope | None]
    bases: tuple[str, ...]
    name: str
    original: str

    def of(self, candidates: Collection[str]) -> list[str]:
        """Return the files in `candidates` that the import may refer to."""
        found = [f for f in self.files if f in candidates]
        return found + [f for f in self.defined if f in candidates] if self.name else found

    @cached_property
    def defined(self) -> frozenset[str]:
        """The files that may define the imported class; empty if the import names no class of the project."""
        scope = self.scope()
        named = classes_named(scope, ast.Name(self.name)) if scope is not None and self.name not in ("", "*") else ()
        return frozenset(c.file for c in named if c is not None and c.line)

    @property
    def files(self) -> tuple[str, ...]:
        """For each possible location, the two files that the module may be."""
        return _files_of_modules(self.bases)


@lru_cache(maxsize=1 << 12)
def _files_of_modules(bases: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f for base in bases for f in (f"{base}.py", f"{base}{os.sep}__init__.py"))


@lru_cache(maxsize=1 << 12)
def _bases_of_module(level: int, module: str, folder: Path) -> tuple[str, ...]:
    """Return the paths where a module may be that a file in `folder` imports, without a suffix."""
    parts = module.split(".") if module else []
    return tuple(os.path.normpath(os.path.join(start, *parts)) for start in import_roots(level, folder))


class ImportedFiles:
    """The direct and indirect imports of a file, indexed by file for many queries."""

    def __init__(self, imports: Sequence[ProjectImport]) -> None:
        self._files = {f for bases in dict.fromkeys(i.bases for i in imports) for f in _files_of_modules(bases)}
        self._packages = {base + os.sep for i in imports if i.name in ("", "*") for base in i.bases}
        self._by_original_name = defaultdict[str, list[ProjectImport]](list)
        for i in imports:
            if i.name not in ("", "*"):
                self._by_original_name[i.original].append(i)

    def may_import(self, home: str, classes: Collection[str]) -> bool:
        """Whether one of the imports may reach the file `home`, or one of the `classes` that are defined there.

        Args:
            home: the file.
            classes: the names of its classes, also those that other files give them.
        """
        if home in self._files or any(home.startswith(p) for p in self._packages):
            return True
        return any(home in i.defined for name in classes for i in self._by_original_name.get(name, ()))


def find_imports(tree: ast.Module, file: Path, scope: Callable[[], FileScope | None]) -> Iterator[ProjectImport]:
    """Yield every import of a file."""
    folder = Path(resolve_path(file)).parent
    for node in node_index(tree).of_kinds(ast.Import, ast.ImportFrom, ast.Call):
        if isinstance(node, ast.Import):
            modules = [(a.name, "", "", 0) for a in node.names]
        elif isinstance(node, ast.Call):
            modules = [(name, "", "", 0)] if (name := _imported_by_call(node)) else []
        elif isinstance(node, ast.ImportFrom):
            module_name = node.module or ""
            names = [(a.asname or a.name, a.name) for a in node.names]
            modules = [(module_name, local, name, node.level) for local, name in names]
            modules += [(f"{module_name}.{name}".lstrip("."), local, name, node.level) for local, name in names]
        else:
            continue
        for module, local, name, level in modules:
            if level or module.partition(".")[0] not in LIBRARIES:
                yield ProjectImport(scope, _bases_of_module(level, module, folder), local, name)


def _imported_by_call(call: ast.Call) -> str:
    """The module that `importlib.import_module("layers")` imports; "" for any other call."""
    match call:
        case ast.Call(func=ast.Name(id=how) | ast.Attribute(attr=how), args=[ast.Constant(str(name)), *_]):
            return name if how in ("import_module", "__import__") else ""
    return ""
