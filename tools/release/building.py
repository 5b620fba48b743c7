"""Builds the sdist and the wheel, reproducibly."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path


class BuildFailed(Exception):
    """A build or a check ended with an error. The message is the end of its output."""


def build(repository: Path, output: Path) -> dict[str, str]:
    """Builds into `output` from the committed files, and returns the SHA-256 of each file by its name.

    The time of the last commit is the time of every file (SOURCE_DATE_EPOCH, https://reproducible-builds.org).

    Raises:
        BuildFailed: The build ended with an error.
    """
    epoch = _run(["git", "log", "-1", "--format=%ct"], repository).strip() or "315532800"
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        _export(repository, tree)
        shutil.rmtree(output, ignore_errors=True)
        environment = {**os.environ, "SOURCE_DATE_EPOCH": epoch}
        _run([sys.executable, "-m", "build", "--outdir", str(output), str(tree)], repository, environment)
    for archive in output.glob("*.tar.gz"):
        normalise(archive, int(epoch))
    return {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in sorted(output.iterdir())}


def check_with_twine(output: Path) -> list[str]:
    """The complaints of `twine check --strict` about the files; empty if there are none."""
    files = [str(f) for f in sorted(output.iterdir())]
    try:
        _run([sys.executable, "-m", "twine", "check", "--strict", *files], output)
    except BuildFailed as error:
        return [str(error)]
    return []


def normalise(archive: Path, epoch: int) -> None:
    """Packs an sdist again with sorted names, one time, and no owner: setuptools keeps those of the machine."""
    with tarfile.open(archive) as tar:
        members = sorted(tar.getmembers(), key=lambda m: m.name)
        contents = [(m, tar.extractfile(m).read() if m.isfile() else b"") for m in members]  # type: ignore[union-attr]
    with (
        archive.open("wb") as file,
        gzip.GzipFile("", "wb", mtime=epoch, fileobj=file) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for member, content in contents:
            _add(tar, member, content, epoch)


def _add(tar: tarfile.TarFile, member: tarfile.TarInfo, content: bytes, epoch: int) -> None:
    member.mtime, member.uid, member.gid, member.uname, member.gname = epoch, 0, 0, "", ""
    member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
    member.pax_headers = {}
    tar.addfile(member, io.BytesIO(content))


def _export(repository: Path, tree: Path) -> None:
    """Copies the committed files, and nothing else, to `tree`."""
    tree.mkdir()
    archive = tree.parent / "tree.tar"
    _run(["git", "archive", "--format=tar", "-o", str(archive), "HEAD"], repository)
    with tarfile.open(archive) as tar:
        tar.extractall(tree, filter="data")


def _run(command: list[str], cwd: Path, environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise BuildFailed(
            f"`{' '.join(command[:4])}` ended with {done.returncode}: {(done.stderr or done.stdout)[-600:]}"
        )
    return done.stdout
