"""What was decided by measurement: which provider a kind of call goes to. Kept on disk, by machine and versions.

A decision is the result of timing the candidates for one call (autofuse/kernels/tuning.py); it holds for all calls of
the same kind, until the device or anything that runs on it is another. A file belongs to one device and one set of
versions of torch, Triton, autofuse's own kernels and the packages that providers come from.
Knows kinds of calls and names of providers; must not know how either is measured or run.
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
_SOURCES = ("kernels", "ops")  # what a kernel's speed can depend on


class Kind(NamedTuple):
    """What calls have in common that one decision holds for. `sizes` are those that the operation goes by."""

    operation: str
    device: str
    dtype: str
    sizes: tuple[int, ...]
    training: bool
    deterministic: bool

    def key(self, wishes: KernelSettings, site: str = "") -> str:
        """The name of the decision. `site` tells apart places whose own code was a candidate; "" for any place."""
        parts = [self.operation, self.dtype, "x".join(str(int(size)) for size in self.sizes)]
        parts += ["training" if self.training else "inference", wishes.policy]
        parts += ["deterministic"] if self.deterministic else []
        parts += [f"among {','.join(sorted(wishes.providers))}"] if wishes.providers is not None else []
        if self.device != "cpu" and wishes.launch_bound is not None:
            parts.append("launch bound" if wishes.launch_bound else "device bound")
        return " ".join([*parts, f"at {site}"] if site else parts)


def decided(kind: Kind) -> tuple[str, ...]:
    """The providers that were measured for such calls on this machine, best first; () where nobody measured.

    () also where the settings say that defaults are to be kept to.
    """
    if not settings().measured:
        return ()
    found = decision(kind)
    return () if found is None else found.ranking


def any_decided(operation: str) -> bool:
    """Whether anything at all was measured for an operation, on a device that is here."""
    if not settings().measured:
        return False
    devices = ["cpu"]
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        devices.append("cuda")
    elif torch.cuda.is_available() and any(path.name.startswith("cuda-") for path in files()):
        return True  # who asks for a CPU must not wake up a GPU: what its file says is read when a tensor is there
    return any(result.operation == operation for device in devices for result in decisions(device).values())


def decision(kind: Kind, site: str = "") -> TuningResult | None:
    """The whole decision, for the policy that holds; None where there is none."""
    return _decisions(kind.device).get(kind.key(settings(), site))


def decisions(device: str) -> Mapping[str, TuningResult]:
    """All that is known for a type of device ("cpu", "cuda"), by key."""
    return dict(_decisions(device))


def decide(kind: Kind, result: TuningResult, site: str = "") -> None:
    """Let a result hold for all calls of that kind, here and in processes to come."""
    key = kind.key(settings(), site)
    with _LOCK:
        _decisions(kind.device)[key] = result
    _store(kind.device).add({key: result.to_dict()})


def forget() -> None:
    """Read the files again when they are next needed: they were deleted, or the folder is another."""
    with _LOCK:
        _read.clear()
        _store_for.cache_clear()


_read: dict[Cache, dict[str, TuningResult]] = {}


def _decisions(device: str) -> dict[str, TuningResult]:
    store = _store(device)
    with _LOCK:
        if store not in _read:
            _read[store] = dict(_results(store.read()))
        return _read[store]


def _results(entries: Mapping[str, Any]) -> Iterable[tuple[str, TuningResult]]:
    """The entries that are results; what another program put there is passed over."""
    for key, entry in entries.items():
        try:
            yield key, TuningResult.from_dict(entry)
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            _LOG.warning("The decision %r in autofuse's cache is of no known form (%s) and is ignored.", key, error)


def _store(device: str) -> Cache:
    return _store_for(device, torch.get_num_threads() if device == "cpu" else 0)


@cache
def _store_for(device: str, threads: int) -> Cache:
    """The file for a device: what was measured with one number of threads says nothing of another."""
    here = hardware(device) | ({"threads": str(threads)} if threads else {})
    return Cache(device, tuple(sorted((here | versions()).items())))


def hardware(device: str) -> dict[str, str]:
    """What runs the kernels, in words: the processor with its instructions, or the accelerator with its capability."""
    found = {"device": device}
    if device == "cpu":
        about = environment(torch.device("cpu"))
        capability = torch.backends.cpu.get_cpu_capability()
        return found | {"processor": about["processor"], "capability": capability, "platform": about["platform"]}
    if device == "cuda":
        major, minor = torch.cuda.get_device_capability()
        return found | {"processor": torch.cuda.get_device_name(), "capability": f"{major}.{minor}"}
    return found


@cache
def versions() -> dict[str, str]:
    """What a decision depends on besides the device: torch and its CUDA, Triton, the packages, our own kernels."""
    found = {"torch": torch.__version__, "cuda": str(torch.version.cuda or torch.version.hip or "none")}
    for package in vars(packages).values():
        if isinstance(package, packages.Package) and not package.missing():
            found.setdefault(package.name, package.version() or "present")
    return found | {"autofuse's kernels": _digest()}


def _digest() -> str:
    """Of the sources of the kernels: they change without a new version while autofuse is worked on."""
    here = Path(__file__).parents[1]
    digest = sha256()
    for path in sorted(p for folder in _SOURCES for p in (here / folder).rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
