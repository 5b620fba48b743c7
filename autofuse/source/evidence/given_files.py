"""The other files of a project, as far as one command was given them: which of them may concern a class of one file.

Files are searched as bytes first, and parsed where they mention what is asked for. What is found is kept for as long
as the command runs. Knows files and names; what they do to a class is the business of changes.py and families.py.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from autofuse.source.capture.project_files import files_of
from autofuse.source.capture.scope import FileScope, file_scope
from autofuse.source.capture.syntax import walk

_LARGEST = 1 << 20  # bytes; larger files are generated
_MOST = 64  # files that are parsed for the sake of one
_NAMED = re.compile(rb"\b(?:import|from|class)\s[^\n]*")  # where names of other files are brought in, or inherited from
_CHANGES = re.compile(
    rb"(?<!self)\.(\w+)\s*(?:\[[^\]\n]*\])?\s*(?:,[^=\n]*)?=(?!=)|(setattr|_modules|_hook|patch|__dict__|set_submodule)\b"
)


@dataclass
class ProjectFiles:
    """The files that a command was given. Reads each once."""

    paths: tuple[str, ...]
    _texts: dict[str, _Mentioned | None] = field(default_factory=dict)
    _scopes: dict[str, FileScope | None] = field(default_factory=dict)

    def concerning(self, scope: FileScope) -> tuple[FileScope, ...]:
        """Other files that import from the file of `scope`, and inherit from its classes or change attributes."""
        if scope.file is None or len(self.paths) < 2:
            return ()
        names = {*(n.encode() for n in (*scope.classes, *scope.functions))}
        stem = scope.file.stem if scope.file.stem != "__init__" else scope.file.parent.name
        here = scope.file.resolve()
        found = list[FileScope]()
        for path in self.paths:
            mentioned = self._mentioned(path)
            if mentioned is None or not mentioned.may_concern(stem.encode(), names) or Path(path).resolve() == here:
                continue
            other = self._scope(path)
            if other is not None and imports_from(other, scope.file):
                found.append(other)
            if len(found) >= _MOST:
                break
        return tuple(found)

    def patching(self, scope: FileScope) -> tuple[FileScope, ...]:
        """Other files that replace functions of torch's, which are one for the whole program."""
        here = scope.file.resolve() if scope.file is not None else None
        paths = [p for p in self.paths if (m := self._mentioned(p)) is not None and m.patches_torch]
        return tuple(s for p in paths if Path(p).resolve() != here and (s := self._scope(p)) is not None)

    def _mentioned(self, path: str) -> _Mentioned | None:
        if path not in self._texts:
            self._texts[path] = _mentioned(path)
        return self._texts[path]

    def _scope(self, path: str) -> FileScope | None:
        if path not in self._scopes:
            try:
                self._scopes[path] = file_scope(ast.parse(Path(path).read_bytes()), Path(path))
            except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
                self._scopes[path] = None
        return self._scopes[path]


def imports_from(scope: FileScope, file: Path) -> bool:
    """Whether the file of `scope` imports `file`, or a class or function of it by way of its package."""
    home = file.resolve()
    for node in walk(scope.tree):
        if isinstance(node, ast.ImportFrom) and scope.file is not None:
            if any(_brings(node, a.name, scope.file, home) for a in node.names):
                return True
        elif isinstance(node, ast.Import) and scope.file is not None:
            for a in node.names:
                named = ast.ImportFrom(a.name, [], 0)
                if any(f.resolve() == home or _holds(f, home) for f in files_of(named, scope.file)):
                    return True
    return False


def _brings(node: ast.ImportFrom, name: str, here: Path, home: Path) -> bool:
    """Whether `from x import name` brings in the file `home`, or what it defines by way of its package."""
    within = ast.ImportFrom(f"{node.module}.{name}" if node.module else name, [], node.level)
    if any(f.resolve() == home for f in (*files_of(node, here), *files_of(within, here))):
        return True
    return any(_holds(f, home) and (name == "*" or _defines(home, name)) for f in files_of(node, here))


def _holds(package: Path, file: Path) -> bool:
    """Whether `package` is the __init__.py of a folder that holds `file`."""
    return package.name == "__init__.py" and package.resolve().parent in file.parents


def _defines(file: Path, name: str) -> bool:
    try:
        return re.search(rb"^(?:class|def)\s+%s\b" % name.encode(), file.read_bytes(), re.MULTILINE) is not None
    except OSError:
        return False


@dataclass(frozen=True)
class _Mentioned:
    """What the bytes of a file say: the words of its imports and bases, and whether it changes attributes of others."""

    words: frozenset[bytes]
    inherits: bool
    changes: bool
    patches_torch: bool

    def may_concern(self, stem: bytes, names: Iterable[bytes]) -> bool:
        if not self.inherits and not self.changes:
            return False
        return stem in self.words or not self.words.isdisjoint(names)


_PATCHES = re.compile(
    rb"(?:\bF|\btorch|functional|\bTensor|nn\.\w+)\.\w+\s*=(?!=)|(?:setattr|patch(?:\.object)?)\(\s*[\"']?(?:F|torch)\b"
)


def _mentioned(path: str) -> _Mentioned | None:
    """The words of a file; None where it cannot be read, or is no Python."""
    try:
        if not path.endswith((".py", ".pyi")) or Path(path).stat().st_size > _LARGEST:
            return None
        source = Path(path).read_bytes()
    except OSError:
        return None
    lines = _NAMED.findall(source)
    words = frozenset(w for line in lines for w in re.findall(rb"\w+", line))
    imported = re.findall(rb"\bimport\s*\(([^)]*)\)", source)
    words |= {w for part in imported for w in re.findall(rb"\w+", part)}
    inherits = any(line.startswith(b"class") and b"(" in line for line in lines)
    return _Mentioned(words, inherits, _CHANGES.search(source) is not None, _PATCHES.search(source) is not None)
