"""Other files of the same project, as far as a file imports classes from them.

A relative import is followed from the file's own folder, an absolute one from the folders above it. Files are read when
a class is asked for, and kept. Knows files and imports; what may be done with a class is the business of children.py.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from autofuse.source.capture.looked_at import LOOKED_AT
from autofuse.source.capture.parsed_files import PARSED
from autofuse.source.capture.scope import ClassScope, FileScope

_LARGEST = 1 << 20  # bytes; larger files are generated
_ABOVE = 6  # folders above a file in which the project may begin
_HOPS = 3  # files that hand on what they import
LIBRARIES = ("torch", "einops", "typing", "functools", "collections", "dataclasses", "math", "numpy")


def own_class(scope: FileScope, function: ast.expr) -> tuple[ClassScope, FileScope] | None:
    """The class of this project that `function` names, and the scope of the file that it stands in."""
    return _class_called(scope, function.id, _HOPS) if isinstance(function, ast.Name) else None


def _class_called(scope: FileScope, name: str, hops: int) -> tuple[ClassScope, FileScope] | None:
    if name in scope.classes:
        return scope.classes[name], scope
    found = scope.imports.get(name)
    if found is None or scope.file is None or not hops:
        return None
    LOOKED_AT.questions += not _of_library(found)
    if name not in scope.elsewhere:
        scope.elsewhere[name] = _imported_class(found, name, scope.file, hops)
    return scope.elsewhere[name]


def _imported_class(found: ast.ImportFrom, name: str, file: Path, hops: int) -> tuple[ClassScope, FileScope] | None:
    """The class that an import in `file` binds to `name`; None where several files may be meant."""
    imported = next((a.name for a in found.names if (a.asname or a.name) == name), None)
    if imported is None or _of_library(found):
        return None
    scopes = (_scope_of(f, imported) for f in files_of(found, file))
    owns = [own for s in scopes if s is not None and (own := _class_called(s, imported, hops - 1)) is not None]
    return owns[0] if len({id(owner.node) for owner, _ in owns}) == 1 else None


def _of_library(found: ast.ImportFrom) -> bool:
    return not found.level and (found.module or "").partition(".")[0] in LIBRARIES


def files_of(found: ast.ImportFrom, file: Path) -> Iterator[Path]:
    """Where the module of an import in `file` may stand, the nearest first."""
    LOOKED_AT.questions += 1
    for paths in _places_of(found.level, found.module or "", file.parent):
        LOOKED_AT.places.update(dict.fromkeys(paths))
        yield from (Path(p) for p in paths if PARSED.is_file(p))


@lru_cache(maxsize=4096)
def _places_of(level: int, module: str, folder: Path) -> tuple[tuple[str, ...], ...]:
    """The paths at which a module may stand that a file in `folder` imports, for each folder that may hold it."""
    parts = module.split(".") if module else []
    bases = [start.joinpath(*parts) for start in starts_of(level, folder)]
    own = [([base.with_name(base.name + ".py")] if parts else []) for base in bases]
    return tuple(tuple(map(str, (*file, base / "__init__.py"))) for file, base in zip(own, bases, strict=True))


def starts_of(level: int, folder: Path) -> list[Path]:
    """The folders from which an import in a file of `folder` may be looked up, the nearest first."""
    return [folder.joinpath(*[".."] * (level - 1))] if level else [folder, *list(folder.parents)[: _ABOVE - 1]]


def _scope_of(file: Path, name: str) -> FileScope | None:
    """The scope of a file that mentions `name`; None where it does not, or cannot be read."""
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
    """A file as it was `modified`."""
    return Path(path).read_bytes()
