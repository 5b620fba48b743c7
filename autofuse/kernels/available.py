"""The packages that providers come from, as they are on this machine. Needs no torch.

Knows what packages say of themselves; must not know providers.
"""

from __future__ import annotations

from collections.abc import Iterator

from autofuse.kernels import packages
from autofuse.kernels.packages import Package
from autofuse.results.providers import PackageEntry


def package_entries() -> tuple[PackageEntry, ...]:
    """Every package once, by name. Of one that comes in parts, what lacks in the parts that are not there."""
    names = sorted({p.name for p in _packages()})
    return tuple(_entry(name, [p for p in _packages() if p.name == name]) for name in names)


def _packages() -> Iterator[Package]:
    return (p for p in vars(packages).values() if isinstance(p, Package))


def _entry(name: str, parts: list[Package]) -> PackageEntry:
    """A package is there if any part of it can be used."""
    missing: dict[str, Package] = {}
    for part in parts:
        missing.setdefault(part.missing(), part)
    there = missing.get("")
    reason, lacking = next(((why, p) for why, p in missing.items() if why), ("", parts[0]))
    version = (there or parts[0]).version()
    return PackageEntry(name, version, there is not None, "" if there else reason, lacking.install)
