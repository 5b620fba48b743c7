"""The other files of a project, as far as one command was given them: which of them may concern a class of one file.

Files are searched as bytes first, and parsed where they mention what is asked for. What is found is kept for as long
as the command runs. Knows files and names; what they do to a class is the business of changes.py and families.py.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from autofuse.source.capture.looked_at import LOOKED_AT
from autofuse.source.capture.parsed_files import PARSED
from autofuse.source.capture.scope import FileScope
from autofuse.source.evidence.mentions import Mentioned, mentioned
from autofuse.source.evidence.project_imports import Import, Reached, imports_of, resolved
from autofuse.source.evidence.taken_derivatives import derivatives

_LARGEST = 1 << 20  # bytes; larger files are generated
_MOST = 64  # files that are parsed for the sake of one
_MOST_HANDING_ON = 16  # files between one and those that use what it gives
_MOST_REACHED = 128  # files that are parsed to see what one imports


@dataclass
class ProjectFiles:
    """The files that a command was given. Reads each once."""

    given: tuple[str, ...]
    _texts: dict[str, Mentioned | None] = field(default_factory=dict)
    _scopes: dict[str, FileScope | None] = field(default_factory=dict)
    _imported: dict[str, tuple[Import, ...]] = field(default_factory=dict)
    _reaches: dict[str, tuple[Import, ...]] = field(default_factory=dict)
    _renewing: dict[Path, tuple[str, ...]] = field(default_factory=dict)
    _asking: dict[Path, tuple[str, ...]] = field(default_factory=dict)
    _using: dict[Path, tuple[str, ...]] = field(default_factory=dict)
    _found: dict[Path, tuple[str, ...]] = field(default_factory=dict)
    _having: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _by_word: defaultdict[bytes, list[int]] = field(default_factory=lambda: defaultdict(list))
    _by_module: defaultdict[bytes, list[int]] = field(default_factory=lambda: defaultdict(list))
    _sure: dict[str, list[str]] = field(default_factory=dict)
    _arriving: dict[tuple[Path, str], tuple[str, ...]] = field(default_factory=dict)
    _reached_at: dict[str, Reached] = field(default_factory=dict)
    _looking: dict[Path, tuple[str, ...]] = field(default_factory=dict)
    _own_imports: dict[str, Reached] = field(default_factory=dict)
    _giving: dict[Path, bool] = field(default_factory=dict)
    _homes: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        PARSED.look_again()
        PARSED.forget()  # as of now, what files say is what they said when they were first read

    def make_room(self) -> None:
        """Forgets the trees of files where they are too many. Only between two files."""
        if PARSED.make_room():
            self._scopes.clear()  # all else that is kept are paths

    def look_over(self) -> None:
        """Searches the bytes of all files, before the work is shared between processes."""
        for path in self.given:
            self._mentioned(path)

    @property
    def paths(self) -> tuple[str, ...]:
        """The files. Who looks at them asks something of other files, though there be none."""
        LOOKED_AT.questions += 1
        return self.given

    def concerning(self, scope: FileScope) -> tuple[FileScope, ...]:
        """Other files that import from the file of `scope`, and inherit from classes or change attributes."""
        if scope.file is None or len(self.paths) < 2:
            return ()
        if scope.file not in self._found:
            self._found[scope.file] = tuple(self._importing(scope, scope.file, lambda m: m.concerns_others))
        return self._scopes_of(self._found[scope.file])

    def renewing(self, scope: FileScope) -> tuple[FileScope, ...]:
        """Files that may replace children of any module, `replace(model, old, new)`, and whose users import `scope`."""
        if scope.file is None or len(self.paths) < 2:
            return ()
        if scope.file not in self._renewing:
            home = resolved(scope.file)
            given = self._by_home(self._mentioning("renews"))
            found: dict[str, None] = {}
            for path in self._importing(scope, scope.file, lambda _: True) if given else ():
                user = self._scope(path)
                if user is None or Path(path).name == "__init__.py":
                    continue  # a package imports everything, and uses nothing
                files = (f for i in self._imports(path, user) for f in i.of(given))
                found |= {given[f]: None for f in files if f != home}
            self._renewing[scope.file] = tuple(found)
        return self._scopes_of(self._renewing[scope.file])

    def asking_layouts(self, scope: FileScope) -> tuple[FileScope, ...]:
        """Other files that import from the file of `scope`, and those that import from them; none if no layout is read.

        What lies in a file of its own is returned by a class of the second, and its layout read in the third.
        """
        if scope.file is None or len(self.paths) < 2:
            return ()
        if scope.file not in self._asking:
            first = [*self._importing(scope, scope.file, lambda _: True)]
            found = dict.fromkeys(first)
            for path in first[:_MOST_HANDING_ON]:
                if (user := self._scope(path)) is not None and user.file is not None:
                    found |= dict.fromkeys(self._importing(user, user.file, lambda m: m.asks_layouts))
            asked = any((m := self._mentioned(p)) is not None and m.asks_layouts for p in found)
            others = (p for p in found if resolved(p) != resolved(scope.file))
            self._asking[scope.file] = tuple(others) if asked else ()
        return self._scopes_of(self._asking[scope.file])

    def using(self, scope: FileScope) -> tuple[FileScope, ...]:
        """Other files that import from the file of `scope`."""
        if scope.file is None or len(self.paths) < 2:
            return ()
        if scope.file not in self._using:
            self._using[scope.file] = tuple(self._importing(scope, scope.file, lambda _: True))
        return self._scopes_of(self._using[scope.file])

    def may_give_dropout(self, scope: FileScope) -> bool:
        """Whether a file that may import from that of `scope` has dropout layers at all."""
        if scope.file is None or len(self.paths) < 2:
            return True
        if scope.file not in self._giving:
            paths = self._naming(*_names_of(scope, scope.file))
            self._giving[scope.file] = any(m.has_dropout for p in paths if (m := self._mentioned(p)) is not None)
        return self._giving[scope.file]

    def _importing(self, scope: FileScope, file: Path, wanted: Callable[[Mentioned], bool]) -> Iterator[str]:
        """The files that import from `file`, of those whose bytes are `wanted`."""
        home, found = resolved(file), 0
        LOOKED_AT.questions += 1
        for path in self._naming(*_names_of(scope, file)):
            mentioned = self._mentioned(path)
            if found >= _MOST or mentioned is None or not wanted(mentioned):
                continue
            other = self._scope(path)
            if other is None or not self._bringing(path, other).brings(home, scope.classes):
                continue
            if resolved(path) != home:
                found += 1
                yield path

    def patching(self, scope: FileScope, sure: Callable[[FileScope], bool]) -> tuple[FileScope, ...]:
        """Other files that replace functions of torch's, which are one for the whole program; `sure`: by their tree."""
        here = resolved(scope.file) if scope.file is not None else None
        paths = self._mentioning("patches_torch")
        if "patches_torch" not in self._sure:
            self._sure["patches_torch"] = [p for p in paths if (s := self._scope(p)) is not None and sure(s)]
        return self._scopes_of(p for p in self._sure["patches_torch"] if resolved(p) != here)

    def differentiating(self, scope: FileScope) -> tuple[FileScope, ...]:
        """Other files that take derivatives of derivatives, and import the file of `scope`, by way of others too."""
        return self._reaching(scope, "differentiates", lambda s: bool(s.index(derivatives)))

    def watching(self, scope: FileScope) -> tuple[FileScope, ...]:
        """Other files that may ask which operations run, and import the file of `scope`, by way of others too."""
        return self._reaching(scope, "watches", lambda _: True)

    def looking_inside(self, scope: FileScope) -> tuple[FileScope, ...]:
        """Other files that look into functions, and that import the file of `scope`, or are imported by it."""
        paths = self._mentioning("looks_inside")
        if scope.file is None or len(self.paths) < 2 or not paths:
            return ()
        if scope.file not in self._looking:
            reading = self._by_home(paths)
            used = {f for i in self._reached(str(scope.file)) for f in i.of(reading)} - {resolved(scope.file)}
            self._looking[scope.file] = tuple(reading[f] for f in sorted(used))
        users = self._reaching(scope, "looks_inside", lambda _: True)
        return (*users, *self._scopes_of(self._looking[scope.file]))

    def choosing_kernels(self, scope: FileScope) -> tuple[FileScope, ...]:
        """Other files that may restrict the kernels of attention, and import the file of `scope`."""
        return self._reaching(scope, "chooses_kernels", lambda _: True)

    def imports(self, user: FileScope, scope: FileScope) -> bool:
        """Whether the file of `user` imports that of `scope` itself."""
        if user.file is None or scope.file is None:
            return False
        home = resolved(scope.file)
        return self._bringing(str(user.file), user).brings(home, scope.classes)

    def _reaching(self, scope: FileScope, mention: str, sure: Callable[[FileScope], bool]) -> tuple[FileScope, ...]:
        """The files that import that of `scope`, by way of others too, of those whose bytes and whose tree say so."""
        if scope.file is None or len(self.paths) < 2:
            return ()
        key = scope.file, mention
        if key not in self._arriving:
            home, classes = resolved(scope.file), scope.classes
            if mention not in self._sure:
                known = ((p, self._scope(p)) for p in self._mentioning(mention))
                self._sure[mention] = [p for p, s in known if s is not None and sure(s)][:_MOST]
            paths = self._sure[mention]
            self._arriving[key] = tuple(
                p for p in paths if resolved(p) != home and self._reach(p).brings(home, classes)
            )
        return self._scopes_of(self._arriving[key])

    def _bringing(self, path: str, scope: FileScope) -> Reached:
        """What a file imports by itself."""
        if path not in self._own_imports:
            self._own_imports[path] = Reached(self._imports(path, scope))
        return self._own_imports[path]

    def _reach(self, path: str) -> Reached:
        if path not in self._reached_at:
            self._reached_at[path] = Reached(self._reached(path))
        return self._reached_at[path]

    def _reached(self, path: str) -> tuple[Import, ...]:
        """What a file imports, and what the files that it imports do, as far as they were given."""
        if path not in self._reaches:
            given = self._homes_of_given()
            todo, seen, found = [path], {path}, list[Import]()
            while todo and len(seen) < _MOST_REACHED:
                at = todo.pop(0)
                scope = self._scope(at)
                imports = self._imports(at, scope) if scope is not None else ()
                found += imports
                new = {given[f]: None for i in imports for f in i.of(given) if given[f] not in seen}
                seen |= new.keys()
                todo += new
            self._reaches[path] = tuple(found)
        return self._reaches[path]

    def _homes_of_given(self) -> dict[str, str]:
        """The given files by the paths that they really have."""
        LOOKED_AT.questions += 1
        if not self._homes:
            self._homes = self._by_home(self.given)
        return self._homes

    @staticmethod
    def _by_home(paths: Iterable[str]) -> dict[str, str]:
        return {resolved(p): p for p in paths}

    def _mentioning(self, mention: str) -> tuple[str, ...]:
        """The files of whose bytes `mention` holds, a field of `Mentioned`."""
        LOOKED_AT.questions += 1
        if mention not in self._having:
            known = ((p, self._mentioned(p)) for p in self.given)
            self._having[mention] = tuple(p for p, m in known if m is not None and getattr(m, mention))
        return self._having[mention]

    def _naming(self, names: Collection[bytes], package: bytes) -> list[str]:
        """The files whose imports have one of `names`, or that import all of a package, in their order."""
        if not self._by_word:
            for i, path in enumerate(self.given):
                if (m := self._mentioned(path)) is not None:
                    for word in m.words:
                        self._by_word[word].append(i)
                    for word in m.modules:
                        self._by_module[word].append(i)
        found = {i for name in names for i in self._by_word.get(name, ())}
        return [self.given[i] for i in sorted(found.union(self._by_module.get(package, ())))]

    def _mentioned(self, path: str) -> Mentioned | None:
        if path not in self._texts:
            source = _source(path)
            self._texts[path] = mentioned(source) if source is not None else None
        return self._texts[path]

    def _scopes_of(self, paths: Iterable[str]) -> tuple[FileScope, ...]:
        return tuple(s for p in paths if (s := self._scope(p)) is not None)

    def _scope(self, path: str) -> FileScope | None:
        if path not in self._scopes:
            try:
                self._scopes[path] = PARSED.scope(Path(path).read_bytes(), path)
            except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
                self._scopes[path] = None
        return self._scopes[path]

    def _imports(self, path: str, scope: FileScope) -> tuple[Import, ...]:
        if path not in self._imported:
            self._imported[path] = tuple(imports_of(scope.tree, Path(path), partial(self._scope, path)))
        return self._imported[path]


def _names_of(scope: FileScope, file: Path) -> tuple[set[bytes], bytes]:
    """The words of an import that brings something of a file, and those of one that brings all of its package."""
    names = {os.fsencode(n) for n in (*scope.classes, *scope.functions)}
    names.add(os.fsencode(file.stem if file.stem != "__init__" else file.parent.name))
    return names, os.fsencode(file.parent.name)


def _source(path: str) -> bytes | None:
    """A file's bytes; None where it cannot be read, or is no Python."""
    try:
        if not path.endswith((".py", ".pyi")) or Path(path).stat().st_size > _LARGEST:
            return None
        return Path(path).read_bytes()
    except OSError:
        return None
