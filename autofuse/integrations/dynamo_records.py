"""Keeps the recorded graphs, and selects those of one model.

A graph that Dynamo captured for one layer also runs for equal layers. The parameters of each run show which layer it
was. This module does not depend on Dynamo.
"""

from __future__ import annotations

import inspect
import threading
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn

from autofuse.integrations.dynamo_sites import GraphSites
from autofuse.integrations.dynamo_trace import Attribute
from autofuse.results.analysis import UnfusedSite

OwnedTensors = tuple[weakref.ref[Tensor], ...]  # one tensor for each owner
Names = dict[int, list[str]]  # id of a tensor -> its names in a model


@dataclass
class Record:
    """One captured graph: its sites, one attribute of each module that it reads, and the tensors of its runs."""

    sites: GraphSites
    attributes: tuple[Attribute, ...]
    runs: dict[tuple[int, ...], OwnedTensors] = field(default_factory=dict)

    @property
    def summary(self) -> str:
        """One sentence for the log."""
        unfused = [f.site for f in self.sites.sites if f.site.status == "unfused"]
        places = ", ".join(dict.fromkeys(f"{s.rule} at {s.file}:{s.line}" for s in unfused))
        return f"a graph with {len(unfused)} unfused sites" + (f": {places}" if places else "")

    def record_run(self, tensors: tuple[object, ...]) -> None:
        """Records one run."""
        key = tuple(map(id, tensors))
        if key not in self.runs and all(isinstance(t, Tensor) for t in tensors):
            self.runs[key] = tuple(weakref.ref(t) for t in tensors if isinstance(t, Tensor))

    def owners(self, names: Names) -> list[dict[str, str]]:
        """For each run on tensors of a model: Dynamo's name of each owner -> its name in the model."""
        owners_of_runs: list[dict[str, str]] = []
        for run in self.runs.values():
            owner_names = {a.owner: _owner_name(a, ref(), names) for a, ref in zip(self.attributes, run, strict=True)}
            known = {owner: name for owner, name in owner_names.items() if name is not None}
            if known and known not in owners_of_runs:
                owners_of_runs.append(known)
        return owners_of_runs


class Records:
    """All graphs since the last reset, in the order of their capture."""

    def __init__(self) -> None:
        self._records: list[Record] = []
        self._lock = threading.Lock()

    def add(self, sites: GraphSites) -> Record:
        """Adds a graph."""
        record = Record(sites, tuple({a.owner: a for a in sites.attributes}.values()))
        with self._lock:
            self._records.append(record)
        return record

    def clear(self) -> None:
        """Removes all graphs."""
        with self._lock:
            self._records.clear()

    def sites_of(self, model: nn.Module | None, files: frozenset[str] | None) -> tuple[tuple[UnfusedSite, ...], int]:
        """The sites of a model's graphs, with equal sites merged, and the number of these graphs.

        A graph belongs to the model if it ran on tensors of the model. A graph without module tensors belongs to it if
        its lines are in `files` (None for all files). The same holds for all graphs of a sharded model, because its
        tensors are replaced while it runs.
        """
        names = _tensor_names(model) if model is not None else {}
        with_owners = [(record, record.owners(names)) for record in self._records]
        has_own_tensors = model is not None and not any(type(p).__name__ == "DTensor" for p in model.parameters())
        collected: dict[UnfusedSite, dict[str, UnfusedSite]] = {}
        graphs = 0
        for record, owners in with_owners:
            if not owners and (has_own_tensors and record.attributes or not _is_in_files(record, files)):
                continue
            graphs += 1
            for found in record.sites.sites:
                for owner_names in owners or [{}]:
                    name = _join_path(owner_names.get(found.owner, ""), found.path)
                    collected.setdefault(found.site, {}).setdefault(name, found.site)
        sites = [
            replace(next(iter(modules.values())), modules=tuple(modules), count=len(modules))
            for modules in collected.values()
        ]
        return tuple(sorted(sites, key=lambda s: (s.status != "unfused", s.file, s.line or 0, s.rule))), graphs


def files_of(model: object) -> frozenset[str] | None:
    """The files that define the classes of a model, or a function. None for no model: all files count."""
    if model is None:
        return None
    kinds: Iterable[object] = {type(m) for m in model.modules()} if isinstance(model, nn.Module) else [model]
    return frozenset(filter(None, map(_file, kinds)))


def _file(kind: Any) -> str:
    """The file that defines a function, or the forward of a class; "" if unknown."""
    code = getattr(inspect.unwrap(getattr(kind, "forward", kind)), "__code__", None)
    return code.co_filename if code is not None else ""


def _is_in_files(record: Record, files: frozenset[str] | None) -> bool:
    return files is None or not files.isdisjoint(record.sites.files)


def _tensor_names(model: nn.Module) -> Names:
    names: Names = {}
    for tensors in (model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False)):
        for name, tensor in tensors:
            names.setdefault(id(tensor), []).append(name)
    return names


def _owner_name(attribute: Attribute, tensor: Tensor | None, names: Names) -> str | None:
    """The name, in a model, of the module that holds an attribute; None if the model does not hold this tensor."""
    tensor_names = names.get(id(tensor), ()) if tensor is not None else ()
    matching = [name for name in tensor_names if f".{name}".endswith(f".{attribute.path}")]
    return matching[0].removesuffix(attribute.path).rstrip(".") if matching else None


def _join_path(*parts: str) -> str:
    return ".".join(filter(None, parts))
