"""Finds the other files of a command that may affect the code of one file.

A search first looks for words in the bytes of the files, and parses only the files that contain them. Results are kept
for as long as the command runs. changes.py and subclasses.py read what the found files do.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from autofuse.source.capture.file_lookups import FILE_LOOKUPS
from autofuse.source.capture.parsed_files import PARSED
from autofuse.source.capture.scope import FileScope
from autofuse.source.evidence.class_names import class_of_statement, names_class_of, names_module
from autofuse.source.evidence.derivative_calls import find_derivatives
from autofuse.source.evidence.mentions import Mentions, find_mentions
from autofuse.source.evidence.project_imports import ImportedFiles, ProjectImport, find_imports, resolve_path
from autofuse.source.evidence.subclasses import has_computed_base, new_subclasses

_MAX_BYTES = 1 << 20  # bytes; larger files are generated
_MAX_PARSED = 128  # files that import one file and are parsed for one question about it; more make an edit unsafe
_MAX_CONFIRMED = 512  # files with code that concerns all files that they import; more make an edit unsafe
_MAX_IN_BETWEEN = 16  # importing files that are followed to their own importers
_MAX_IMPORTED = 128  # files that are parsed to follow the imports of one file
_MAX_NAMES = 4096  # names that files give to the classes of one file

_Answer = TypeVar("_Answer")


@dataclass
class _Importers:
    """The files that may import some names of a file.

    Attributes:
        words: the names, and other names that files give to them.
        names: the same as text.
        paths: the files with such a word.
        reaching: whether a file really may import them, for each file for which a question asked.
    """

    words: set[bytes]
    names: frozenset[str]
    paths: list[str]
    reaching: dict[str, bool] = field(default_factory=dict)


@dataclass
class ProjectFiles:
    """The files of one command. Each file is read once."""

    _file_paths: tuple[str, ...]
    _mentions: dict[str, Mentions | None] = field(default_factory=dict)
    _scopes: dict[str, FileScope | None] = field(default_factory=dict)
    _direct_imports: dict[str, tuple[ProjectImport, ...]] = field(default_factory=dict)
    _import_chains: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _imported_files: dict[str, dict[str, None]] = field(default_factory=dict)
    _files_changing_objects: dict[Path, tuple[str, ...]] = field(default_factory=dict)
    _files_reading_layouts: dict[Path, tuple[str, ...]] = field(default_factory=dict)
    _importing_files: dict[tuple[Path, str], tuple[str, ...]] = field(default_factory=dict)
    _files_changing_classes: dict[Path, tuple[str, ...]] = field(default_factory=dict)
    _files_computing_bases: dict[Path, tuple[str, ...]] = field(default_factory=dict)
    _files_by_mention: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _by_word: defaultdict[bytes, list[int]] = field(default_factory=lambda: defaultdict(list))
    _by_module: defaultdict[bytes, list[int]] = field(default_factory=lambda: defaultdict(list))
    _confirmed_files: dict[str, list[str]] = field(default_factory=dict)
    _indirect_importers: dict[tuple[Path, str], tuple[str, ...]] = field(default_factory=dict)
    _all_imports: dict[str, ImportedFiles] = field(default_factory=dict)
    _inspecting_imports: dict[Path, tuple[str, ...]] = field(default_factory=dict)
    _own_imports: dict[str, ImportedFiles] = field(default_factory=dict)
    _may_use_dropout: dict[Path, bool] = field(default_factory=dict)
    _resolved_paths: dict[str, str] = field(default_factory=dict)
    _unread: dict[str, str] = field(default_factory=dict)  # by the resolved path of the file that they may concern
    _other_names: defaultdict[bytes, set[bytes]] = field(default_factory=lambda: defaultdict(set))
    _answers: dict[object, Any] = field(default_factory=dict)
    _importers: dict[tuple[Path, frozenset[str]], _Importers] = field(default_factory=dict)

    def __post_init__(self) -> None:
        PARSED.forget_existence()
        PARSED.forget()  # from here on, every file counts with the text that is read first

    def make_room(self) -> None:
        """Drops the syntax trees if there are too many. Call it only between two files."""
        if PARSED.is_full:
            self._scopes.clear()  # the other attributes hold only paths
            PARSED.drop(keep=dict.fromkeys(p for paths in self._confirmed_files.values() for p in paths))

    def scan_bytes(self) -> None:
        """Searches the bytes of all files. Call it before the work is split among processes."""
        for path in self._file_paths:
            self._mentioned_in(path)

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of the files. Each read counts as a question about other files, also if there are no others."""
        FILE_LOOKUPS.count += 1
        return self._file_paths

    def files_changing_classes(self, scope: FileScope) -> tuple[FileScope, ...]:
        """Returns the files that import from the file of `scope`, and define subclasses or change attributes."""
        if scope.file is None or len(self.paths) < 2:
            return ()
        if scope.file not in self._files_changing_classes:
            self._files_changing_classes[scope.file] = tuple(
                dict.fromkeys(self._find_changing_files(scope, scope.file))
            )
        return self._scopes_of_files(self._files_changing_classes[scope.file])

    def files_computing_bases(self, scope: FileScope) -> tuple[FileScope, ...]:
        """Returns the files that import the file of `scope` through others and compute a base class: `BASE = get()`."""
        if scope.file is None or len(self.paths) < 2:
            return ()
        if scope.file not in self._files_computing_bases:
            found = self._find_indirect_importers(scope, "computed_bases", has_computed_base)
            self._files_computing_bases[scope.file] = tuple(
                dict.fromkeys(str(s.file) for s in found if s.file is not None)
            )
        return self._scopes_of_files(self._files_computing_bases[scope.file])

    def _find_changing_files(self, scope: FileScope, file: Path) -> Iterator[str]:
        """Yields the files that import from `file` and change something, then those that import their subclasses."""
        names = _names_of_file(scope, file)
        family = {class_of_statement(c.node, scope) for c in scope.classes.values()}
        pending, seen = [(file, scope, names)], {resolve_path(file)}
        while pending:
            for path in self._find_importers(*pending.pop(0), lambda m: m.concerns_others):
                other = self._scope_of_file(path)
                if other is None or resolve_path(path) in seen:
                    continue
                seen.add(resolve_path(path))
                yield path
                found = new_subclasses(other, family)
                family |= found
                if found and len(seen) < _MAX_PARSED:
                    pending.append((Path(path), other, frozenset(c.name for c in found)))

    def first_unread_file(self, scope: FileScope) -> str:
        """Returns a file that may concern the file of `scope`, and was not read because there are too many; or ""."""
        FILE_LOOKUPS.count += 1
        return self._unread.get(resolve_path(scope.file), "") if scope.file is not None else ""

    def files_changing_objects(self, scope: FileScope) -> tuple[FileScope, ...]:
        """Returns files with functions that change any module that they are given: `replace(model, old, new)`.

        Only files that some importer of the file of `scope` also imports count.
        """
        if scope.file is None or len(self.paths) < 2:
            return ()
        if scope.file not in self._files_changing_objects:
            home = resolve_path(scope.file)
            replacing = self._by_resolved_path(self._files_with("changes_objects"))
            paths: dict[str, None] = {}
            names = _names_of_file(scope, scope.file)
            for path in self._find_importers(scope.file, scope, names) if replacing else ():
                user = self._scope_of_file(path)
                if user is None or Path(path).name == "__init__.py":
                    continue  # a package imports its files, but does not use them
                files = (f for i in self._imports_of_scope(path, user) for f in i.of(replacing))
                paths |= {replacing[f]: None for f in files if f != home}
            self._files_changing_objects[scope.file] = tuple(paths)
        return self._scopes_of_files(self._files_changing_objects[scope.file])

    def files_reading_layouts(self, scope: FileScope) -> tuple[FileScope, ...]:
        """Returns the files that import from the file of `scope`, and their importers, if one of them reads a layout.

        Importers of importers count, because a result can pass through a class of the second file to the third.
        """
        if scope.file is None or len(self.paths) < 2:
            return ()
        if scope.file not in self._files_reading_layouts:
            importers = [*self._find_importers(scope.file, scope, _names_of_file(scope, scope.file))]
            paths = dict.fromkeys(importers)
            for path in importers[:_MAX_IN_BETWEEN]:
                if (user := self._scope_of_file(path)) is not None and user.file is not None:
                    names = _names_of_file(user, user.file)
                    paths |= dict.fromkeys(self._find_importers(user.file, user, names, lambda m: m.asks_layouts))
            reads_layout = any((m := self._mentioned_in(p)) is not None and m.asks_layouts for p in paths)
            other_paths = (p for p in paths if resolve_path(p) != resolve_path(scope.file))
            self._files_reading_layouts[scope.file] = tuple(other_paths) if reads_layout else ()
        return self._scopes_of_files(self._files_reading_layouts[scope.file])

    def importing_files(self, scope: FileScope, name: str) -> tuple[FileScope, ...]:
        """Returns the files that import from the file of `scope` and contain `name`. Other files are not parsed."""
        if scope.file is None or len(self.paths) < 2:
            return ()
        key = scope.file, name
        if key not in self._importing_files:
            names = _names_of_file(scope, scope.file)
            self._importing_files[key] = tuple(self._find_importers(scope.file, scope, names, text=os.fsencode(name)))
        return self._scopes_of_files(self._importing_files[key])

    def may_use_dropout(self, scope: FileScope) -> bool:
        """Whether a file that may import from the file of `scope` contains a dropout layer."""
        if scope.file is None or len(self.paths) < 2:
            return True
        if scope.file not in self._may_use_dropout:
            words = {os.fsencode(n) for n in _names_of_file(scope, scope.file)}
            paths = self._files_importing_names(words, os.fsencode(scope.file.parent.name))
            self._may_use_dropout[scope.file] = any(
                m.has_dropout for p in paths if (m := self._mentioned_in(p)) is not None
            )
        return self._may_use_dropout[scope.file]

    def _find_importers(
        self,
        file: Path,
        scope: FileScope,
        names: Collection[str],
        is_wanted: Callable[[Mentions], bool] = lambda _: True,
        text: bytes = b"",
    ) -> Iterator[str]:
        """Yields the files that import from `file`, contain `text`, and that `is_wanted` accepts by their words.

        Args:
            file: the imported file.
            scope: the scope of the file.
            names: the names of the file that matter: of its classes, functions and the module.
            is_wanted: decides by the words of a file.
            text: what the bytes of a file must contain.
        """
        home, count = resolve_path(file), 0
        FILE_LOOKUPS.count += 1
        importers = self._possible_importers(file, home, frozenset(names))
        for path in importers.paths:
            mentioned = self._mentioned_in(path)
            if mentioned is None or not is_wanted(mentioned):
                continue
            if not importers.reaching.get(path, True) or text and text not in (_read_source(path) or b""):
                continue
            if not self._is_importer(path, home, importers, mentioned):
                continue
            if count >= _MAX_PARSED:
                self._unread.setdefault(home, path)
                return
            count += 1
            yield path

    def _possible_importers(self, file: Path, home: str, names: frozenset[str]) -> _Importers:
        """Returns the files whose words may import one of `names`. Several questions about a file share them."""
        key = file, names
        if key not in self._importers:
            words = self._with_other_names({os.fsencode(n) for n in names})
            paths = self._files_importing_names(words, os.fsencode(file.parent.name))
            named = frozenset(os.fsdecode(w) for w in words)
            self._importers[key] = _Importers(words, named, [p for p in paths if resolve_path(p) != home])
        return self._importers[key]

    def _is_importer(self, path: str, home: str, importers: _Importers, mentioned: Mentions) -> bool:
        if path not in importers.reaching:
            attributes = mentioned.attributes & importers.words
            importers.reaching[path] = self._may_reach(path, home, importers.names, attributes)
        return importers.reaching[path]

    def _may_reach(self, path: str, home: str, names: Collection[str], attributes: Collection[bytes]) -> bool:
        """Whether a file may import `names` of the file `home`, or reach them through another module.

        Args:
            path: the file that imports.
            home: the resolved path of the imported file.
            names: the names that `home`, or another file, gives to its classes.
            attributes: those that follow a dot in the file: `package.layers.Attention`.
        """
        other = self._scope_of_file(path)
        if other is None:
            return False
        if self._read_own_imports(path, other).may_import(home, names):
            return True
        if any(names_class_of(other, os.fsdecode(a), home) for a in attributes):
            return True
        local = (local for local, i in other.imports.items() for a in i.names if a.name in names and not i.level)
        return any(names_module(other, name, home) for name in local)

    def _with_other_names(self, names: set[bytes]) -> set[bytes]:
        """Returns the names, and all names that files give to them: `import Attention as A`, `B = A`."""
        if not self._other_names:
            for path in self._file_paths:
                for old, new in m.renames if (m := self._mentioned_in(path)) is not None else ():
                    self._other_names[old].add(new)
            self._other_names.setdefault(b"", set())
        found, todo = set(names), list(names)
        while todo and len(found) < _MAX_NAMES:
            others = self._other_names.get(todo.pop(), set()) - found
            found |= others
            todo += others
        return found

    def files_patching_torch(
        self, scope: FileScope, is_confirmed: Callable[[FileScope], bool]
    ) -> tuple[FileScope, ...]:
        """Returns the files that replace functions of torch. A replacement applies to the whole program.

        `is_confirmed` decides by the syntax tree of a file, after its words were found.
        """
        home = resolve_path(scope.file) if scope.file is not None else None
        paths = self._files_with("patches_torch")
        if "patches_torch" not in self._confirmed_files:
            self._confirmed_files["patches_torch"] = [
                p for p in paths if (s := self._scope_of_file(p)) is not None and is_confirmed(s)
            ]
        return self._scopes_of_files(p for p in self._confirmed_files["patches_torch"] if resolve_path(p) != home)

    def files_differentiating_twice(self, scope: FileScope) -> tuple[FileScope, ...]:
        """Returns the files that compute second derivatives, and import the file of `scope` directly or indirectly."""
        return self._find_indirect_importers(scope, "differentiates", lambda s: bool(s.index(find_derivatives)))

    def files_watching_operations(self, scope: FileScope) -> tuple[FileScope, ...]:
        """Returns the files that may observe operations, and import the file of `scope` directly or indirectly."""
        return self._find_indirect_importers(scope, "watches", lambda _: True)

    def files_inspecting_functions(self, scope: FileScope) -> tuple[FileScope, ...]:
        """Returns the files that inspect functions, and that import the file of `scope` or are imported by it."""
        paths = self._files_with("looks_inside")
        if scope.file is None or len(self.paths) < 2 or not paths:
            return ()
        if scope.file not in self._inspecting_imports:
            inspecting = self._by_resolved_path(paths)
            chain = (self._files_imported_by(p) for p in self._follow_imports(str(scope.file)))
            imported = set[str]().union(*(files.keys() & inspecting.keys() for files in chain))
            imported.discard(resolve_path(scope.file))
            self._inspecting_imports[scope.file] = tuple(inspecting[f] for f in sorted(imported))
        users = self._find_indirect_importers(scope, "looks_inside", lambda _: True)
        return (*users, *self._scopes_of_files(self._inspecting_imports[scope.file]))

    def files_choosing_kernels(self, scope: FileScope) -> tuple[FileScope, ...]:
        """Returns the files that may restrict the kernels of attention, and import the file of `scope`."""
        return self._find_indirect_importers(scope, "chooses_kernels", lambda _: True)

    def files_with_text(self, texts: Collection[str]) -> Iterator[FileScope]:
        """Yields the files whose bytes contain one of `texts`. Each is parsed when it is asked for."""
        wanted = [os.fsencode(t) for t in texts]
        for path in self.paths:
            source = _read_source(path)
            if source is not None and any(t in source for t in wanted) and (scope := self._scope_of_file(path)):
                yield scope

    def answer(self, question: object, find: Callable[[], _Answer]) -> _Answer:
        """Returns `find()`, which is called once for each `question` about the files of the command."""
        FILE_LOOKUPS.count += 1
        if question not in self._answers:
            self._answers[question] = find()
        known: _Answer = self._answers[question]
        return known

    @staticmethod
    def path_of(scope: FileScope) -> str:
        """The resolved path of a file; "" if it has none."""
        return resolve_path(scope.file) if scope.file is not None else ""

    def imports(self, user: FileScope, scope: FileScope) -> bool:
        """Whether the file of `user` directly imports the file of `scope`."""
        if user.file is None or scope.file is None:
            return False
        home = resolve_path(scope.file)
        return self._read_own_imports(str(user.file), user).may_import(home, scope.classes)

    def _find_indirect_importers(
        self, scope: FileScope, mention: str, is_confirmed: Callable[[FileScope], bool]
    ) -> tuple[FileScope, ...]:
        """Returns the files with `mention` that import the file of `scope` directly or indirectly.

        Args:
            scope: The imported file.
            mention: A field of `Mentioned`: words in the bytes of a file.
            is_confirmed: Decides by the syntax tree of a file, after its words were found.
        """
        if scope.file is None or len(self.paths) < 2:
            return ()
        key = scope.file, mention
        if key not in self._indirect_importers:
            home, classes = (
                resolve_path(scope.file),
                {os.fsdecode(n) for n in self._with_other_names({os.fsencode(n) for n in scope.classes})},
            )
            if mention not in self._confirmed_files:
                candidates = ((p, self._scope_of_file(p)) for p in self._files_with(mention))
                confirmed = (p for p, s in candidates if s is not None and is_confirmed(s))
                self._confirmed_files[mention] = list(islice(confirmed, _MAX_CONFIRMED + 1))
            if len(self._confirmed_files[mention]) > _MAX_CONFIRMED:
                self._unread.setdefault(home, self._confirmed_files[mention][_MAX_CONFIRMED])
            paths = self._confirmed_files[mention]
            self._indirect_importers[key] = tuple(
                p for p in paths if resolve_path(p) != home and self._read_all_imports(p).may_import(home, classes)
            )
        return self._scopes_of_files(self._indirect_importers[key])

    def _read_own_imports(self, path: str, scope: FileScope) -> ImportedFiles:
        """Returns the direct imports of a file."""
        if path not in self._own_imports:
            self._own_imports[path] = ImportedFiles(self._imports_of_scope(path, scope))
        return self._own_imports[path]

    def _read_all_imports(self, path: str) -> ImportedFiles:
        if path not in self._all_imports:
            self._all_imports[path] = ImportedFiles(
                [i for p in self._follow_imports(path) for i in self._imports_of_path(p)]
            )
        return self._all_imports[path]

    def _follow_imports(self, path: str) -> tuple[str, ...]:
        """Returns a file and the files of the command that it imports directly or indirectly, nearest first."""
        if path not in self._import_chains:
            paths_by_file = self._paths_by_file()
            todo, seen, chain = [path], {path}, list[str]()
            while todo and len(seen) < _MAX_IMPORTED:
                chain.append(current := todo.pop(0))
                new_paths = {p: None for f in self._files_imported_by(current) if (p := paths_by_file[f]) not in seen}
                seen |= new_paths.keys()
                todo += new_paths
            self._import_chains[path] = tuple(chain)
        return self._import_chains[path]

    def _files_imported_by(self, path: str) -> dict[str, None]:
        """Returns the files of the command that a file may import directly. The dict is used as an ordered set."""
        if path not in self._imported_files:
            paths_by_file = self._paths_by_file()
            self._imported_files[path] = {f: None for i in self._imports_of_path(path) for f in i.of(paths_by_file)}
        return self._imported_files[path]

    def _imports_of_path(self, path: str) -> tuple[ProjectImport, ...]:
        scope = self._scope_of_file(path)
        return self._imports_of_scope(path, scope) if scope is not None else ()

    def _paths_by_file(self) -> dict[str, str]:
        """Returns the files of the command by their resolved paths."""
        FILE_LOOKUPS.count += 1
        if not self._resolved_paths:
            self._resolved_paths = self._by_resolved_path(self._file_paths)
        return self._resolved_paths

    @staticmethod
    def _by_resolved_path(paths: Iterable[str]) -> dict[str, str]:
        return {resolve_path(p): p for p in paths}

    def _files_with(self, mention: str) -> tuple[str, ...]:
        """Returns the files that contain words of `mention`, a field of `Mentioned`."""
        FILE_LOOKUPS.count += 1
        if mention not in self._files_by_mention:
            mentions = ((p, self._mentioned_in(p)) for p in self._file_paths)
            self._files_by_mention[mention] = tuple(p for p, m in mentions if m is not None and getattr(m, mention))
        return self._files_by_mention[mention]

    def _files_importing_names(self, names: Collection[bytes], package: bytes) -> list[str]:
        """Returns, in order, the files that import one of `names`, or import `*` from `package`."""
        if not self._by_word:
            for i, path in enumerate(self._file_paths):
                if (m := self._mentioned_in(path)) is not None:
                    for word in m.words | m.attributes:
                        self._by_word[word].append(i)
                    for word in m.modules:
                        self._by_module[word].append(i)
        positions = {i for name in names for i in self._by_word.get(name, ())}
        return [self._file_paths[i] for i in sorted(positions.union(self._by_module.get(package, ())))]

    def _mentioned_in(self, path: str) -> Mentions | None:
        if path not in self._mentions:
            source = _read_source(path)
            self._mentions[path] = find_mentions(source) if source is not None else None
        return self._mentions[path]

    def _scopes_of_files(self, paths: Iterable[str]) -> tuple[FileScope, ...]:
        return tuple(s for p in paths if (s := self._scope_of_file(p)) is not None)

    def _scope_of_file(self, path: str) -> FileScope | None:
        if path not in self._scopes:
            try:
                self._scopes[path] = PARSED.scope(Path(path).read_bytes(), path)
            except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
                self._scopes[path] = None
        return self._scopes[path]

    def _imports_of_scope(self, path: str, scope: FileScope) -> tuple[ProjectImport, ...]:
        if path not in self._direct_imports:
            self._direct_imports[path] = tuple(find_imports(scope.tree, Path(path), partial(self._scope_of_file, path)))
        return self._direct_imports[path]


def _names_of_file(scope: FileScope, file: Path) -> frozenset[str]:
    """Returns the names that an import from a file can bring: its classes, its functions, and the module."""
    return frozenset((*scope.classes, *scope.functions, _module_name(file)))


def _module_name(file: Path) -> str:
    return file.stem if file.stem != "__init__" else file.parent.name


def _read_source(path: str) -> bytes | None:
    """Returns the bytes of a file; None if it cannot be read, is too large, or is no Python file."""
    try:
        if not path.endswith((".py", ".pyi")) or Path(path).stat().st_size > _MAX_BYTES:
            return None
        return Path(path).read_bytes()
    except OSError:
        return None
