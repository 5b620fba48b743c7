"""Where the code comes from: wheels of the pinned packages, installed packages, folders.

Knows pip, archives and `packages.toml`; what is read is never imported here.
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
    """Code to look at. `root` is what `sys.path` would hold; `folder` is the part of it that is read."""

    name: str
    version: str
    root: Path
    folder: Path

    @property
    def title(self) -> str:
        return f"{self.name} {self.version}".strip()

    def files(self) -> Iterator[Path]:
        """Every Python file, in the order of their paths."""
        return iter(sorted(self.folder.rglob("*.py")))

    def module(self, file: Path) -> str:
        """The name under which a file is imported."""
        parts = file.relative_to(self.root).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


class Unavailable(Exception):
    """A package that cannot be fetched. The message says why."""


def pinned() -> dict[str, str]:
    """Name -> version of the packages in the list."""
    packages: dict[str, str] = tomllib.loads(LIST.read_text())["packages"]
    return packages


def downloaded(name: str, version: str, cache: Path) -> Tree:
    """The unpacked wheel of one package. Raises Unavailable."""
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


def installed(name: str) -> Tree:
    """An installed package by the name that it is imported by. Raises Unavailable."""
    found = importlib.util.find_spec(name)
    if found is None or not found.submodule_search_locations:
        raise Unavailable(f"{name} is not installed here, or is no package.")
    folder = Path(found.submodule_search_locations[0])
    return Tree(name, "", folder.parent, folder)


def folders(paths: Iterable[Path]) -> Iterator[Tree]:
    """Folders as they are given, each a package or a checkout."""
    for path in paths:
        package = (path / "__init__.py").exists()
        yield Tree(path.name, "", path.parent if package else path, path)
