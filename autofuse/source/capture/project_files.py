"""Finds classes that a file imports from other files of its project.

A relative import is resolved from the folder of the file. An absolute import is tried in this folder and in the folders
above it. A file is read when one of its classes is needed. children.py decides what may be done with a class.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from autofuse.source.capture.file_lookups import FILE_LOOKUPS
from autofuse.source.capture.parsed_files import PARSED
from autofuse.source.capture.scope import ClassScope, FileScope

_LARGEST = 1 << 20  # bytes; a larger file was written by a generator
_LEVELS = 6  # folders that are tried for an absolute import: the root of the project may be any of them
_HOPS = 3  # files that may re-export a class
LIBRARIES = ("torch", "einops", "typing", "functools", "collections", "dataclasses", "math", "numpy")


def find_project_class(scope: FileScope, function: ast.expr) -> tuple[ClassScope, FileScope] | None:
    """Return the class of this project that the expression `function` names, and the scope of its file."""
    return _find_class(scope, function.id, _HOPS) if isinstance(function, ast.Name) else None


def _find_class(scope: FileScope, name: str, hops: int) -> tuple[ClassScope, FileScope] | None:
    if name in scope.classes:
        return scope.classes[name], scope
    statement = scope.imports.get(name)
    if statement is None or scope.file is None or not hops:
        return None
    FILE_LOOKUPS.count += not _imports_library(statement)
    if name not in scope.imported_classes:
        scope.imported_classes[name] = _find_imported_class(statement, name, scope.file, hops)
    return scope.imported_classes[name]


def _find_imported_class(
    statement: ast.ImportFrom, name: str, file: Path, hops: int
) -> tuple[ClassScope, FileScope] | None:
    """Return the class that an import in `file` binds to `name`; None if several files may define it."""
    imported = next((a.name for a in statement.names if (a.asname or a.name) == name), None)
    if imported is None or _imports_library(statement):
        return None
    scopes = (read_scope(f, imported) for f in files_of_import(statement, file))
    classes = [c for s in scopes if s is not None and (c := _find_class(s, imported, hops - 1)) is not None]
    return classes[0] if len({id(owner.node) for owner, _ in classes}) == 1 else None


def _imports_library(statement: ast.ImportFrom) -> bool:
    return not statement.level and (statement.module or "").partition(".")[0] in LIBRARIES


def files_of_import(statement: ast.ImportFrom, file: Path) -> Iterator[Path]:
    """Yield the files that the module of an import in `file` may be, nearest first."""
    FILE_LOOKUPS.count += 1
    for paths in _module_paths(statement.level, statement.module or "", file.parent):
        FILE_LOOKUPS.paths.update(dict.fromkeys(paths))
        yield from (Path(p) for p in paths if PARSED.is_file(p))


@lru_cache(maxsize=4096)
def _module_paths(level: int, module: str, folder: Path) -> tuple[tuple[str, ...], ...]:
    """Return the possible paths of a module that a file in `folder` imports, for each folder that may contain it."""
    parts = module.split(".") if module else []
    bases = [start.joinpath(*parts) for start in import_roots(level, folder)]
    files = [([base.with_name(base.name + ".py")] if parts else []) for base in bases]
    return tuple(tuple(map(str, (*file, base / "__init__.py"))) for file, base in zip(files, bases, strict=True))


def import_roots(level: int, folder: Path) -> list[Path]:
    """Return the folders where an import in a file of `folder` may start, nearest first.

    Args:
        level: The number of leading dots of the import.
        folder: The folder of the file.
    """
    if level:  # one path for each file, whichever file imports it: what is known of a file is kept by its path
        return [Path(os.path.normpath(folder.joinpath(*[".."] * (level - 1))))]
    return [folder, *list(folder.parents)[: _LEVELS - 1]]


def read_scope(file: Path, name: str = "") -> FileScope | None:
    """Return the scope of a file that contains the text `name`; None if it does not, or if it cannot be read."""
    try:
        status = file.stat()
        if status.st_size > _LARGEST:
            return None
        text = _text(str(file), status.st_mtime_ns, status.st_size)
        return PARSED.scope(text, str(file)) if os.fsencode(name) in text else None
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


@lru_cache(maxsize=512)
def _text(path: str, modified: int, size: int) -> bytes:
    """Read a file. `modified` and `size` are part of the cache key, so that a changed file is read again."""
    return Path(path).read_bytes()
