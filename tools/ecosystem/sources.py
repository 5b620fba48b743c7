"""Finds the code to read: wheels of pinned packages, installed packages, folders.

This file knows pip, archives and `packages.toml`. It imports none of the code.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

LIST = Path(__file__).with_name("packages.toml")


@dataclass(frozen=True)
class Tree:
    """Code to read. `root` is the entry for `sys.path`, and `folder` the part of it to read."""

    name: str
    version: str
    root: Path
    folder: Path

    @property
    def title(self) -> str:
        return f"{self.name} {self.version}".strip()

    def files(self) -> Iterator[Path]:
        """Yield every Python file, sorted by path."""
        return iter(sorted(self.folder.rglob("*.py")))

    def module(self, file: Path) -> str:
        """The name of the module in a file."""
        parts = file.relative_to(self.root).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


class Unavailable(Exception):
    """A package cannot be fetched. The message says why."""


def pinned_versions() -> dict[str, str]:
    """Return name -> version of the packages in `packages.toml`."""
    packages: dict[str, str] = tomllib.loads(LIST.read_text())["packages"]
    return packages


def download(name: str, version: str, cache: Path) -> Tree:
    """Download and unpack the wheel of a package. Raises Unavailable."""
    stem = f"{name.replace('-', '_')}-{version}"
    root = cache / "unpacked" / stem
    if not root.exists():
        with zipfile.ZipFile(_wheel(name, version, cache / "wheels")) as wheel:
            wheel.extractall(root)
    return Tree(name, version, root, root)


def _wheel(name: str, version: str, folder: Path) -> Path:
    stem = f"{name.replace('-', '_')}-{version}-".lower()
    for attempt in range(2):
        found = [f for f in folder.glob("*.whl") if f.name.lower().startswith(stem)]
        if found:
            return found[0]
        if attempt == 0:
            options = ["--no-deps", "--only-binary", ":all:", "--quiet", "--dest", str(folder)]
            command = [sys.executable, "-m", "pip", "download", *options, f"{name}=={version}"]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise Unavailable(f"{name} {version} could not be downloaded: {done.stderr.strip().splitlines()[-1]}")
    raise Unavailable(f"{name} {version} has no wheel.")


def installed_package(name: str) -> Tree:
    """Find an installed package by its import name. Raises Unavailable."""
    found = importlib.util.find_spec(name)
    if found is None or not found.submodule_search_locations:
        raise Unavailable(f"{name} is not installed here, or is not a package.")
    folder = Path(found.submodule_search_locations[0])
    return Tree(name, "", folder.parent, folder)


def folders(paths: Iterable[Path]) -> Iterator[Tree]:
    """Yield the trees of folders, each a package or a checkout."""
    for path in paths:
        package = (path / "__init__.py").exists()
        yield Tree(path.name, "", path.parent if package else path, path)
