"""Measures every prediction of the performance model: kernels of rows by the GPU's own clock, and the model's error.

The predictions are computed in their own process, because Triton's driver is replaced there by one for GPUs that are
not present: `python -m benchmarks.gpu.predictions NAME` prints them for the GPU of that name. The calls are those of
tools/ahead/predict_cases.py, here on tensors with data. For a GPU that the model does not know, it uses the one of its
architecture with the nearest bandwidth, and the row says so.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from autofuse.measure.device_timing import CudaClock
from autofuse.measure.timing import seconds_of
from autofuse.profiling.peaks import peak_of
from benchmarks.gpu.store import Results, Row, Setting, Task

MODEL, COPIES = "predictions/model", "predictions/copy"
_WIDTHS = {True: (64,), False: (768, 1024, 2048, 4096, 5120, 8192, 11008, 16384)}
_ENTRIES = {True: 2**10, False: 2**26}
_RUNS = {True: 1, False: 30}
# Bytes read and written by copies, to which the calls are compared. Calls of 2^26 entries move 2^28 to 2^30 bytes.
_COPIES = {True: (2**12, 2**13), False: (2**26, 2**27, 2**28, 2**29, 2**30)}
_ROOT = Path(__file__).parents[2]


def tasks(setting: Setting, results: Results) -> list[Task]:
    """The model's row, and one for each call and width."""
    from tools.ahead.predict_cases import cases

    found = [Task(MODEL, partial(predict_row, setting), 240)]
    found += [Task(f"{COPIES}/{moved}", partial(copy_row, moved, setting), 2) for moved in _COPIES[setting.toy]]
    for width in _WIDTHS[setting.toy]:
        names = cases(width, _ENTRIES[setting.toy])
        found += [Task(f"predictions/{name}/{width}", partial(row, name, width, setting), 3) for name in names]
    return found


def predict_row(setting: Setting) -> Row:
    """Predicted seconds and the limiting resource for this device, by call and width."""
    name = torch.cuda.get_device_name(setting.device) if setting.device.type == "cuda" else "NVIDIA H100 80GB HBM3"
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    sizes = [str(_ENTRIES[setting.toy]), *(str(width) for width in _WIDTHS[setting.toy])]
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.gpu.predictions", name, *sizes]
    process = subprocess.run(command, cwd=_ROOT, env=environment, capture_output=True, text=True)
    if process.returncode:
        raise RuntimeError(f"The prediction failed: {(process.stderr.strip().splitlines() or ['no reason given'])[-1]}")
    found: Row = json.loads(process.stdout)
    return found


def row(name: str, width: int, setting: Setting) -> Row:
    """Seconds of one call on the device: the median of many calls with a cold cache."""
    from tools.ahead.predict_cases import cases

    make = partial(_ones, setting.device)
    call = cases(width, _ENTRIES[setting.toy], make)[name]
    call()  # compiles
    return {"case": name, "width": width, **_time(call, setting)}


def copy_row(moved: int, setting: Setting) -> Row:
    """Seconds of a copy that reads and writes `moved` bytes together, timed like the calls."""
    source = _ones(setting.device, moved // 4)
    target = torch.empty_like(source)
    return {"moved": moved, **_time(lambda: target.copy_(source), setting)}


def _time(call: Callable[[], object], setting: Setting) -> Row:
    """The median of the device's seconds, and the least of the host's; on a CPU, of the seconds of the call."""
    if setting.device.type == "cuda":
        clock = CudaClock(setting.device)
        host = min(clock.host_seconds(call) for _ in range(5))
        found = sorted(clock.device_seconds(call, host) for _ in range(_RUNS[setting.toy]))
    else:
        host, found = None, sorted(seconds_of(call, setting.device) for _ in range(_RUNS[setting.toy]))
    return {"seconds": found[len(found) // 2], "host_seconds": host, "runs": len(found)}


def _ones(device: torch.device, *shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """A tensor of ones: valid class indices, a valid seed, and no values that are slow for kernels."""
    return torch.ones(shape, dtype=dtype, device=device)


@dataclass(frozen=True)
class Compared:
    """One call, predicted and measured.

    Attributes:
        case: the name of the call.
        width: entries in a row.
        predicted: seconds that the model predicts.
        measured: seconds on the device.
        limit: what the model predicts to limit the call.
        share: the measured share of the speed of a copy of as many bytes; None without measured copies.
    """

    case: str
    width: int
    predicted: float
    measured: float
    limit: str
    share: float | None


def compare_with_measured(results: Results) -> list[Compared]:
    """All calls that have both a prediction and a measurement."""
    model = results.rows.get(MODEL, {}).get("seconds", {})
    found = []
    for key, row in results.rows.items():
        if not key.startswith("predictions/") or "case" not in row:
            continue
        if guess := model.get(f"{row['case']}/{row['width']}"):
            copy = copy_seconds(results.rows, guess["moved"])
            share = copy and copy / row["seconds"]
            found.append(Compared(row["case"], row["width"], guess["seconds"], row["seconds"], guess["limit"], share))
    return found


def copy_seconds(rows: Mapping[str, Row], moved: float) -> float | None:
    """The seconds of a copy of as many bytes, on the line through the measured copies of the nearest sizes."""
    copies = sorted(
        (row["moved"], row["seconds"])
        for key, row in rows.items() if key.startswith(COPIES) and "moved" in row
    )  # fmt: skip
    if len(copies) < 2:
        return None
    above = min(max(1, sum(size < moved for size, _ in copies)), len(copies) - 1)
    (few, short), (many, long) = copies[above - 1 : above + 1]
    return float(short + (long - short) * (moved - few) / (many - few))


def _main(arguments: list[str]) -> int:
    """Prints the model's predictions for a GPU, for tensors of this many entries, at some widths."""
    from tools.ahead.predict_cases import cases
    from tools.ahead.predict_gpus import FIXED, GPUS, Gpu
    from tools.ahead.predict_launches import works
    from tools.ahead.predict_model import predicted as predict

    name, entries, *widths = arguments
    peak = peak_of(name)

    def distance(gpu: Gpu) -> float:
        return 0.0 if peak is None else abs(gpu.peak.bytes_per_second - peak.bytes_per_second)

    gpu = min(GPUS, key=distance)
    predictions: dict[str, Any] = {}
    for width in map(int, widths):
        for case, call in cases(width, int(entries)).items():
            launches = [work for _, work in works(call, gpu)]
            works_predicted = [predict(work, gpu) for work in launches]
            seconds = sum(p.seconds for p in works_predicted)
            predictions[f"{case}/{width}"] = {
                "seconds": seconds,
                "moved": launches[0].moved,
                "limit": max(works_predicted, key=lambda p: p.seconds).limit,
            }
    known = peak is not None and gpu.peak == peak
    print(
        json.dumps({"device": name, "predicted_as": gpu.name, "known": known, "fixed": FIXED, "seconds": predictions})
    )
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
