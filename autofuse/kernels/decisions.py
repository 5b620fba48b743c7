"""Decisions by measurement: which provider gets which kind of call. They are kept on disk.

A decision is the result of timing the candidates for one call (autofuse/kernels/tuning.py). It holds for all calls of
the same kind, until the device or a version changes. One file belongs to one device and one set of versions of torch,
Triton, autofuse's kernels and the packages of providers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from threading import RLock
from typing import Any, NamedTuple

import torch

from autofuse.kernels import packages
from autofuse.kernels.cache import Cache, files
from autofuse.kernels.policy import KernelSettings, settings
from autofuse.measure.environment import environment
from autofuse.results.tuning import TuningResult

_LOG = logging.getLogger("autofuse")
_LOCK = RLock()
_SOURCES = ("kernels", "ops")  # the folders on which a kernel's speed can depend


class Kind(NamedTuple):
    """The common properties of all calls of one decision. `sizes`: the sizes that the operation uses for decisions."""

    operation: str
    device: str
    dtype: str
    sizes: tuple[int, ...]
    training: bool
    deterministic: bool

    def key(self, settings_of_call: KernelSettings, site: str = "") -> str:
        """The key of the decision. `site` is a place whose original code was a candidate; "" means any place."""
        parts = [self.operation, self.dtype, "x".join(str(int(size)) for size in self.sizes)]
        parts += ["training" if self.training else "inference", settings_of_call.policy]
        parts += ["deterministic"] if self.deterministic else []
        parts += (
            [f"among {','.join(sorted(settings_of_call.providers))}"] if settings_of_call.providers is not None else []
        )
        if self.device != "cpu" and settings_of_call.launch_bound is not None:
            parts.append("launch bound" if settings_of_call.launch_bound else "device bound")
        return " ".join([*parts, f"at {site}"] if site else parts)


def measured_ranking(kind: Kind) -> tuple[str, ...]:
    """The providers that were measured for such calls on this machine, best first.

    () if nothing was measured, or if the settings ask for the defaults.
    """
    if not settings().measured:
        return ()
    facts = decision(kind)
    return () if facts is None else facts.ranking


def has_measurements(operation: str) -> bool:
    """Whether anything was measured for an operation, on a device of this machine."""
    if not settings().measured:
        return False
    devices = ["cpu"]
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        devices.append("cuda")
    elif torch.cuda.is_available() and any(path.name.startswith("cuda-") for path in files()):
        return True  # a call on a CPU must not initialize CUDA; the GPU's file is read when a CUDA tensor comes
    return any(result.operation == operation for device in devices for result in decisions(device).values())


def decision(kind: Kind, site: str = "") -> TuningResult | None:
    """The whole decision, for the current policy; None if there is none."""
    return _decisions(kind.device).get(kind.key(settings(), site))


def decisions(device: str) -> Mapping[str, TuningResult]:
    """All decisions for a type of device ("cpu", "cuda"), by key."""
    return dict(_decisions(device))


def decide(kind: Kind, result: TuningResult, site: str = "") -> None:
    """Makes a result hold for all calls of that kind, in this process and in later ones."""
    key = kind.key(settings(), site)
    with _LOCK:
        _decisions(kind.device)[key] = result
    _store(kind.device).add({key: result.to_dict()})


def forget() -> None:
    """Makes the next access read the files again, because they were deleted or the folder changed."""
    with _LOCK:
        _results_of_files.clear()
        _store_for.cache_clear()


_results_of_files: dict[Cache, dict[str, TuningResult]] = {}


def _decisions(device: str) -> dict[str, TuningResult]:
    store = _store(device)
    with _LOCK:
        if store not in _results_of_files:
            _results_of_files[store] = dict(_results(store.read()))
        return _results_of_files[store]


def _results(entries: Mapping[str, Any]) -> Iterable[tuple[str, TuningResult]]:
    """The entries that are valid results. Others are skipped with a warning."""
    for key, entry in entries.items():
        try:
            yield key, TuningResult.from_dict(entry)
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            _LOG.warning("The decision %r in autofuse's cache has an unknown form (%s) and is ignored.", key, error)


def _store(device: str) -> Cache:
    return _store_for(device, torch.get_num_threads() if device == "cpu" else 0)


@cache
def _store_for(device: str, threads: int) -> Cache:
    """The file for a device. Measurements with one number of threads say nothing about another number."""
    here = hardware(device) | ({"threads": str(threads)} if threads else {})
    return Cache(device, tuple(sorted((here | versions()).items())))


def hardware(device: str) -> dict[str, str]:
    """The hardware in words: the processor with its instruction set, or the accelerator with its capability."""
    facts = {"device": device}
    if device == "cpu":
        about = environment(torch.device("cpu"))
        capability = torch.backends.cpu.get_cpu_capability()
        return facts | {"processor": about["processor"], "capability": capability, "platform": about["platform"]}
    if device == "cuda":
        major, minor = torch.cuda.get_device_capability()
        return facts | {"processor": torch.cuda.get_device_name(), "capability": f"{major}.{minor}"}
    return facts


@cache
def versions() -> dict[str, str]:
    """The versions that a decision depends on: torch and its CUDA, Triton, the packages, autofuse's kernels."""
    facts = {"torch": torch.__version__, "cuda": str(torch.version.cuda or torch.version.hip or "none")}
    for package in vars(packages).values():
        if isinstance(package, packages.Package) and not package.missing():
            facts.setdefault(package.name, package.version() or "present")
    return facts | {"autofuse's kernels": _digest()}


def _digest() -> str:
    """A digest of the kernels' sources, which change without a new version during development."""
    here = Path(__file__).parents[1]
    digest = sha256()
    for path in sorted(p for folder in _SOURCES for p in (here / folder).rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
