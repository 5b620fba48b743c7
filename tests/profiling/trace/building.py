"""Builds traces in Kineto's format, from times in microseconds that are easy to compute with by hand."""

from __future__ import annotations

from typing import Any

from autofuse.profiling.trace.trace import Trace, parse_trace

H100 = {
    "id": 0, "name": "NVIDIA H100 80GB HBM3", "computeMajor": 9, "computeMinor": 0, "numSms": 132, "warpSize": 32,
    "maxThreadsPerMultiprocessor": 2048, "regsPerMultiprocessor": 65536, "sharedMemPerBlock": 49152,
    "sharedMemPerMultiprocessor": 233472,
}  # fmt: skip
SECOND = 1_000_000.0  # in microseconds
Entry = dict[str, Any]


def entry(
    name: str, category: str, start: float, duration: float, thread: Any = 1, process: Any = 1, **args: Any
) -> Entry:
    """One complete event."""
    return {
        "ph": "X", "name": name, "cat": category, "ts": start, "dur": duration, "pid": process, "tid": thread,
        "args": {key.replace("_", " "): value for key, value in args.items()},
    }  # fmt: skip


def step(number: int, start: float, duration: float) -> Entry:
    """A step that the profiler marks."""
    return entry(f"ProfilerStep#{number}", "user_annotation", start, duration)


def op(name: str, start: float, duration: float, thread: Any = 1) -> Entry:
    """An operator on the host."""
    return entry(name, "cpu_op", start, duration, thread)


def mark(name: str, start: float, duration: float, thread: Any = 1, **args: Any) -> Entry:
    """A range on the host, of the optimizer, the loader or a backend's collective."""
    return entry(name, "user_annotation", start, duration, thread, **args)


def launch(
    correlation: int, start: float, duration: float = 1.0, thread: Any = 1, name: str = "cudaLaunchKernel"
) -> Entry:
    """The host's call that launches GPU work."""
    return entry(name, "cuda_runtime", start, duration, thread, correlation=correlation)


def kernel(
    start: float, duration: float, blocks: int | None = 132, threads: int = 1024, *, name: str = "kernel",
    stream: int = 7, device: int = 0, category: str = "kernel", **args: Any,
) -> Entry:  # fmt: skip
    """A kernel with so many blocks of so many threads. blocks None: its shape is unknown."""
    shape: Entry = {} if blocks is None else {"grid": [blocks, 1, 1], "block": [threads, 1, 1]}
    made = entry(name, category, start, duration, stream, device, device=device, stream=stream, **args)
    made["args"] |= shape
    return made


def trace(
    *entries: Entry, devices: list[Entry] | None = None, rank: int | None = None, world: int | None = None
) -> Trace:
    """A trace of these events, in any order, on an H100 by default."""
    content: Entry = {"deviceProperties": [H100] if devices is None else devices, "traceEvents": list(entries)}
    if rank is not None:
        content["distributedInfo"] = {"rank": rank, "world_size": world}
    return parse_trace(content, "trace.json")
