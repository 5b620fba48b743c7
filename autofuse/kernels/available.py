"""The packages from which providers come, and whether they are usable on this machine. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterator

from autofuse.kernels import packages
from autofuse.kernels.packages import Package
from autofuse.results.providers import PackageEntry


def package_entries() -> tuple[PackageEntry, ...]:
    """Every package once, by name. For a package in several parts, the reason why a part is missing."""
    names = sorted({p.name for p in _packages()})
    return tuple(_entry(name, [p for p in _packages() if p.name == name]) for name in names)


def _packages() -> Iterator[Package]:
    return (p for p in vars(packages).values() if isinstance(p, Package))


def _entry(name: str, parts: list[Package]) -> PackageEntry:
    """The entry of a package. It is available if any of its parts is usable."""
    missing: dict[str, Package] = {}
    for part in parts:
        missing.setdefault(part.missing(), part)
    usable = missing.get("")
    reason, missing_part = next(((why, p) for why, p in missing.items() if why), ("", parts[0]))
    version = (usable or parts[0]).version()
    return PackageEntry(name, version, usable is not None, "" if usable else reason, missing_part.install)
