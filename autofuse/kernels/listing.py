"""The packages, the operations with their providers, and the providers that calls used in this process."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence

import torch

from autofuse.kernels.available import package_entries
from autofuse.kernels.decisions import decision
from autofuse.kernels.operation import OPERATIONS, Operation
from autofuse.kernels.policy import settings
from autofuse.kernels.provider import Provider, takes_all
from autofuse.results.providers import Listing, OperationEntry, ProviderEntry, ProviderUse


def listing(names: Sequence[str] = ()) -> Listing:
    """Every operation with every provider, or only the named operations.

    Raises:
        ValueError: if there is no operation with that name.
    """
    unknown = [n for n in names if n not in OPERATIONS]
    if unknown:
        raise ValueError(f"There is no operation {unknown[0]!r}. Use one of {', '.join(sorted(OPERATIONS))}.")
    operations = [OPERATIONS[n] for n in names or sorted(OPERATIONS)]
    return Listing(package_entries(), tuple(map(_operation, operations)))


def provider_uses() -> tuple[ProviderUse, ...]:
    """The operations that were called in this process, with the providers that computed the calls, and why."""
    return tuple(
        ProviderUse(o.name, dict(o.counts), dict(o.failures), dict(_choices(o)))
        for o in OPERATIONS.values()
        if o.counts or o.failures
    )


def _choices(operation: Operation) -> Iterator[tuple[str, str]]:
    """Each kind of call in words, with its providers in order and the reason for the order."""
    for kind, order in operation.orders():
        mode = "training" if kind.training else "inference"
        found = decision(kind) if settings().measured else None
        why = f"measured. {found.why}" if found is not None else "the defaults"
        yield (
            f"{kind.device} {kind.dtype} {'x'.join(map(str, kind.sizes))} {mode}",
            f"{', then '.join(p.name for p in order)}: {why}",
        )


def _operation(operation: Operation) -> OperationEntry:
    return OperationEntry(operation.name, operation.least, tuple(_entry(operation, p) for p in operation.providers))


def _entry(operation: Operation, provider: Provider) -> ProviderEntry:
    reason = operation.failure(provider.name) or provider.package.missing() or _no_device(provider)
    is_torch = provider is operation.torch
    return ProviderEntry(
        provider.name, provider.package.name, not reason, reason, provider.default or is_torch,
        ("cpu", "cuda", "others") if is_torch else provider.devices,
        ("all",) if is_torch else tuple(str(d).removeprefix("torch.") for d in provider.dtypes),
        provider.deterministic, provider.summary, provider.gradient, _check_text(provider),
    )  # fmt: skip


def _no_device(provider: Provider) -> str:
    available = {"cpu"} | ({"cuda"} if torch.cuda.is_available() else set())
    if available & set(provider.devices):
        return ""
    return f"It runs on {' and '.join(provider.devices)}, which this machine does not have."


def _check_text(provider: Provider) -> str:
    """The first part of the check's docstring, which says what the provider needs."""
    return "" if provider.check is takes_all else " ".join((inspect.getdoc(provider.check) or "").split())
