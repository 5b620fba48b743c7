"""What was noted of every captured graph, and what of it concerns one model.

A graph that Dynamo captured for one layer runs for its equals too; which layers those are is told by the parameters
that it is run with. Knows graphs as lists of sites; must not know Dynamo.
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

OwnedTensors = tuple[weakref.ref[Tensor], ...]  # one tensor of each owner
Names = dict[int, list[str]]  # id of a tensor -> its names in a model


@dataclass
class Record:
    """One captured graph: what was noted of it, one attribute of each module that it reads, and on what it ran."""

    noted: GraphSites
    attributes: tuple[Attribute, ...]
    runs: dict[tuple[int, ...], OwnedTensors] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """One sentence, for a log."""
        unfused = [f.site for f in self.noted.sites if f.site.status == "unfused"]
        places = ", ".join(dict.fromkeys(f"{s.rule} at {s.file}:{s.line}" for s in unfused))
        return f"a graph with {len(unfused)} unfused sites" + (f": {places}" if places else "")

    def ran(self, tensors: tuple[object, ...]) -> None:
        """Note one run."""
        key = tuple(map(id, tensors))
        if key not in self.runs and all(isinstance(t, Tensor) for t in tensors):
            self.runs[key] = tuple(weakref.ref(t) for t in tensors if isinstance(t, Tensor))

    def owners(self, names: Names) -> list[dict[str, str]]:
        """For each run on tensors of a model: what each owner is called there."""
        found: list[dict[str, str]] = []
        for run in self.runs.values():
            named = {a.owner: _owner(a, ref(), names) for a, ref in zip(self.attributes, run, strict=True)}
            called = {owner: name for owner, name in named.items() if name is not None}
            if called and called not in found:
                found.append(called)
        return found


class Records:
    """Every graph since the last reset, in the order in which they were captured."""

    def __init__(self) -> None:
        self._records: list[Record] = []
        self._lock = threading.Lock()

    def add(self, noted: GraphSites) -> Record:
        """A new graph."""
        record = Record(noted, tuple({a.owner: a for a in noted.attributes}.values()))
        with self._lock:
            self._records.append(record)
        return record

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._records.clear()

    def sites_of(self, model: nn.Module | None, files: frozenset[str] | None) -> tuple[tuple[UnfusedSite, ...], int]:
        """The sites of a model's graphs, equal ones as one, and how many graphs there are.

        A graph that reads no module's tensors is the model's if its lines stand in `files`; None are all files. So is
        any graph of a sharded model, whose tensors are others while it runs.
        """
        names = _names(model) if model is not None else {}
        named = [(record, record.owners(names)) for record in self._records]
        told_apart = model is not None and not any(type(p).__name__ == "DTensor" for p in model.parameters())
        collected: dict[UnfusedSite, dict[str, UnfusedSite]] = {}
        graphs = 0
        for record, owners in named:
            if not owners and (told_apart and record.attributes or not _stands_in(record, files)):
                continue
            graphs += 1
            for found in record.noted.sites:
                for called in owners or [{}]:
                    name = _joined(called.get(found.owner, ""), found.path)
                    collected.setdefault(found.site, {}).setdefault(name, found.site)
        sites = [replace(next(iter(by.values())), modules=tuple(by), count=len(by)) for by in collected.values()]
        return tuple(sorted(sites, key=lambda s: (s.status != "unfused", s.file, s.line or 0, s.rule))), graphs


def files_of(model: object) -> frozenset[str] | None:
    """The files that the classes of a model, or a function, are written in; None where nothing is asked about."""
    if model is None:
        return None
    kinds: Iterable[object] = {type(m) for m in model.modules()} if isinstance(model, nn.Module) else [model]
    return frozenset(filter(None, map(_file, kinds)))


def _file(kind: Any) -> str:
    """Where a function, or the forward of a class, is written; "" where that is not known."""
    code = getattr(inspect.unwrap(getattr(kind, "forward", kind)), "__code__", None)
    return code.co_filename if code is not None else ""


def _stands_in(record: Record, files: frozenset[str] | None) -> bool:
    return files is None or not files.isdisjoint(record.noted.files)


def _names(model: nn.Module) -> Names:
    names: Names = {}
    for tensors in (model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False)):
        for name, tensor in tensors:
            names.setdefault(id(tensor), []).append(name)
    return names


def _owner(attribute: Attribute, tensor: Tensor | None, names: Names) -> str | None:
    """What the module that holds an attribute is called in a model; None where it holds no such tensor."""
    known = names.get(id(tensor), ()) if tensor is not None else ()
    ends = [name for name in known if f".{name}".endswith(f".{attribute.path}")]
    return ends[0].removesuffix(attribute.path).rstrip(".") if ends else None


def _joined(*parts: str) -> str:
    return ".".join(filter(None, parts))
