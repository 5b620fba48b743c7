"""What providers failed at: which of them is no longer asked for which calls, and why.

A kernel that does not compile for one dtype, one shape or one device of several says nothing about the others. A
package that is not what it seemed takes no call at all. Knows names and tensors; must not know how anything is run.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

_LOG = logging.getLogger("autofuse")
CallKind = tuple[str, ...]  # device, dtype, sizes, mode: what calls have in common that fail alike


def call_kind(arguments: Iterable[Any], sizes: tuple[int, ...]) -> CallKind:
    """The kind of a call, from its arguments, the deciding tensor first, and the sizes that the operation goes by."""
    given = tuple(arguments)
    x: Tensor = given[0]
    dtype = str(x.dtype).removeprefix("torch.")
    mode = "training" if trains(given) else "inference"
    return str(x.device), dtype, "x".join(str(int(size)) for size in sizes), mode


def trains(arguments: Iterable[Any]) -> bool:
    """Whether autograd will ask for a gradient of any of the arguments."""
    return torch.is_grad_enabled() and any(isinstance(a, Tensor) and a.requires_grad for a in arguments)


class Failures:
    """Of one operation's providers."""

    def __init__(self, operation: str) -> None:
        self._operation = operation
        self._for_all: dict[str, str] = {}
        self._of_kinds: dict[str, dict[CallKind, str]] = {}

    def add(self, provider: str, why: str, kind: CallKind | None) -> None:
        """`provider` is not asked for calls of that kind any more; None: for none at all."""
        if kind is None:
            self._for_all[provider] = why
        else:
            self._of_kinds.setdefault(provider, {})[kind] = why
        calls = "" if kind is None else f" for {' '.join(kind)}"
        _LOG.warning("autofuse.ops.%s no longer asks %s%s: %s", self._operation, provider, calls, why)

    def for_all(self, provider: str) -> str:
        """Why it is asked for no call any more, as a sentence; "" where it is."""
        return self._for_all.get(provider, "")

    def at(self, provider: str, kind: CallKind) -> str:
        """Why it is not asked for calls of that kind, as a sentence; "" where it is."""
        return self._of_kinds.get(provider, {}).get(kind, "")

    def told(self) -> dict[str, str]:
        """For each provider that failed, why, the last time."""
        return {provider: list(kinds.values())[-1] for provider, kinds in self._of_kinds.items()} | self._for_all
