"""The other files of a project, as far as one command was given them: which of them may concern a class of one file.

Files are searched as bytes first, and parsed where they mention what is asked for. What is found is kept for as long
as the command runs. Knows files and names; what they do to a class is the business of changes.py and families.py.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path

from autofuse.source.capture.looked_at import LOOKED_AT
from autofuse.source.capture.project_files import LIBRARIES, own_class, starts_of
from autofuse.source.capture.scope import FileScope, file_scope
from autofuse.source.capture.syntax import walk
from autofuse.source.evidence.taken_derivatives import derivatives

_LARGEST = 1 << 20  # bytes; larger files are generated
_MOST = 64  # files that are parsed for the sake of one
_MOST_HANDING_ON = 16  # files between one and those that use what it gives
_MOST_REACHED = 128  # files that are parsed to see what one imports
_CHANGES = re.compile(
    rb"(?<!self)\.(\w+)\s*(?:\[[^\]\n]*\])?\s*(?:,[^=\n]*)?=(?!=)|(setattr|_modules|_hook|patch|__dict__|set_submodule)\b"
)


@dataclass
class ProjectFiles:
    """The files that a command was given. Reads each once."""

    given: tuple[str, ...]
    _texts: dict[str, _Mentioned | None] = field(default_factory=dict)
    _scopes: dict[str, FileScope | None] = field(default_factory=dict)
    _imported: dict[str, tuple[_Import, ...]] = field(default_factory=dict)
    _reaches: dict[str, tuple[_Import, ...]] = field(default_factory=dict)
    _renewing: dict[Path, tuple[FileScope, ...]] = field(default_factory=dict)
    _asking: dict[Path, tuple[FileScope, ...]] = field(default_factory=dict)
    _found: dict[Path, tuple[FileScope, ...]] = field(default_factory=dict)

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
            paths = self._importing(scope, scope.file, lambda m: m.concerns_others)
            self._found[scope.file] = tuple(s for p in paths if (s := self._scope(p)) is not None)
        return self._found[scope.file]

    def renewing(self, scope: FileScope) -> tuple[FileScope, ...]:
        """Files that may replace children of any module, `replace(model, old, new)`, and whose users import `scope`."""
        if scope.file is None or len(self.paths) < 2:
            return ()
        if scope.file not in self._renewing:
            home = _resolved(scope.file)
            given = {_resolved(p): p for p in self.paths if (m := self._mentioned(p)) is not None and m.renews}
            found: dict[str, None] = {}
            for path in self._importing(scope, scope.file, lambda _: True) if given else ():
                user = self._scope(path)
                if user is None or Path(path).name == "__init__.py":
                    continue  # a package imports everything, and uses nothing
                files = (f for i in self._imports(path, user) for f in i.of(given))
                found |= {given[f]: None for f in files if f != home}
            self._renewing[scope.file] = tuple(s for p in found if (s := self._scope(p)) is not None)
        return self._renewing[scope.file]

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
            scopes = (self._scope(p) for p in found if _resolved(p) != _resolved(scope.file))
            self._asking[scope.file] = tuple(s for s in scopes if s is not None) if asked else ()
        return self._asking[scope.file]

    def _importing(self, scope: FileScope, file: Path, wanted: Callable[[_Mentioned], bool]) -> Iterator[str]:
        """The files that import from `file`, of those whose bytes are `wanted`."""
        names = {os.fsencode(n) for n in (*scope.classes, *scope.functions)}
        names.add(os.fsencode(file.stem if file.stem != "__init__" else file.parent.name))
        home, package, found = _resolved(file), os.fsencode(file.parent.name), 0
        for path in self.paths:
            mentioned = self._mentioned(path)
            if found >= _MOST or mentioned is None or not wanted(mentioned) or not mentioned.imports(names, package):
                continue
            other = self._scope(path)
            if other is None or not any(i.brings(home, scope.classes) for i in self._imports(path, other)):
                continue
            if _resolved(path) != home:
                found += 1
                yield path

    def patching(self, scope: FileScope) -> tuple[FileScope, ...]:
        """Other files that replace functions of torch's, which are one for the whole program."""
        here = _resolved(scope.file) if scope.file is not None else None
        paths = [p for p in self.paths if (m := self._mentioned(p)) is not None and m.patches_torch]
        return tuple(s for p in paths if _resolved(p) != here and (s := self._scope(p)) is not None)

    def differentiating(self, scope: FileScope) -> tuple[FileScope, ...]:
        """Other files that take derivatives of derivatives, and import the file of `scope`, by way of others too."""
        return self._reaching(scope, lambda m: m.differentiates, lambda s: bool(s.index(derivatives)))

    def watching(self, scope: FileScope) -> tuple[FileScope, ...]:
        """Other files that may ask which operations run, and import the file of `scope`, by way of others too."""
        return self._reaching(scope, lambda m: m.watches, lambda _: True)

    def looking_inside(self, scope: FileScope) -> tuple[FileScope, ...]:
        """Other files that look into functions, and that import the file of `scope`, or are imported by it."""
        if scope.file is None or len(self.paths) < 2:
            return ()
        home, given = _resolved(scope.file), {_resolved(p): p for p in self.paths}
        reading = {f for f, p in given.items() if (m := self._mentioned(p)) is not None and m.looks_inside}
        used = {f for i in self._reached(str(scope.file)) for f in i.of(reading)} if reading else set[str]()
        users = self._reaching(scope, lambda m: m.looks_inside, lambda _: True) if reading else ()
        return (*users, *(s for f in sorted(used - {home}) if (s := self._scope(given[f])) is not None))

    def choosing_kernels(self, scope: FileScope) -> tuple[FileScope, ...]:
        """Other files that may restrict the kernels of attention, and import the file of `scope`."""
        return self._reaching(scope, lambda m: m.chooses_kernels, lambda _: True)

    def imports(self, user: FileScope, scope: FileScope) -> bool:
        """Whether the file of `user` imports that of `scope` itself."""
        if user.file is None or scope.file is None:
            return False
        home = _resolved(scope.file)
        return any(i.brings(home, scope.classes) for i in self._imports(str(user.file), user))

    def _reaching(
        self, scope: FileScope, wanted: Callable[[_Mentioned], bool], sure: Callable[[FileScope], bool]
    ) -> tuple[FileScope, ...]:
        """The files that import that of `scope`, by way of others too, of those whose bytes and whose tree say so."""
        if scope.file is None or len(self.paths) < 2:
            return ()
        home, classes = _resolved(scope.file), scope.classes
        paths = [p for p in self.paths if (m := self._mentioned(p)) is not None and wanted(m)]
        paths = [p for p in paths if (s := self._scope(p)) is not None and sure(s)][:_MOST]
        there = [p for p in paths if _resolved(p) != home and any(i.brings(home, classes) for i in self._reached(p))]
        return tuple(s for p in there if (s := self._scope(p)) is not None)

    def _reached(self, path: str) -> tuple[_Import, ...]:
        """What a file imports, and what the files that it imports do, as far as they were given."""
        if path not in self._reaches:
            given = {_resolved(p): p for p in self.paths}
            todo, seen, found = [path], {path}, list[_Import]()
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

    def _imports(self, path: str, scope: FileScope) -> tuple[_Import, ...]:
        if path not in self._imported:
            self._imported[path] = tuple(_imports(scope, Path(path)))
        return self._imported[path]


