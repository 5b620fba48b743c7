"""The distribution that installs autofuse, its version, and the package that must not be installed with it.

The import and the command are called `autofuse`, the distribution is called `autofuse-torch`. On PyPI, `autofuse` is an
unrelated package. It installs files into the same folder, so only one of the two can work.
"""

from __future__ import annotations

import os
import re
import sys
from functools import cache
from importlib import import_module

DISTRIBUTION = "autofuse-torch"
OLDEST_TORCH = (2, 9)  # docs/versions.md lists the versions that are tested
TORCH_REQUIREMENT = f"torch>={OLDEST_TORCH[0]}.{OLDEST_TORCH[1]}"
INSTALL_TORCH = f"Install it with `pip install '{TORCH_REQUIREMENT}'`."
_OTHER = "autofuse"
_METADATA = re.compile(r"autofuse(-[^-]*)?(-py[\d.]+)?\.(dist|egg)-info", re.IGNORECASE)


@cache
def own_version() -> str:
    """The installed version; "0" in a source tree that is not installed."""
    return _version_of(DISTRIBUTION) or "0"


@cache
def name_clash() -> str:
    """A sentence that says that the unrelated package is installed too, and what to do; "" if it is not."""
    other = _version_of(_OTHER) if any(map(_may_have_metadata, sys.path)) else None
    if other is None:
        return ""
    return (
        f"The distribution `{_OTHER}` {other} is installed. It is not this project: it is an unrelated package that "
        f"writes into the same folder. Run `pip uninstall {_OTHER}`, then "
        f"`pip install --force-reinstall --no-deps {DISTRIBUTION}`."
    )


@cache
def unsupported_torch() -> str:
    """A sentence that says that the installed torch is too old, and what to do; "" if it is not, or is not installed.

    It reads the version from the metadata of the distribution, so it does not import torch.
    """
    installed = _version_of("torch") or ""
    numbers = re.match(r"(\d+)\.(\d+)", installed)
    if numbers is None or (int(numbers[1]), int(numbers[2])) >= OLDEST_TORCH:
        return ""
    oldest = ".".join(map(str, OLDEST_TORCH))
    return (
        f"autofuse needs torch {oldest} or newer, but torch {installed} is installed. "
        f"Upgrade it with `pip install --upgrade '{TORCH_REQUIREMENT}'`."
    )


def _may_have_metadata(folder: str) -> bool:
    """Whether an entry of `sys.path` may have metadata of the unrelated package. It may if it is no readable folder."""
    try:
        return any(map(_METADATA.fullmatch, os.listdir(folder or ".")))
    except OSError:
        return os.path.exists(folder)


def _version_of(distribution: str) -> str | None:
    """The version in the metadata of a distribution."""
    metadata = import_module("importlib.metadata")  # here, because its import takes a third of the command's start
    try:
        return str(metadata.version(distribution))
    except metadata.PackageNotFoundError:
        return None
