"""Rewrites a repository as its maintainer would: one command for its files."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tools.gallery.repository import Repository, Unavailable, last_line


@dataclass(frozen=True)
class Edit:
    """One finding: its rule, status and place, and the reason why no more is done."""

    code: str
    status: str
    file: str
    line: int
    symbol: str
    reason: str


@dataclass(frozen=True)
class Rewritten:
    """The findings, and the numbers of removed and added lines."""

    edits: tuple[Edit, ...]
    removed: int
    added: int
    unsafe: bool

    def by(self, status: str) -> Counter[str]:
        return Counter(e.code for e in self.edits if e.status == status)

    def missed(self, places: Iterable[str]) -> list[str]:
        """The places (FILE:SYMBOL) without a proposed edit, among those where a person would fuse something."""
        found = {f"{e.file}:{e.symbol}" for e in self.edits if e.status in ("safe", "unsafe")}
        return [place for place in places if place not in found]


def symbols_of(file: Path) -> set[str]:
    """Return the qualified name of every function and class of a file."""
    found: set[str] = set()

    def walk(node: ast.AST, names: tuple[str, ...]) -> None:
        for child in ast.iter_child_nodes(node):
            named = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
            inner = (*names, child.name) if named else names  # type: ignore[attr-defined]
            found.add(".".join(inner))
            walk(child, inner)

    walk(ast.parse(file.read_text()), ())
    return found


def rewrite_repository(repository: Repository, tree: Path) -> Rewritten:
    """Rewrite the files in place, with safe edits, or with unsafe edits if none is safe. Raises Unavailable."""
    before = {path: path.read_text() for name in repository.rewrite for path in _files(tree / name)}
    edits = tuple(_check(repository, tree))
    unsafe = not any(e.status == "safe" for e in edits)
    done = _autofuse("rewrite", *(["--unsafe"] if unsafe else []), *repository.rewrite, at=tree)
    if done.returncode not in (0, 1):
        raise Unavailable(f"{repository.name} was not rewritten: {last_line(done.stderr)}")
    changed = {path: (text.splitlines(), path.read_text().splitlines()) for path, text in before.items()}
    removed = sum((Counter(a) - Counter(b)).total() for a, b in changed.values())
    added = sum((Counter(b) - Counter(a)).total() for a, b in changed.values())
    return Rewritten(edits, removed, added, unsafe)


def _check(repository: Repository, tree: Path) -> list[Edit]:
    done = _autofuse("check", "--declined", "--format", "json", *repository.rewrite, at=tree)
    try:
        return [_edit(row, tree) for row in json.loads(done.stdout)["findings"]]
    except ValueError as error:
        raise Unavailable(f"{repository.name} could not be read: {last_line(done.stderr)}") from error


def _edit(row: dict[str, object], tree: Path) -> Edit:
    file = Path(str(row["path"]))
    where = file.relative_to(tree) if file.is_absolute() else file
    return Edit(
        str(row["code"]), str(row["status"]), str(where), int(str(row["line"])), str(row["symbol"]), str(row["reason"])
    )  # fmt: skip


def _files(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(path.rglob("*.py"))


def _autofuse(*arguments: str, at: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "autofuse", *arguments], cwd=at, capture_output=True, text=True)
