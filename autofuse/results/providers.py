"""The implementations of operations that exist on this machine. Plain data and its forms, without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from autofuse.results.shown import Shown
from autofuse.results.table import Cell, Column, Table, without_empty_columns

FORMAT_VERSION = 1


@dataclass(frozen=True)
class PackageEntry:
    """A source of providers.

    Attributes:
        version: "" if it is unknown.
        reason: why it is not available; "" if it is.
        install: how to install it.
    """

    name: str
    version: str
    available: bool
    reason: str
    install: str


@dataclass(frozen=True)
class ProviderEntry:
    """One implementation of an operation.

    Attributes:
        available: whether it can run on this machine.
        reason: why it cannot; "" if it can.
        default: whether it is chosen without a measurement.
        refuses: the arguments that it does not support; "" if it supports all.
    """

    name: str
    package: str
    available: bool
    reason: str
    default: bool
    devices: tuple[str, ...]
    dtypes: tuple[str, ...]
    deterministic: bool
    summary: str
    gradient: str
    refuses: str


@dataclass(frozen=True)
class OperationEntry:
    """An operation with its providers, in the order in which they are asked.

    Attributes:
        least: plain torch computes calls with fewer elements.
    """

    operation: str
    least: int
    providers: tuple[ProviderEntry, ...]


@dataclass(frozen=True)
class Listing(Shown):
    """All operations and packages. Prints as tables, also in notebooks."""

    packages: tuple[PackageEntry, ...]
    operations: tuple[OperationEntry, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """`{"version": 1, "packages": [...], "operations": [...]}`. See docs/json.md."""
        return {
            "version": FORMAT_VERSION,
            "packages": [asdict(p) for p in self.packages],
            "operations": [asdict(o) for o in self.operations],
        }

    def tables(self) -> tuple[Table, ...]:
        """The packages, then a table for each operation."""
        return (self._packages(), *map(_operation, self.operations))

    def _packages(self) -> Table:
        columns = (Column("package"), Column("version"), Column("here"), Column("how to get it", wraps=True))
        rows = tuple(
            (
                Cell(p.name),
                Cell(p.version),
                Cell("yes" if p.available else "no", "good" if p.available else "quiet"),
                Cell("" if p.available else f"{p.reason} {p.install}", "quiet"),
            )
            for p in self.packages
        )
        return Table("Packages with kernels", columns, rows)


_COLUMNS = (
    Column("provider"),
    Column("here"),
    Column("device"),
    Column("dtypes"),
    Column("what it is", wraps=True),
)
_SHORT = {"float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16"}


def _operation(entry: OperationEntry) -> Table:
    rows = tuple(_row(p) for p in entry.providers)
    caption = f"Below {entry.least:,} elements plain torch code runs." if entry.least else ""
    return without_empty_columns(Table(entry.operation, _COLUMNS, rows, caption))


def _row(provider: ProviderEntry) -> tuple[Cell, ...]:
    here = "default" if provider.available and provider.default else "yes" if provider.available else "no"
    varies = "" if provider.deterministic else "Not deterministic."
    gradient = f"Gradient: {provider.gradient}" if provider.gradient else ""
    said = (provider.reason, provider.summary, gradient, provider.refuses, varies)
    return (
        Cell(provider.name),
        Cell(here, "good" if provider.available else "quiet"),
        Cell(", ".join(provider.devices), "quiet"),
        Cell(", ".join(_SHORT.get(d, d) for d in provider.dtypes), "quiet"),
        Cell(" ".join(part for part in said if part), "plain" if provider.available else "quiet"),
    )


@dataclass(frozen=True)
class ProviderUse:
    """The providers that computed an operation's calls in this process, and why.

    Attributes:
        counts: calls by provider, without the calls that plain torch code computed at once (small ones, compilers,
            tensor subclasses).
        failures: the errors of providers that are not used any more.
        decided: kinds of calls, as text, with the providers in their order and the reason: a measurement or "the
            defaults".
    """

    operation: str
    counts: Mapping[str, int]
    failures: Mapping[str, str]
    decided: Mapping[str, str]
