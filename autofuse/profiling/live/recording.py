"""Records a trace of several steps with torch.profiler. Every module call and every step is marked in it.

autofuse.profiling.trace reads the trace, as it reads files. Recording of memory and shapes is off, because it would
stretch the steps. docs/profiling.md lists the costs of the instruments.
"""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from autofuse.measure.memory import quiet_profiler
from autofuse.measure.timing import synchronize
from autofuse.profiling.live.module_calls import ModuleNames, around_calls
from autofuse.profiling.trace import trace as traces
from autofuse.profiling.trace.event_owners import MODULE, WINDOW
from autofuse.profiling.trace.overhead import RecordingCost
from autofuse.profiling.trace.trace import Trace
from autofuse.results.atomic_files import put
from autofuse.torch_private import RecordFunctionFast, is_profiler_enabled

_ONE_AT_A_TIME = (
    "The steps cannot be recorded: another torch.profiler runs in or around them, and only one can run at a time. "
    "Remove it while autofuse profiles."
)
_PROBE = nn.Identity()
_PROBED = "(probe)"
_REPEATS, _TIMES = 7, 40
_Probed = tuple[float, float]  # seconds of a small operator, and of a call of a module that computes nothing

# A cheap range: it dispatches no operator, so code that watches operators does not see it.
_RANGE: Any = RecordFunctionFast


class Recording:
    """Records the steps of a block. Afterwards there are `.trace` and `.save(path)`.

        with Recording(names, device) as recording:
            warm_up()  # recorded but not used: the profiler's first calls are slow
            for _ in range(3):
                with recording.step():
                    step()

    For a script that runs by itself, call `next_step()` at the boundaries of its steps instead of entering `step()`.
    """

    def __init__(self, names: ModuleNames, device: torch.device | str) -> None:
        """`names`: the modules whose calls are marked. `device`: the device of the steps; its kernels are recorded."""
        self._names = names
        self._device = torch.device(device)
        self._bare: list[_Probed] = []
        self._recorded: list[_Probed] = []
        self._steps = 0
        self._open: AbstractContextManager[Any] | None = None
        self._block = ExitStack()
        self._content = b""  # gzipped
        self._missing = "There is no trace yet: it is written at the end of the recording block."
        self._trace: Trace | None = None

    def __enter__(self) -> Recording:
        """Start recording.

        Raises:
            RuntimeError: Another torch profiler runs, or another block watches modules.
        """
        with ExitStack() as block:
            block.enter_context(quiet_profiler())
            profiler = profile(activities=_activities(self._device))
            synchronize(self._device)
            self._bare.append(_probe_seconds())
            _start_profiler(profiler)
            block.callback(self._stop_profiler, profiler)
            self._recorded.append(self._recorded_probe_seconds())
            block.enter_context(around_calls(self._names, self._range))
            self._block = block.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Stop recording.

        Raises:
            RuntimeError: The steps ran their own profiler, which ended this one.
        """
        try:
            self.end_step()  # also raises an error of the device
        finally:
            self._block.close()
        if kind is None and not self._content:
            raise RuntimeError(self._missing)

    @contextmanager
    def step(self) -> Iterator[None]:
        """One step, from an idle device to an idle device."""
        self.next_step()
        try:
            yield
        finally:
            self.end_step()

    def next_step(self) -> None:
        """Begin a step, and end the previous one if it is open."""
        self.end_step()
        self._open = record_function(f"{WINDOW}{self._steps}")
        self._open.__enter__()  # type: ignore[no-untyped-call]
        self._steps += 1

    def end_step(self) -> None:
        """End the open step when the device is idle. Do nothing if no step is open."""
        if self._open is not None:
            synchronize(self._device)
            self._open.__exit__(None, None, None)
            self._open = None

    @property
    def cost(self) -> RecordingCost:
        """The time to record one event and one module call on this machine, for overhead.remove_recording_cost."""
        bare, recorded = zip(*self._bare, strict=True), zip(*self._recorded, strict=True)
        pairs = (min(longer) - min(shorter) for longer, shorter in zip(recorded, bare, strict=True))
        operator, call = (max(0.0, longer) for longer in pairs)
        return RecordingCost(operator / 2, max(0.0, call - operator / 2))

    @property
    def trace(self) -> Trace:
        """The recorded trace. Raises RuntimeError before the end of the block."""
        if self._trace is None:
            self._trace = traces.parse_trace(json.loads(gzip.decompress(self._written_content())), "recording")
        return self._trace

    def save(self, path: str | Path) -> None:
        """Write a Chrome trace for Perfetto or chrome://tracing, gzipped if the name ends in .gz.

        An existing file is replaced completely or not at all.

        Raises:
            OSError: The file cannot be written.
            RuntimeError: The block has not ended.
        """
        content, target = self._written_content(), Path(path)
        put(str(target), content if target.suffix == ".gz" else gzip.decompress(content))

    def _range(self, name: str, module: nn.Module) -> AbstractContextManager[Any]:
        return _RANGE(MODULE + name)  # type: ignore[no-any-return]

    def _recorded_probe_seconds(self) -> _Probed:
        """As _probe_seconds, while events are recorded: in the trace before the first step, under a separate name."""
        with (
            record_function("autofuse: what recording costs"),
            around_calls(ModuleNames({_PROBED: _PROBE}), self._range),
        ):
            return _probe_seconds()

    def _stop_profiler(self, profiler: profile) -> None:
        if not is_profiler_enabled():
            self._missing = _ONE_AT_A_TIME
            return
        self._recorded.append(self._recorded_probe_seconds())
        profiler.stop()
        self._bare.append(_probe_seconds())
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            profiler.export_chrome_trace(str(path))
            self._content = gzip.compress(path.read_bytes(), compresslevel=4)

    def _written_content(self) -> bytes:
        if not self._content:
            raise RuntimeError(self._missing)
        return self._content


def _activities(device: torch.device) -> list[ProfilerActivity]:
    known = {"cuda": "CUDA", "xpu": "XPU"}
    activity = getattr(ProfilerActivity, known.get(device.type, ""), None)
    return [ProfilerActivity.CPU, *([activity] if activity is not None else [])]


def _probe_seconds() -> _Probed:
    """Return the seconds of a small operator (two events) and of an empty module's call, the shortest of several."""
    small = torch.ones(1, device="cpu")
    with torch.no_grad():
        return _shortest_of_several(lambda: torch.relu(small)), _shortest_of_several(lambda: _PROBE(small))


def _shortest_of_several(action: Callable[[], object]) -> float:
    seconds = []
    for _ in range(_REPEATS):
        start = perf_counter()
        for _ in range(_TIMES):
            action()
        seconds.append((perf_counter() - start) / _TIMES)
    return min(seconds)


def _start_profiler(profiler: profile) -> None:
    # torch starts a second profiler silently, and the trace of the first is lost.
    if is_profiler_enabled():
        raise RuntimeError(_ONE_AT_A_TIME)
    profiler.start()
