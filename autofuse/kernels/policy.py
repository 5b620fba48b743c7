"""The user's preferences if several kernels can run: speed, memory or accuracy, repeatable bits, certain providers.

One setting holds for the whole process, because rewritten code that calls an operation does not know its model.
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
ALWAYS = "torch"  # plain torch code takes the calls that all others refuse, so it cannot be excluded


@dataclass(frozen=True)
class KernelSettings:
    """The preferences.

    Attributes:
        policy: what decides between kernels that compute the right result.
        deterministic: exclude kernels whose bits vary from run to run, as torch.use_deterministic_algorithms does.
        providers: only these, and plain torch code, which takes what the others refuse; None for all.
        measured: use decisions that were measured on this machine; otherwise the defaults hold.
        launch_bound: whether the model's steps wait for kernel launches on a GPU (a profile calls this regime
            "overhead"), so that Python's time for a call counts; False if they wait for the GPU; None if it is unknown.

    Raises:
        ValueError: if the policy is unknown.
    """

    policy: Policy = "speed"
    deterministic: bool = False
    providers: frozenset[str] | None = None
    measured: bool = True
    launch_bound: bool | None = None

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise ValueError(f"Unknown policy {self.policy!r}. Use one of {', '.join(POLICIES)}.")

    def allows(self, provider: str) -> bool:
        """Whether this provider may be chosen."""
        return self.providers is None or provider == ALWAYS or provider in self.providers

    @property
    def repeatable(self) -> bool:
        """Whether equal calls must give equal bits, by this setting or by torch's."""
        return self.deterministic or torch.are_deterministic_algorithms_enabled()


class Changes(TypedDict, total=False):
    """The keyword arguments of `use` and `using`."""

    policy: Policy
    deterministic: bool
    providers: Iterable[str] | None
    measured: bool
    launch_bound: bool | None


def from_environment(variables: Mapping[str, str] = os.environ) -> KernelSettings:
    """The settings from environment variables.

    AUTOFUSE_POLICY (speed, memory, accuracy), AUTOFUSE_PROVIDERS ("torch,triton"), AUTOFUSE_MEASURED (0 for the
    defaults) and AUTOFUSE_LAUNCH_BOUND (1 or 0).

    Raises:
        ValueError: if the policy is unknown.
    """
    policy = variables.get(POLICY, "").strip().lower() or "speed"
    if policy not in POLICIES:
        raise ValueError(f"{POLICY} has the unknown value {policy!r}. Use one of {', '.join(POLICIES)}.")
    measured = variables.get(MEASURED, "").strip().lower() not in _NO
    bound = variables.get(LAUNCH_BOUND, "").strip().lower()
    return KernelSettings(
        policy, providers=parse_providers(variables.get(PROVIDERS, "")), measured=measured,
        launch_bound=bound not in _NO if bound else None,
    )  # fmt: skip


def launch_bound_in(regime: str) -> bool | None:
    """The value of `launch_bound` for a regime that a profile found.

    "overhead" means that steps wait for launches; "compute" and "memory" mean that they wait for the device; None for
    any other word. Use it as `use(launch_bound=launch_bound_in(profile.probe.verdict))`.
    """
    return {"overhead": True, "compute": False, "memory": False}.get(regime)


def parse_providers(text: str) -> frozenset[str] | None:
    """The providers in a list with commas; None, which means all, if it is empty."""
    return frozenset(name.strip() for name in text.split(",") if name.strip()) or None


_current: KernelSettings | None = None
_listeners: list[Callable[[], None]] = []


def settings() -> KernelSettings:
    """The current settings: those of the environment until `use` or `using` changes them."""
    global _current
    if _current is None:
        _current = from_environment()
    return _current


def use(**changes: Unpack[Changes]) -> KernelSettings:
    """Changes settings for this process. Settings that are not named stay.

    `use(policy="memory", deterministic=True, providers=("torch", "triton"), measured=False)`.

    Args:
        **changes: the settings to change.

    Returns:
        The settings before the change.
    """
    before = settings()
    providers = changes.get("providers")
    complete = {**changes, "providers": frozenset(providers)} if providers is not None else changes
    _set(replace(before, **complete))  # type: ignore[arg-type]
    return before


@contextmanager
def using(**changes: Unpack[Changes]) -> Iterator[KernelSettings]:
    """Changes settings for a block, in all threads, and restores them afterwards."""
    before = use(**changes)
    try:
        yield settings()
    finally:
        _set(before)


def on_change(listener: Callable[[], None]) -> None:
    """Registers a listener that is called whenever the settings change."""
    _listeners.append(listener)


def _set(new_settings: KernelSettings) -> None:
    global _current
    if new_settings != _current:
        _current = new_settings
        for listener in _listeners:
            listener()