def _resolved(path: str | Path) -> str:
    return _real(os.path.abspath(path))


@lru_cache(maxsize=1 << 14)
def _real(path: str) -> str:
    return os.path.realpath(path)


@dataclass(frozen=True)
class _Import:
    """One name that a file imports. `bases`: what a module may stand at, without `.py` and `/__init__.py`.

    scope: of the file that imports. name: what the file calls it, "" for a whole module. original: its name where it
    is defined.
    """

    scope: FileScope
    bases: tuple[str, ...]
    name: str
    original: str

    def brings(self, home: str, classes: Collection[str]) -> bool:
        """Whether it imports the file `home`, one of the `classes` that are defined there, or all of its package."""
        if any(home in files for files in self._files()):
            return True
        if self.name in ("", "*"):
            return any(home.startswith(base + os.sep) for base in self.bases)
        return self.original in classes and self.defined == home

    def of(self, given: Collection[str]) -> Iterator[str]:
        """The files among those `given` that it may mean."""
        for files in self._files():
            yield from (f for f in files if f in given)
        if self.name and self.defined in given:
            yield self.defined

    @cached_property
    def defined(self) -> str:
        """The file of the class that it names; "" where it names none that can be found."""
        found = own_class(self.scope, ast.Name(self.name))
        return _resolved(found[1].file) if found is not None and found[1].file is not None else ""

    def _files(self) -> Iterator[tuple[str, str]]:
        return ((f"{base}.py", os.path.join(base, "__init__.py")) for base in self.bases)


