"""Compiles every kernel with the Triton of every supported torch, for every target.

Each version of Triton runs in its own process, `python -m tools.ahead`. Results are cached by a digest of everything
that they depend on: the file of the kernel and its imports, these tools, the version and the target. So only changed
kernels are compiled again.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tools.ahead.targets import TARGETS, Arch

REPOSITORY = Path(__file__).parents[2]
KERNELS = REPOSITORY / "autofuse" / "kernels" / "triton"
# torch's Linux wheels name their Triton in Requires-Dist.
TRITON_OF_TORCH: Mapping[str, str] = MappingProxyType(
    {
        "2.9": "3.5.1",
        "2.10": "3.6.0",
        "2.11": "3.6.0",
        "2.12": "3.7.0",
        "2.13": "3.7.1",
    }
)
VERSIONS = tuple(dict.fromkeys(TRITON_OF_TORCH.values()))
HOME = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "autofuse-ahead"


def matrix(home: Path, versions: Iterable[str], targets: Iterable[Arch]) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of `python -m tools.ahead --json` for all declared calls, by version of Triton.

    Args:
        home: the folder for the versions of Triton and for cached results.
        versions: the versions of Triton.
        targets: the architectures.

    Raises:
        RuntimeError: a version cannot be installed, or its process fails.
    """
    wanted = tuple(targets)
    return {version: _rows(home, version, wanted) for version in versions}


def _rows(home: Path, version: str, targets: Iterable[Arch]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for arch in targets:
        files = {stem: home / "results" / f"{digest(stem, version, arch)}.json" for stem in stems()}
        changed = [stem for stem, file in files.items() if not file.exists()]
        if changed:
            rows = _compile_with(install_version(home, version), arch, changed)
            for stem in changed:
                _keep(files[stem], [row for row in rows if row["file"] == stem])
        found += [row for file in files.values() for row in json.loads(file.read_text())]
    return found


def _compile_with(triton: Path, arch: Arch, stems: list[str]) -> list[dict[str, Any]]:
    named = TARGETS[arch].name
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.json"
        command = [sys.executable, "-W", "ignore", "-m", "tools.ahead", "--arch", named, "--only", *stems]
        environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
        environment |= {"PYTHONPATH": str(triton), "TRITON_CACHE_DIR": str(triton.parent / "compiled" / triton.name)}
        done = subprocess.run(
            [*command, "--json", str(file), "--output", str(Path(folder) / "table.md")],
            cwd=REPOSITORY, env=environment, capture_output=True, text=True,
        )  # fmt: skip
        if not file.exists():
            raise RuntimeError(f"{triton.name} compiles nothing for {named}: {done.stderr.strip()[-2000:]}")
        rows: list[dict[str, Any]] = json.loads(file.read_text())["rows"]
    return rows


def install_version(home: Path, version: str) -> Path:
    """Return the folder of a version of Triton. It is installed from the package index if it is missing."""
    folder = home / f"triton-{version}"
    if not (folder / "triton").is_dir():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
        done = subprocess.run([*command, f"triton=={version}"], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"Triton {version} could not be installed: {done.stderr.strip()[-500:]}")
    return folder


def stems() -> list[str]:
    """Return the names of the kernel files that declare calls."""
    return sorted(p.stem for p in KERNELS.glob("*.py") if "\nAHEAD" in p.read_text())


def digest(stem: str, version: str, arch: Arch) -> str:
    """Return the digest of everything that the rows of a kernel file depend on."""
    made = sha256(f"{version} {TARGETS[arch].name} {stem}".encode())
    for path in sorted(_with_its_imports(KERNELS / f"{stem}.py") | set(Path(__file__).parent.glob("*.py"))):
        made.update(path.read_bytes())
    return made.hexdigest()[:24]


@cache
def _with_its_imports(path: Path) -> frozenset[Path]:
    """A file of the package, and everything that it imports from the package."""
    found, waiting = set[Path](), [path]
    while waiting:
        file = waiting.pop()
        if file in found:
            continue
        found.add(file)
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("autofuse."):
                waiting += _files_of(node.module or "", [a.name for a in node.names])
    return frozenset(found)


def _files_of(module: str, names: list[str]) -> list[Path]:
    place = REPOSITORY.joinpath(*module.split("."))
    if place.with_suffix(".py").is_file():
        return [place.with_suffix(".py")]
    return [place / f"{name}.py" for name in names if (place / f"{name}.py").is_file()]


def _keep(file: Path, rows: list[dict[str, Any]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    made = file.with_suffix(f".{os.getpid()}")
    made.write_text(json.dumps(rows))
    made.replace(file)
