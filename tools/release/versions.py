"""The version of a release: one place decides, the others must agree."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path


def find_version_problems(repository: Path, tag: str = "") -> list[str]:
    """Sentences about places that state another version than pyproject.toml."""
    version = tomllib.loads((repository / "pyproject.toml").read_text())["project"]["version"]
    problems = []
    cited = re.search(r"^version: (\S+)$", (repository / "CITATION.cff").read_text(), re.MULTILINE)
    if cited is None or cited[1] != version:
        problems.append(f"CITATION.cff states {cited and cited[1]}, pyproject.toml {version}")
    latest = re.search(r"^## (\S+)(.*)$", (repository / "CHANGELOG.md").read_text(), re.MULTILINE)
    if latest is None or latest[1] != version:
        problems.append(f"The first heading of CHANGELOG.md is {latest and latest[1]}, not {version}")
    if tag and tag != f"v{version}":
        problems.append(f"The tag is {tag}, but the version is {version}")
    if tag and latest and "unreleased" in latest[2]:
        problems.append("CHANGELOG.md still says that the version is unreleased: write its date")
    return problems


def uncommitted_files(repository: Path) -> list[str]:
    """The files that git would commit."""
    listed = subprocess.run(["git", "status", "--porcelain"], cwd=repository, capture_output=True, text=True)
    return [line[3:] + " is not committed" for line in listed.stdout.splitlines()]
