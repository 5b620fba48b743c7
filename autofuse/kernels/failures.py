"""Failures of providers: which provider is not used any more for which calls, and why.

A kernel that does not compile for one dtype, shape or device may still work for the others. A package that turns out to
be unusable gets no call at all.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

_LOG = logging.getLogger("autofuse")
CallKind = tuple[str, ...]  # device, dtype, sizes, mode: calls that are equal in these fail in the same way


def call_kind(arguments: Iterable[Any], sizes: tuple[int, ...]) -> CallKind:
    """The kind of a call. The deciding tensor comes first in `arguments`; `sizes` are those that the operation uses."""
    values = tuple(arguments)
    x: Tensor = values[0]
    dtype = str(x.dtype).removeprefix("torch.")
    mode = "training" if needs_gradient(values) else "inference"
    return str(x.device), dtype, "x".join(str(int(size)) for size in sizes), mode


def needs_gradient(arguments: Iterable[Any]) -> bool:
    """Whether autograd computes a gradient of any argument."""
    return torch.is_grad_enabled() and any(isinstance(a, Tensor) and a.requires_grad for a in arguments)


class Failures:
    """The failures of one operation's providers."""

    def __init__(self, operation: str) -> None:
        self._operation = operation
        self._for_all: dict[str, str] = {}
        self._of_kinds: dict[str, dict[CallKind, str]] = {}

    def add(self, provider: str, why: str, kind: CallKind | None) -> None:
        """Records that `provider` failed, for calls of this kind, or for all calls if `kind` is None."""
        if kind is None:
            self._for_all[provider] = why
        else:
            self._of_kinds.setdefault(provider, {})[kind] = why
        calls = "" if kind is None else f" for {' '.join(kind)}"
        _LOG.warning("autofuse.ops.%s no longer uses %s%s: %s", self._operation, provider, calls, why)

    def for_all(self, provider: str) -> str:
        """The reason why the provider is no longer used for any call, as a sentence; "" if it is used."""
        return self._for_all.get(provider, "")

    def at(self, provider: str, kind: CallKind) -> str:
        """The reason why the provider is no longer used for this kind of call, as a sentence; "" if it is used."""
        return self._of_kinds.get(provider, {}).get(kind, "")

    def last_reasons(self) -> dict[str, str]:
        """The last reason for each provider that failed."""
        return {provider: list(kinds.values())[-1] for provider, kinds in self._of_kinds.items()} | self._for_all
