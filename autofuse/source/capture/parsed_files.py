"""Keeps the syntax trees and scopes of parsed files, so that each file of a run is parsed once.

One file can have several paths, such as `models/llama/../../activations.py`. All of its paths share one tree. The total
size of the texts is limited. When it exceeds the limit, everything is dropped between the checks of two files.
"""

from __future__ import annotations

import ast
import gc
import os
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from autofuse.source.capture.scope import FileScope, file_scope
from autofuse.source.capture.syntax import drop_cached_walks

_MOST_BYTES = 32 << 20  # of text; a tree takes about thirty times as much memory as its text

_KEPT_PART = 4  # at most this part of the limit, 1/4, is kept when trees are dropped
_LEAST_BYTES = 4 << 20  # of text for each process, if many processes share the limit


@dataclass(eq=False)
class _Parsed:
    """One file: its text, its tree, and a scope for each of its paths."""

    text: bytes
    tree: ast.Module
    scopes: dict[str, FileScope] = field(default_factory=dict)

    def forget_others(self) -> None:
        """Drop what the scopes know about other files."""
        for scope in self.scopes.values():
            scope.forget_others()


@dataclass
class ParsedFiles:
    """The parsed files of this process, by their real paths.

    Attributes:
        most: The limit for the size of the texts, in bytes.
        classes_of_names: (path of a file, name in it) -> what evidence/class_names.py found. It is small, and is kept
            when trees are dropped.
    """

    most: int = _MOST_BYTES
    classes_of_names: dict[tuple[str, str], frozenset[Any]] = field(default_factory=dict)
    _size: int = 0
    _files: dict[str, _Parsed] = field(default_factory=dict)
    _existence: dict[str, bool] = field(default_factory=dict)

    def is_file(self, path: str) -> bool:
        """Whether there is a file at `path`. The answer is kept, because many imports ask for the same path."""
        if path not in self._existence:
            self._existence[path] = os.path.isfile(path)
        return self._existence[path]

    def divide_limit(self, processes: int) -> None:
        """Divide the limit among several processes that parse files at the same time."""
        self.most = max(_MOST_BYTES // processes, _LEAST_BYTES)

    def forget_existence(self) -> None:
        """Forget which files exist."""
        self._existence.clear()

    def tree(self, text: bytes, path: str) -> ast.Module:
        """Return the syntax tree of the file at `path` with the content `text`. Raises the errors of `ast.parse`."""
        return self._parse(text, path).tree

    def scope(self, text: bytes, path: str) -> FileScope:
        """Return the scope of the file at `path` with the content `text`. Raises the errors of `ast.parse`."""
        parsed = self._parse(text, path)
        if path not in parsed.scopes:
            first = next(iter(parsed.scopes.values()), None)
            parsed.scopes[path] = (
                file_scope(parsed.tree, Path(path))
                if first is None
                else replace(first, file=Path(path), imported_classes={})
            )
        return parsed.scopes[path]

    @property
    def is_full(self) -> bool:
        """Whether the texts exceed the limit."""
        return self._size > self.most

    def drop(self, keep: Iterable[str] = ()) -> None:
        """Drop everything but some files, and free the memory.

        Callers must hold no scope, tree or node of another file at this time: the collector would visit each of them
        for nothing.

        Args:
            keep: The paths of files that are needed again. They are kept if they leave room for others.
        """
        kept = {real: self._files[real] for p in keep if (real := real_path(os.path.abspath(p))) in self._files}
        size = sum(len(parsed.text) for parsed in kept.values())
        if size > self.most // _KEPT_PART:
            kept, size = {}, 0
        for real in kept:
            self._files.pop(real).forget_others()
        self._forget_trees()
        self._files, self._size = kept, size
        gc.collect()  # scopes of files that import each other form reference cycles

    def forget(self) -> None:
        """Drop everything. Call this when files may have changed."""
        self.classes_of_names.clear()
        self._forget_trees()

    def _forget_trees(self) -> None:
        for parsed in self._files.values():
            drop_cached_walks(parsed.tree)
        self._files.clear()
        self._size = 0

    def _parse(self, text: bytes, path: str) -> _Parsed:
        real = real_path(os.path.abspath(path))
        known = self._files.get(real)
        if known is None or known.text != text:
            before = 0 if known is None else len(known.text)
            known = self._files[real] = _Parsed(text, ast.parse(text))
            self._size += len(text) - before
        return known


@lru_cache(maxsize=1 << 14)
def real_path(path: str) -> str:
    """Return an absolute path without links."""
    return os.path.realpath(path)


PARSED = ParsedFiles()
