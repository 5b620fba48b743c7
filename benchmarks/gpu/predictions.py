"""Every prediction of the performance model, measured: row-wise kernels by the GPU's own clock, and the model's error.

What is predicted is computed in a process of its own, for Triton's driver is replaced there by one of GPUs that are not
present: `python -m benchmarks.gpu.predictions NAME` prints it for the GPU of that name. The calls are those of
tools/ahead/predict_cases.py, here with tensors that have data. A GPU that the model does not know is predicted as the
one of its architecture that is nearest in bandwidth, and the row says so.
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

    found = [Task(MODEL, partial(predicted, setting), 240)]
    for width in _WIDTHS[setting.toy]:
        names = cases(width, _ENTRIES[setting.toy])
        found += [Task(f"predictions/{name}/{width}", partial(row, name, width, setting), 3) for name in names]
    return found


def predicted(setting: Setting) -> Row:
    """Seconds and what binds, by call and width, as the model has them for this device."""
    name = torch.cuda.get_device_name(setting.device) if setting.device.type == "cuda" else "NVIDIA H100 80GB HBM3"
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    sizes = [str(_ENTRIES[setting.toy]), *(str(width) for width in _WIDTHS[setting.toy])]
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.gpu.predictions", name, *sizes]
    done = subprocess.run(command, cwd=_ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"The model could not be asked: {(done.stderr.strip().splitlines() or ['no reason'])[-1]}")
    found: Row = json.loads(done.stdout)
    return found


def row(name: str, width: int, setting: Setting) -> Row:
    """Seconds of one call on the device: the median of many with a cold cache."""
    from tools.ahead.predict_cases import cases

    make = partial(_filled, setting.device)
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


def _filled(device: torch.device, *shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Ones: a class for each row of logits, a seed, and no number that a kernel takes longer for than for another."""
    return torch.ones(shape, dtype=dtype, device=device)


def compared(results: Results) -> list[tuple[str, int, float, float, str]]:
    """Call, width, predicted and measured seconds, and what was predicted to bind, of all that have both."""
    model = results.rows.get(MODEL, {}).get("seconds", {})
    found = []
    for key, made in results.rows.items():
        if (
            key.startswith("predictions/")
            and "case" in made
            and (guess := model.get(f"{made['case']}/{made['width']}"))
        ):
            found.append((made["case"], made["width"], guess["seconds"], made["seconds"], guess["limit"]))
    return found


def _main(arguments: list[str]) -> int:
    """Print what the model says of a GPU, for tensors of so many entries, at some widths."""
    from tools.ahead.predict_cases import cases
    from tools.ahead.predict_gpus import FIXED, GPUS, Gpu
    from tools.ahead.predict_launches import works
    from tools.ahead.predict_model import predicted as predict

    name, entries, *widths = arguments
    peak = peak_of(name)

    def distance(gpu: Gpu) -> float:
        return 0.0 if peak is None else abs(gpu.peak.bytes_per_second - peak.bytes_per_second)

    gpu = min(GPUS, key=distance)
    said: dict[str, Any] = {}
    for width in map(int, widths):
        for case, call in cases(width, int(entries)).items():
            made = [predict(work, gpu) for _, work in works(call, gpu)]
            seconds = sum(p.seconds for p in made)
            said[f"{case}/{width}"] = {"seconds": seconds, "limit": max(made, key=lambda p: p.seconds).limit}
    known = peak is not None and gpu.peak == peak
    print(json.dumps({"device": name, "predicted_as": gpu.name, "known": known, "fixed": FIXED, "seconds": said}))
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
