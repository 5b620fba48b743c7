"""Fetches the repositories of the list, and prepares their files for training."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.gallery.data import MAKERS

LIST = Path(__file__).with_name("repositories.toml")


class Unavailable(Exception):
    """A repository cannot be fetched, or its program does not start here. The message says why."""


@dataclass(frozen=True)
class Repository:
    """A row of repositories.toml, which documents the fields."""

    name: str
    commit: str
    rewrite: tuple[str, ...]
    command: tuple[str, ...] = ()
    directory: str = "."
    settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    data: Mapping[str, str] = field(default_factory=dict)
    prepare: tuple[str, ...] = ()
    by_hand: tuple[str, ...] = ()
    untrained: str = ""

    @property
    def address(self) -> str:
        return f"https://github.com/{self.name}"


def all_repositories() -> list[Repository]:
    """Return all rows of repositories.toml."""
    rows: list[dict[str, Any]] = tomllib.loads(LIST.read_text())["repository"]
    return [_of(row) for row in rows]


def _of(row: dict[str, Any]) -> Repository:
    fields: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}
    return Repository(**fields)


def copy_repository(repository: Repository, cache: Path, mirrors: Path | None) -> Path:
    """Copy the files of the commit to a new folder.

    Args:
        repository: the repository.
        cache: the folder for clones and copies.
        mirrors: a folder of bare copies OWNER+NAME/repo, which are cloned instead of GitHub.

    Returns:
        The new folder.

    Raises:
        Unavailable: the repository or a file cannot be fetched.
    """
    folder = cache / repository.name.replace("/", "+")
    clone = folder / "clone"
    if not (clone / ".git").exists():
        mirror = mirrors / repository.name.replace("/", "+") / "repo" if mirrors else None
        source = str(mirror) if mirror and mirror.is_dir() else repository.address
        _git("clone", "--quiet", "--no-checkout", source, str(clone), of=repository)
    for path in (*repository.rewrite, repository.directory):
        if path.startswith(("/", "..")):
            raise Unavailable(f"{repository.name}: {path} is outside of the repository.")
    _check_out(repository, clone)
    tree = folder / "tree"
    shutil.rmtree(tree, ignore_errors=True)
    shutil.copytree(clone, tree, ignore=shutil.ignore_patterns(".git"), symlinks=True)
    return tree


def _check_out(repository: Repository, clone: Path) -> None:
    """Check out every file of the commit that the clone has. A bare copy may lack the largest files, which are data."""
    git = ["-C", str(clone)]
    listed = _git(*git, "ls-tree", "-r", "-z", repository.commit, of=repository).split("\0")
    objects = {path: line.split()[2] for line, _, path in (row.partition("\t") for row in listed if row)}
    answers = _git(*git, "cat-file", "--batch-check", of=repository, given="\n".join(objects.values())).splitlines()
    present = [path for path, answer in zip(objects, answers, strict=True) if not answer.endswith(" missing")]
    if missing := [name for name in repository.rewrite if not any(_path_below(path, name) for path in present)]:
        raise Unavailable(f"{repository.name} has no {missing[0]} at {repository.commit[:12]}")
    paths = ["--pathspec-from-file=-", "--pathspec-file-nul"]
    _git(
        *git, "checkout", "--quiet", "--force", repository.commit, *paths, of=repository,
        given="\0".join(f":(literal){path}" for path in present),
    )  # fmt: skip


def _path_below(path: str, name: str) -> bool:
    return path == name or path.startswith(f"{name}/")


def prepare_tree(repository: Repository, tree: Path) -> None:
    """Write smaller settings and generated data into a copy of a repository. Raises Unavailable."""
    for file, values in repository.settings.items():
        text = (tree / file).read_text()
        for name, value in values.items():
            text, count = re.subn(rf"(?m)^{name} *=[^#\n]*", f"{name} = {value} ", text)
            if count != 1:
                raise Unavailable(f"{repository.name}: {file} sets {name} in {count} lines instead of one.")
        (tree / file).write_text(text)
    place = tree / repository.directory
    for file, kind in repository.data.items():
        (place / file).parent.mkdir(parents=True, exist_ok=True)
        MAKERS[kind](place / file)
    if repository.prepare:
        done = subprocess.run([sys.executable, *repository.prepare], cwd=place, capture_output=True, text=True)
        if done.returncode:
            raise Unavailable(f"{repository.name} could not be prepared: {last_line(done.stderr)}")


def last_line(text: str) -> str:
    """The last line of an error message."""
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1].strip() if lines else "no message"


def _git(*arguments: str, of: Repository, given: str = "") -> str:
    done = subprocess.run(
        ["git", *arguments], input=given, capture_output=True, text=True,
        env={"GIT_TERMINAL_PROMPT": "0", "PATH": _path()},
    )  # fmt: skip
    if done.returncode:
        raise Unavailable(f"{of.name} could not be fetched: {last_line(done.stderr)}")
    return done.stdout


def _path() -> str:
    git = shutil.which("git")
    return str(Path(git).parent) if git else ""
