"""Checks what the sdist and the wheel must contain, and what they must not."""

from __future__ import annotations

import re
import tarfile
import zipfile
from pathlib import Path

_NOT_SHIPPED = ("tests/", "shared/", ".ci/", ".github/", "site/", ".venv/")
_IN_SDIST = ("LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml", "autofuse/py.typed", "rules/attention.py")


def find_problems_in_wheel(wheel: Path, repository: Path) -> list[str]:
    """Sentences about files that are missing or that should not be there."""
    names = set(zipfile.ZipFile(wheel).namelist())
    modules = {f.relative_to(repository).as_posix() for f in (repository / "autofuse").rglob("*.py")}
    rules = {f"autofuse/rules/{f.name}" for f in (repository / "rules").glob("*.py")}
    missing = sorted((modules | rules | {"autofuse/py.typed"}) - names)
    found = [f"{name} is missing" for name in missing]
    top = {name.split("/")[0] for name in names}
    found += [f"{name} is not part of autofuse" for name in sorted(top) if not re.match(r"autofuse(_torch-.*)?$", name)]
    if not any(name.endswith("licenses/LICENSE") for name in names):
        found.append("the licence is missing")
    return found


def find_problems_in_sdist(sdist: Path) -> list[str]:
    """Sentences about files that are missing or that should not be there."""
    with tarfile.open(sdist) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    found = [f"{name} is missing" for name in _IN_SDIST if name not in names]
    return found + [f"{name} should not be there" for name in sorted(names) if name.startswith(_NOT_SHIPPED)]