def _imports(scope: FileScope, file: Path) -> Iterator[_Import]:
    folder = Path(_resolved(file)).parent
    for node in walk(scope.tree):
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
                yield _Import(scope, tuple(bases), local, name)


@dataclass(frozen=True)
class _Mentioned:
    """What the bytes of a file say: the words of its imports, and whether it inherits or changes attributes."""

    words: frozenset[bytes]
    modules: frozenset[bytes]  # of those that are imported whole
    concerns_others: bool
    patches_torch: bool
    differentiates: bool
    asks_layouts: bool
    renews: bool
    watches: bool
    looks_inside: bool
    chooses_kernels: bool

    def imports(self, names: Collection[bytes], package: bytes) -> bool:
        """Whether it may import one of `names`, or all of the package."""
        return package in self.modules or not self.words.isdisjoint(names)


_PATCHES = re.compile(
    rb"(?:\bF|\btorch|functional|\bTensor|nn\.\w+)\.\w+\s*=(?!=)|(?:setattr|patch(?:\.object)?)\(\s*[\"']?(?:F|torch)\b"
)
_SETS = re.compile(rb"\b(?:setattr|set_submodule|_modules)\b")
_WALKS = re.compile(rb"\b(?:named_children|named_modules|get_submodule|children|modules)\b")
_ASKS = re.compile(
    rb"\.(?:view|view_as|stride|strides|is_contiguous|as_strided|data_ptr|storage|untyped_storage|storage_offset)\b"
)
_DIFFERENTIATES = re.compile(
    rb"\b(?:create_graph|hessian|hvp|vhp|jvp|jacfwd|linearize|make_dual|gradgradcheck|autograd\.grad|torch\.func|functorch)"
)
_WATCHES = re.compile(
    rb"\b(?:FlopCounterMode|Torch(?:Dispatch|Function)Mode|__torch_(?:function|dispatch)__|torch\.fx|import fx|"
    rb"create_selective_checkpoint_contexts|CheckpointPolicy|key_averages|saved_tensors_hooks)\b"
)
_LOOKS_INSIDE = re.compile(
    rb"\b(?:f_locals|getargvalues|getinnerframes|getouterframes|capture_locals|show_locals|getsource\w*|co_\w+|linecache|"
    rb"__file__|dis|getclosurevars)\b"
)
_KERNELS = re.compile(rb"\b(?:sdpa?_kernel|enable_math_sdp|_set_sdp_use_math)\b")
_PATTERNS = (_PATCHES, _DIFFERENTIATES, _ASKS, _SETS, _WALKS, _WATCHES, _LOOKS_INSIDE, _KERNELS)
_IMPORTS = re.compile(rb"^[ \t]*(import|from)\b((?:[^\n(]*\([^)]*\))|[^\n]*)", re.MULTILINE)
_INHERITS = re.compile(rb"^[ \t]*class\s+\w+\s*\(", re.MULTILINE)
_WORD = re.compile(rb"\w+")


def _mentioned(path: str) -> _Mentioned | None:
    """The words of a file; None where it cannot be read, or is no Python."""
    try:
        if not path.endswith((".py", ".pyi")) or Path(path).stat().st_size > _LARGEST:
            return None
        source = Path(path).read_bytes()
    except OSError:
        return None
    imports = _IMPORTS.findall(source)
    words = frozenset(w for _, text in imports for w in _WORD.findall(text))
    modules = frozenset(w for kind, text in imports if kind == b"import" for w in _WORD.findall(text))
    others = _INHERITS.search(source) is not None or _CHANGES.search(source) is not None
    patches, differentiates, asks, sets, looks, watches, inside, kernels = (
        p.search(source) is not None for p in _PATTERNS
    )
    return _Mentioned(words, modules, others, patches, differentiates, asks, sets and looks, watches, inside, kernels)
