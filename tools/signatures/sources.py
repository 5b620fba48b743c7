"""The packages whose functions providers call, and how to download their sources with pip or git. None is installed.

This file lists names and versions, and does not depend on what is read from the sources.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Source:
    """A package at a version: a requirement for pip, or the address of a repository."""

    name: str
    requirement: str = ""
    repository: str = ""
    is_sdist: bool = False
    folder: str = ""  # the folder of the repository that contains the importable modules


SOURCES = (
    Source("flash-attn", "flash-attn==2.8.3", is_sdist=True),
    Source("flash_attn_3", repository="https://github.com/Dao-AILab/flash-attention", folder="hopper"),
    Source("flash-attn-4", "flash-attn-4==4.0.0b36"),
    Source("liger-kernel", "liger-kernel==0.8.5"),
    Source("quack-kernels", "quack-kernels==0.6.5"),
    Source("apex", repository="https://github.com/NVIDIA/apex"),
)


def fetch(source: Source, folder: Path, checkout: Path | None = None) -> tuple[Path, str]:
    """Download the sources of a package.

    Args:
        source: the package.
        folder: where to put it.
        checkout: an existing checkout to use instead of cloning.

    Returns:
        The folder with the sources, and the version.
    """
    if source.repository:
        return _clone(source, folder, checkout)
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder), source.requirement]
    if source.is_sdist:  # pip runs its setup.py for the metadata, and that imports torch
        command += ["--no-binary", ":all:", "--no-build-isolation"]
    subprocess.run(command, check=True, env=os.environ | {"FLASH_ATTENTION_SKIP_CUDA_BUILD": "TRUE"})
    return _unpack(next(p for p in folder.iterdir() if p.is_file())), source.requirement.partition("==")[2]


def _unpack(archive: Path) -> Path:
    into = archive.parent / "unpacked"
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            wheel.extractall(into)
        return into
    with tarfile.open(archive) as sdist:
        sdist.extractall(into, filter="data")
    return next(into.iterdir())


def _clone(source: Source, folder: Path, checkout: Path | None) -> tuple[Path, str]:
    if checkout is None:
        checkout = folder / source.name
        subprocess.run(["git", "clone", "-q", "--depth", "1", source.repository, str(checkout)], check=True)
    shown = ["git", "-C", str(checkout), "log", "-1", "--format=%cs %h"]
    version = subprocess.run(shown, check=True, capture_output=True, text=True).stdout.strip()
    return checkout / source.folder, version
