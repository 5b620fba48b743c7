"""The imports of a file, and the project files that they may refer to.

given_files.py uses them to find the files that matter for an edit.
"""

from __future__ import annotations

import ast
import os
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from autofuse.source.capture.node_index import node_index
from autofuse.source.capture.parsed_files import real_path
from autofuse.source.capture.project_files import LIBRARIES, find_project_class, import_roots
from autofuse.source.capture.scope import FileScope


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

    def may_import(self, home: str, classes: Collection[str]) -> bool:
        """Whether the import may reach the file `home`, one of the `classes` defined there, or its package."""
        if any(home in files for files in self.files):
            return True
        if self.name in ("", "*"):
            return any(home.startswith(base + os.sep) for base in self.bases)
        return self.original in classes and self.defined == home

    def of(self, candidates: Collection[str]) -> Iterator[str]:
        """Yield the files in `candidates` that the import may refer to."""
        for files in self.files:
            yield from (f for f in files if f in candidates)
        if self.name and self.defined in candidates:
            yield self.defined

    @cached_property
    def defined(self) -> str:
        """The file that defines the imported class; "" if the import names no class or the class is not found."""
        definition = find_project_class(scope, ast.Name(self.name)) if (scope := self.scope()) is not None else None
        return resolve_path(definition[1].file) if definition is not None and definition[1].file is not None else ""

    @cached_property
    def files(self) -> tuple[tuple[str, str], ...]:
        """For each possible location, the two files that the module may be."""
        return tuple((f"{base}.py", f"{base}{os.sep}__init__.py") for base in self.bases)


class ImportedFiles:
    """The direct and indirect imports of a file, indexed by file for many queries."""

    def __init__(self, imports: Sequence[ProjectImport]) -> None:
        self._files = {f for i in imports for files in i.files for f in files}
        self._packages = {base + os.sep for i in imports if i.name in ("", "*") for base in i.bases}
        self._by_original_name = defaultdict[str, list[ProjectImport]](list)
        for i in imports:
            if i.name not in ("", "*"):
                self._by_original_name[i.original].append(i)

    def may_import(self, home: str, classes: Collection[str]) -> bool:
        """Whether one of the imports may reach the file `home`, or one of the `classes` that are defined there."""
        if home in self._files or any(home.startswith(p) for p in self._packages):
            return True
        return any(i.defined == home for name in classes for i in self._by_original_name.get(name, ()))


def find_imports(tree: ast.Module, file: Path, scope: Callable[[], FileScope | None]) -> Iterator[ProjectImport]:
    """Yield every import of a file."""
    folder = Path(resolve_path(file)).parent
    for node in node_index(tree).of_kinds(ast.Import, ast.ImportFrom):
        if isinstance(node, ast.Import):
            modules = [(a.name, "", "", 0) for a in node.names]
        elif isinstance(node, ast.ImportFrom):
            module_name = node.module or ""
            names = [(a.asname or a.name, a.name) for a in node.names]
            modules = [(module_name, local, name, node.level) for local, name in names]
            modules += [(f"{module_name}.{name}".lstrip("."), local, name, node.level) for local, name in names]
        else:
            continue
        for module, local, name, level in modules:
            if level or module.partition(".")[0] not in LIBRARIES:
                parts = module.split(".") if module else []
                bases = (os.path.normpath(os.path.join(start, *parts)) for start in import_roots(level, folder))
                yield ProjectImport(scope, tuple(bases), local, name)
