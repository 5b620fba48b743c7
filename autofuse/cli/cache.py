"""`autofuse cache`: shows, lists or clears the cache of kernel decisions and findings. Works without torch."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from autofuse.display import terminal
from autofuse.kernels import cache
from autofuse.results.cache_folder import folder
from autofuse.results.comparison import milliseconds
from autofuse.results.entries import Entries
from autofuse.results.regular_files import read_own
from autofuse.results.table import Cell, Column, Table
from autofuse.results.tuning import TuningResult

_DONE, _FAILED = 0, 2


@dataclass(frozen=True)
class _File:
    """A file of the cache. `belongs_to` and `results` are empty if it cannot be read."""

    path: Path
    size: int
    belongs_to: dict[str, str]
    results: dict[str, TuningResult]


def main(options: Namespace) -> int:
    """Runs `options.action`: show, path, list or clear. Returns 0, or 2 after an error."""
    console, errors = Console(), Console(stderr=True)
    root = folder()
    if root is None:
        errors.print("autofuse: there is no home folder for the cache: set AUTOFUSE_CACHE_DIR.", soft_wrap=True)
        return _FAILED
    if options.action == "path":
        console.file.write(f"{root}\n")
        return _DONE
    if options.action == "clear":
        return _clear(root, console, errors)
    files = list(_read_files())
    if options.format == "json":
        console.file.write(json.dumps(_as_dict(root, files), indent=2, allow_nan=False) + "\n")
    elif options.action == "list":
        _list(console, files)
    else:
        _show(console, root, files)
    return _DONE


def _clear(root: Path, console: Console, errors: Console) -> int:
    try:
        count = len(cache.clear()) + _findings_cache(root).clear()
    except OSError as error:
        errors.print(f"autofuse: the cache cannot be cleared: {error}.", markup=False, soft_wrap=True)
        return _FAILED
    console.print(f"{count} {'file' if count == 1 else 'files'} removed", highlight=False)
    return _DONE


def _findings_cache(root: Path) -> Entries:
    """Returns the cached findings of `check` and `rewrite`."""
    return Entries(root / "files")


def _read_files() -> Iterator[_File]:
    for path in cache.files():
        try:
            content = json.loads(read_own(str(path)))
            results = {key: TuningResult.from_dict(entry) for key, entry in content["entries"].items()}
            yield _File(path, path.stat().st_size, dict(content["belongs_to"]), results)
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):  # damaged, or another format
            yield _File(path, path.stat().st_size if path.exists() else 0, {}, {})


def _as_dict(root: Path, cached: list[_File]) -> dict[str, Any]:
    files = [
        {
            "path": str(f.path),
            "bytes": f.size,
            "belongs_to": f.belongs_to,
            "decisions": {key: result.to_dict() for key, result in f.results.items()},
        }
        for f in cached
    ]
    sizes = [size for _, size, _ in _findings_cache(root).sizes()]
    return {
        "version": cache.FORMAT_VERSION,
        "folder": str(root),
        "files": files,
        "findings": {"entries": len(sizes), "bytes": sum(sizes)},
    }


def _show(console: Console, root: Path, files: list[_File]) -> None:
    console.print(str(root), markup=False, highlight=False, soft_wrap=True)
    sizes = [size for _, size, _ in _findings_cache(root).sizes()]
    console.print(f"findings in files: {len(sizes)} entries, {sum(sizes) / 1024:.1f} KiB", highlight=False)
    if not files:
        console.print("No kernel has been measured yet: run `autofuse tune`.", highlight=False)
        return
    columns = (Column("device"), Column("processor", wraps=True), Column("torch"), Column("decisions", align="right"),
               Column("KiB", align="right"), Column("file"))  # fmt: skip
    rows = tuple(
        (
            Cell(f.belongs_to.get("device", "cannot be read")),
            Cell(f.belongs_to.get("processor", "")),
            Cell(f.belongs_to.get("torch", "")),
            Cell(str(len(f.results))),
            Cell(f"{f.size / 1024:.1f}"),
            Cell(f.path.name, "quiet"),
        )
        for f in files
    )
    console.print(terminal.as_rich(Table("", columns, rows)))


def _list(console: Console, files: list[_File]) -> None:
    columns = (Column("decision", wraps=True), Column("goes to"), Column("a call", align="right"),
               Column("why", wraps=True))  # fmt: skip
    for file in (f for f in files if f.results):
        rows = tuple(
            (Cell(key), Cell(result.winner, "good"), Cell(_winner_time(result)), Cell(result.why, "quiet"))
            for key, result in sorted(file.results.items())
        )
        description = ", ".join(f"{name} {value}" for name, value in file.belongs_to.items())
        console.print(terminal.as_rich(Table(file.path.name, columns, rows, description)))
    if not any(f.results for f in files):
        console.print("The cache holds no decision.", highlight=False)


def _winner_time(result: TuningResult) -> str:
    seconds = next((t.seconds for t in result.trials if t.name == result.winner), None)
    return "" if seconds is None else milliseconds(seconds)
