"""What a user prefers where several kernels could run: speed, memory or accuracy, repeatable bits, certain providers.

One setting holds for the whole process: rewritten code that calls an operation does not know which model it is part of.
Knows the environment's variables; must not know operations or how they are measured.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal, TypedDict, Unpack, get_args

import torch

Policy = Literal["speed", "memory", "accuracy"]
POLICIES: tuple[Policy, ...] = get_args(Policy)
POLICY, PROVIDERS, MEASURED = "AUTOFUSE_POLICY", "AUTOFUSE_PROVIDERS", "AUTOFUSE_MEASURED"  # environment variables
LAUNCH_BOUND = "AUTOFUSE_LAUNCH_BOUND"  # another
_NO = ("0", "false", "no", "off")
ALWAYS = "torch"  # plain torch code takes what every other provider refuses, so it cannot be left out


@dataclass(frozen=True)
class KernelSettings:
    """policy: what decides between kernels that are right. deterministic: leave out kernels whose bits vary from run to
    run, as torch.use_deterministic_algorithms asks for in any case. providers: only these (and plain torch code, which
    takes whatever the others refuse); None for all. measured: go by what was decided by measurement on this machine;
    without it the defaults hold. launch_bound: whether the model's steps wait for launches of kernels on a GPU (a
    profile calls that regime "overhead"), where Python's time for a call counts, or for the GPU; None: not known.

    Raises ValueError for a policy of another name.
    """

    policy: Policy = "speed"
    deterministic: bool = False
    providers: frozenset[str] | None = None
    measured: bool = True
    launch_bound: bool | None = None

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise ValueError(f"There is no policy {self.policy!r}: choose from {', '.join(POLICIES)}.")

    def allows(self, provider: str) -> bool:
        """Whether a provider of that name may be chosen."""
        return self.providers is None or provider == ALWAYS or provider in self.providers

    @property
    def repeatable(self) -> bool:
        """Whether equal calls have to give equal bits, by this setting or by torch's own."""
        return self.deterministic or torch.are_deterministic_algorithms_enabled()


class Changes(TypedDict, total=False):
    """What `use` and `using` take."""

    policy: Policy
    deterministic: bool
    providers: Iterable[str] | None
    measured: bool
    launch_bound: bool | None


def from_environment(variables: Mapping[str, str] = os.environ) -> KernelSettings:
    """The settings that AUTOFUSE_POLICY (speed, memory, accuracy), AUTOFUSE_PROVIDERS ("torch,triton"),
    AUTOFUSE_MEASURED (0 for defaults alone) and AUTOFUSE_LAUNCH_BOUND (1 or 0) ask for.

    Raises ValueError for a policy of another name.
    """
    policy = variables.get(POLICY, "").strip().lower() or "speed"
    if policy not in POLICIES:
        raise ValueError(f"{POLICY} is {policy!r}, and there is no such policy: choose from {', '.join(POLICIES)}.")
    measured = variables.get(MEASURED, "").strip().lower() not in _NO
    bound = variables.get(LAUNCH_BOUND, "").strip().lower()
    return KernelSettings(
        policy, providers=named(variables.get(PROVIDERS, "")), measured=measured,
        launch_bound=bound not in _NO if bound else None,
    )  # fmt: skip


def launch_bound_in(regime: str) -> bool | None:
    """What the regime that a profile found of a model's steps says of `launch_bound`: "overhead" that they wait for
    launches, "compute" and "memory" that they wait for the device; any other word nothing.

    `use(launch_bound=launch_bound_in(profile.probe.verdict))`.
    """
    return {"overhead": True, "compute": False, "memory": False}.get(regime)


def named(text: str) -> frozenset[str] | None:
    """The providers in a list with commas; None, which means all, where it is empty."""
    return frozenset(name.strip() for name in text.split(",") if name.strip()) or None


_current: KernelSettings | None = None
_listeners: list[Callable[[], None]] = []


def settings() -> KernelSettings:
    """What holds now: the environment's wishes until `use` or `using` says otherwise."""
    global _current
    if _current is None:
        _current = from_environment()
    return _current


def use(**changes: Unpack[Changes]) -> KernelSettings:
    """Change what holds for this process from now on; what is not named stays. Returns what held before.

    `use(policy="memory", deterministic=True, providers=("torch", "triton"), measured=False)`.
    """
    before = settings()
    wanted = changes.get("providers")
    named = {**changes, "providers": frozenset(wanted)} if wanted is not None else changes
    _set(replace(before, **named))  # type: ignore[arg-type]
    return before


@contextmanager
def using(**changes: Unpack[Changes]) -> Iterator[KernelSettings]:
    """The same for a block, in all threads; afterwards it is as it was."""
    before = use(**changes)
    try:
        yield settings()
    finally:
        _set(before)


def on_change(listener: Callable[[], None]) -> None:
    """Call `listener` whenever other settings hold."""
    _listeners.append(listener)


def _set(wanted: KernelSettings) -> None:
    global _current
    if wanted != _current:
        _current = wanted
        for listener in _listeners:
            listener()
