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
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from autofuse.measure.timing import seconds_of
from autofuse.profiling.peaks import peak_of
from benchmarks.gpu.store import Results, Row, Setting, Task

MODEL = "predictions/model"
_WIDTHS = {True: (64,), False: (768, 1024, 2048, 4096, 5120, 8192, 11008, 16384)}
_ENTRIES = {True: 2**10, False: 2**26}
_RUNS = {True: 1, False: 30}
_ROOT = Path(__file__).parents[2]


def tasks(setting: Setting, results: Results) -> list[Task]:
    """The model's row, and one for each call and width."""
    from tools.ahead.predict_cases import cases

    found = [Task(MODEL, partial(predict_row, setting), 240)]
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
    if setting.device.type == "cuda":
        from autofuse.measure.device_timing import CudaClock

        clock = CudaClock(setting.device)
        host = min(clock.host_seconds(call) for _ in range(5))
        found = sorted(clock.device_seconds(call, host) for _ in range(_RUNS[setting.toy]))
    else:
        host, found = None, sorted(seconds_of(call, setting.device) for _ in range(_RUNS[setting.toy]))
    return {"case": name, "width": width, "seconds": found[len(found) // 2], "host_seconds": host, "runs": len(found)}


def _ones(device: torch.device, *shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """A tensor of ones: valid class indices, a valid seed, and no values that are slow for kernels."""
    return torch.ones(shape, dtype=dtype, device=device)


def compare_with_measured(results: Results) -> list[tuple[str, int, float, float, str]]:
    """Call, width, predicted and measured seconds, and the predicted limit, for all calls that have both."""
    model = results.rows.get(MODEL, {}).get("seconds", {})
    found = []
    for key, works_predicted in results.rows.items():
        if (
            key.startswith("predictions/")
            and "case" in works_predicted
            and (guess := model.get(f"{works_predicted['case']}/{works_predicted['width']}"))
        ):
            found.append(
                (
                    works_predicted["case"],
                    works_predicted["width"],
                    guess["seconds"],
                    works_predicted["seconds"],
                    guess["limit"],
                )
            )
    return found


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
            works_predicted = [predict(work, gpu) for _, work in works(call, gpu)]
            seconds = sum(p.seconds for p in works_predicted)
            predictions[f"{case}/{width}"] = {
                "seconds": seconds,
                "limit": max(works_predicted, key=lambda p: p.seconds).limit,
            }
    known = peak is not None and gpu.peak == peak
    print(
        json.dumps({"device": name, "predicted_as": gpu.name, "known": known, "fixed": FIXED, "seconds": predictions})
    )
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
