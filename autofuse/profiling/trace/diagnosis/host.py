"""Finds out what the host does at each moment of a trace: waits for the GPU, copies, allocates, prepares data.

Calls of CUDA's and HIP's runtimes have fixed names, and so has torch's DataLoader. Users' ranges count only for data
loading, and only if their name says that they load.
"""

from __future__ import annotations

import re
from functools import cached_property

from autofuse.ir.operator_categories import is_collective
from autofuse.profiling.trace.intervals import Interval, union
from autofuse.profiling.trace.scope import Scope
from autofuse.profiling.trace.steps import LAUNCHES
from autofuse.profiling.trace.trace import Event

_SYNC = re.compile(r"(cuda|hip|cu)\w*Synchronize", re.IGNORECASE)
_COPY = re.compile(r"(cuda|hip|cu)Memcpy", re.IGNORECASE)
_ALLOCATION = re.compile(
    r"(cuda|hip)(Malloc|Free|HostAlloc|HostRegister|HostUnregister)|cuMem(Create|Map|Unmap|Release|SetAccess)"
)
_LAUNCH = re.compile(r"Launch|Memcpy|Memset", re.IGNORECASE)
# Ranges and Python functions that fetch a batch: torch's loader in stacks, Lightning's profiler, common users' names.
_LOADS = re.compile(
    r"torch/utils/data/dataloader\.py\(\d+\): __next__|train_dataloader_next|"
    r"\b(data_?load(er|ing)?|load_?(data|batch)|next_?batch|get_?batch|fetch_?(data|batch)|batch_?(load|fetch)\w*|"
    r"data_?(time|wait|fetch|prep\w*)|input_?pipeline)\b",
    re.IGNORECASE,
)
_FUNCTIONS = ("python_function", "user_annotation")


class Host:
    """The host's side of a scope. All sets of moments are within the steps.

    shift: nanoseconds by which the host's clock is late: kernels would begin before they were launched.
    """

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self.calls = [e for e in scope.trace.of(*LAUNCHES) if scope.within(e)]
        self.shift = _clock_shift(scope)

    @cached_property
    def has_events(self) -> bool:
        """Whether the trace has operators or calls of the host in the steps."""
        scope = self._scope
        return bool(self.calls) or any(scope.begins(e) for e in scope.trace.of("cpu_op", "python_function"))

    @cached_property
    def linked(self) -> bool:
        """Whether most of the GPU's work is linked to the call that launched it."""
        work = [w for w in self._scope.work if self._scope.within(w)]
        return bool(work) and sum(self._scope.launch_of(w) is not None for w in work) > 0.5 * len(work)

    @cached_property
    def queued(self) -> list[tuple[int, int]]:
        """Pairs of moments: when work was launched, and when it began.

        Without links, and if there are as many launches as there is work, launches are paired with work in order. Then
        the amount of queued work at each moment is still right.
        """
        if self.linked:
            pairs = ((self._scope.launch_of(work), work) for work in self._scope.work)
            return [(launch.end, work.start) for launch, work in pairs if launch is not None]
        ends = sorted(e.end for e in self._scope.trace.of(*LAUNCHES) if _LAUNCH.search(e.name))
        starts = [work.start for work in self._scope.work]
        if not ends or self.graph_launches or len(ends) != len(starts):
            return []
        return list(zip(ends, starts, strict=True))

    @cached_property
    def loader_marks(self) -> list[Event]:
        """The data loader's own ranges within the steps."""
        return [
            e for e in self._scope.trace.of("user_annotation", "cpu_op") if _loads_data(e) and self._scope.within(e)
        ]

    @cached_property
    def data(self) -> list[Interval]:
        """The moments at which a thread that makes steps fetches data."""
        marked = self._scope.marks.of("data")
        threads = {(str(e.process), str(e.thread)) for e in self._threads_with_steps}
        named = [
            e
            for e in self._scope.trace.of(*_FUNCTIONS)
            if _LOADS.search(e.name) and (not threads or (str(e.process), str(e.thread)) in threads)
        ]
        return self._moments([*marked, *((e.start, e.end) for e in named)])

    @cached_property
    def syncs(self) -> list[Event]:
        """Calls that wait until the GPU is done."""
        return [e for e in self.calls if _SYNC.match(e.name)]

    @cached_property
    def waiting(self) -> list[Interval]:
        """The moments at which the host waits for the GPU."""
        return self._moments_of(self.syncs)

    @cached_property
    def copying(self) -> list[Interval]:
        """The moments at which the host is in a copy. From memory that is not pinned, the host itself copies."""
        return self._moments_of(e for e in self.calls if _COPY.match(e.name))

    @cached_property
    def allocations(self) -> list[Event]:
        """Calls that ask the driver for memory or return it."""
        return [e for e in self.calls if _ALLOCATION.match(e.name) and "Async" not in e.name]

    @cached_property
    def allocating(self) -> list[Interval]:
        """The moments within such calls."""
        return self._moments_of(self.allocations)

    @cached_property
    def collectives(self) -> list[Interval]:
        """The moments at which a collective of the host (gloo, MPI) runs, or the host waits at a barrier."""
        scope = self._scope
        ranges = [e for e in scope.trace.of("user_annotation") if is_collective(e.name) and "nccl" not in e.name]
        barriers = [e for e in scope.trace.of("cpu_op") if "barrier" in e.name]
        return self._moments_of([*ranges, *barriers])

    @cached_property
    def launches(self) -> list[Event]:
        """Calls that give the GPU work, in order."""
        return [e for e in self.calls if _LAUNCH.search(e.name)]

    @cached_property
    def graph_launches(self) -> list[Event]:
        """Calls that launch a captured graph."""
        return [e for e in self.launches if "GraphLaunch" in e.name]

    def count(self, events: list[Event]) -> float:
        """Return how many of these events there are in a step."""
        return len(events) / self._scope.steps.count

    def moments_of(self, events: list[Event]) -> list[Interval]:
        """Return when any of these events of the host runs, in the GPU's clock."""
        return self._moments_of(events)

    @property
    def _threads_with_steps(self) -> list[Event]:
        marks = self._scope.trace.of("user_annotation", "cpu_op")
        return [e for e in marks if e.name.startswith(("ProfilerStep#", "enumerate(DataLoader)#"))] or self.calls[:1]

    def _moments_of(self, events: object) -> list[Interval]:
        return self._moments((e.start, e.end) for e in events)  # type: ignore[attr-defined]

    def _moments(self, moments: object) -> list[Interval]:
        shifted = union((start - self.shift, end - self.shift) for start, end in moments)  # type: ignore[attr-defined]
        return self._scope.rest(self._scope.rest(shifted))


def _loads_data(event: Event) -> bool:
    return event.name.startswith(("enumerate(DataLoader)#", "enumerate(DataPipe)#")) or bool(_LOADS.search(event.name))


def _clock_shift(scope: Scope) -> int:
    """Return how early kernels begin before their launches, at the 95th percentile; 0 if no kernel does."""
    early = sorted(
        launch.start - work.start for work in scope.work if (launch := scope.launch_of(work)) and scope.within(work)
    )
    return max(0, early[int(0.95 * (len(early) - 1))]) if early else 0
