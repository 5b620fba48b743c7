"""The files of a project as they were parsed: each once, for the one that is read and for all that ask for it.

A file goes by many names (`models/llama/../../activations.py`), and has one tree under all of them. What is kept is
bounded by the bytes of the texts, and is forgotten as a whole, between two files. Knows texts and paths.
"""

from __future__ import annotations

import ast
import gc
import os
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from autofuse.source.capture.scope import FileScope, file_scope
from autofuse.source.capture.syntax import roll_up

_MOST_BYTES = 32 << 20  # of the texts whose trees are kept; a tree takes about thirty times as much

_LEAST_BYTES = 4 << 20  # of those that each of many processes keeps


@dataclass(eq=False)
class _Parsed:
    """One file: its text, its tree, and its scope as each of its names has it."""

    text: bytes
    tree: ast.Module
    scopes: dict[str, FileScope] = field(default_factory=dict)


@dataclass
class ParsedFiles:
    """Files by the paths that they really have."""

    most: int = _MOST_BYTES
    _size: int = 0
    _files: dict[str, _Parsed] = field(default_factory=dict)
    _places: dict[str, bool] = field(default_factory=dict)

    def is_file(self, path: str) -> bool:
        """Whether there is a file at `path`: many ask for the same one."""
        if path not in self._places:
            self._places[path] = os.path.isfile(path)
        return self._places[path]

    def share(self, processes: int) -> None:
        """Keeps the part of one process, of several that read files at once."""
        self.most = max(_MOST_BYTES // processes, _LEAST_BYTES)

    def look_again(self) -> None:
        """Forgets which files there are."""
        self._places.clear()

    def tree(self, text: bytes, path: str) -> ast.Module:
        """The tree of the file at `path`, which holds `text`. Raises what parsing raises."""
        return self._parsed(text, path).tree

    def scope(self, text: bytes, path: str) -> FileScope:
        """The scope of the file at `path`, which holds `text`. Raises what parsing raises."""
        parsed = self._parsed(text, path)
        if path not in parsed.scopes:
            first = next(iter(parsed.scopes.values()), None)
            parsed.scopes[path] = (
                file_scope(parsed.tree, Path(path)) if first is None else replace(first, file=Path(path), elsewhere={})
            )
        return parsed.scopes[path]

    def make_room(self) -> bool:
        """Forgets everything if it is too much, and says whether. Nobody may hold a scope then, or part of one."""
        full = self._size > self.most
        if full:
            self.forget()
            gc.collect()  # scopes of files that import each other hold each other
        return full

    def forget(self) -> None:
        """Forgets everything: files may have changed."""
        for parsed in self._files.values():
            roll_up(parsed.tree)
        self._files.clear()
        self._size = 0

    def _parsed(self, text: bytes, path: str) -> _Parsed:
        home = real_path(os.path.abspath(path))
        known = self._files.get(home)
        if known is None or known.text != text:
            before = 0 if known is None else len(known.text)
            known = self._files[home] = _Parsed(text, ast.parse(text))
            self._size += len(text) - before
        return known


@lru_cache(maxsize=1 << 14)
def real_path(path: str) -> str:
    """Where a file really stands, by an absolute path."""
    return os.path.realpath(path)


PARSED = ParsedFiles()
