"""Reads the files given to `autofuse profile --trace`: traces, memory snapshots, counters.

The first bytes decide, because names say little: a memory snapshot may end in .pickle, .pkl or nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from autofuse.profiling.trace.inputs import dcgm_text, memory_snapshot, nsight_systems
from autofuse.profiling.trace.inputs.rocprof import KEY, traces_of_rocprof, with_categories
from autofuse.profiling.trace.trace import (
    Trace,
    Unreadable,
    garbage_collection_off,
    parse_trace,
    read_json,
    require_events,
)
from autofuse.results.ladder import Level
from autofuse.results.profile_parts import Memory, Power

ENDINGS = (".json", ".json.gz", ".sqlite", ".pickle", ".pkl", ".prom")  # of the files that are read from a folder
_HEAD = 1 << 16  # bytes that are read to recognise a file


@dataclass
class Inputs:
    """The contents of all files.

    traces: one for each process.
    memory: from the snapshot with the highest peak; None without a snapshot.
    levels, power: from DCGM's exporter.
    notes: further facts from the snapshot.
    """

    traces: list[Trace] = field(default_factory=list)
    memory: Memory | None = None
    levels: dict[str, Level] = field(default_factory=dict)
    power: Power | None = None
    notes: tuple[str, ...] = ()


def inputs_of(paths: Sequence[Path]) -> Inputs:
    """Read all files.

    Raises:
        Unreadable: A file is none of these kinds.
        OSError: A file cannot be read.
    """
    found = Inputs()
    for path in paths:
        with path.open("rb") as file:
            head = file.read(_HEAD)
        if head.startswith(nsight_systems.MAGIC):
            found.traces += [require_events(t, path) for t in nsight_systems.traces_of_nsight_systems(path)]
        elif head.startswith(memory_snapshot.MAGIC):
            _keep_larger(memory_snapshot.snapshot_of(path), found)
        elif dcgm_text.is_dcgm_text(head):
            found.levels, found.power = dcgm_text.counters_of_text(path)
        else:
            found.traces += _inputs_of_json(path)
    return found


def _keep_larger(snapshot: memory_snapshot.MemorySnapshot, found: Inputs) -> None:
    if found.memory is None or (snapshot.memory.peak_bytes or 0) > (found.memory.peak_bytes or 0):
        found.memory, found.notes = snapshot.memory, snapshot.notes


def _inputs_of_json(path: Path) -> list[Trace]:
    with garbage_collection_off():
        content = read_json(path)
        if isinstance(content, dict) and KEY in content:
            return [require_events(trace, path) for trace in traces_of_rocprof(content, path.name)] or _reject_empty(
                path
            )
        content = with_categories(content) if isinstance(content, dict) else content
        return [require_events(parse_trace(content, path.name), path)]


def _reject_empty(path: Path) -> list[Trace]:
    raise Unreadable(f"{path} has no process: its {KEY} is empty.")
