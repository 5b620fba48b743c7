"""Reads hardware counters from the text that NVIDIA's DCGM exporter serves: `curl host:9400/metrics > metrics.txt`.

The format is Prometheus' text format, with DCGM's names. A file may contain several scrapes, one after the other.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from statistics import fmean

from autofuse.profiling.trace.trace import Unreadable
from autofuse.results.ladder import Level
from autofuse.results.profile_parts import Power

_LEVELS = {
    "DCGM_FI_PROF_SM_ACTIVE": "sm_active", "DCGM_FI_PROF_SM_OCCUPANCY": "sm_occupancy",
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": "tensor_active", "DCGM_FI_PROF_DRAM_ACTIVE": "dram_active",
    "DCGM_FI_PROF_PIPE_FP64_ACTIVE": "fp64_active", "DCGM_FI_PROF_PIPE_FP32_ACTIVE": "fp32_active",
    "DCGM_FI_PROF_PIPE_FP16_ACTIVE": "fp16_active",
}  # fmt: skip
_POWER = "DCGM_FI_DEV_POWER_USAGE"
_SAMPLE = re.compile(r"(DCGM_FI_\w+)\s*(?:\{(.*)\})?\s+([-+.\deE]+|[-+]?Inf|NaN)(?:\s+-?\d+)?\s*$")
_GPU = re.compile(r'(?:^|,)\s*(?:UUID|gpu|uuid)="((?:[^"\\]|\\.)*)"')


def is_dcgm_text(head: bytes) -> bool:
    """Whether a file that begins with `head` is such a text."""
    return b"DCGM_FI_" in head and not head.lstrip().startswith((b"{", b"["))


def counters_of_text(path: Path) -> tuple[dict[str, Level], Power]:
    """Return the levels that DCGM counts and the power of a GPU, as means over GPUs and scrapes.

    The text does not show that it was scraped while the trace's steps ran. If you pass both, you assert it.

    Raises:
        Unreadable: The text has none of the metrics.
        OSError: The file cannot be read.
    """
    samples: dict[str, list[float]] = defaultdict(list)
    gpus: dict[str, set[str]] = defaultdict(set)
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        found = _SAMPLE.match(line)
        if found is None:
            continue
        name, labels, value = found[1], found[2] or "", float(found[3])
        if name in _LEVELS and 0 <= value <= 1 or name == _POWER and 0 < value < 1e5:
            samples[name].append(value)
            gpus[name].add(",".join(_GPU.findall(labels)))
    if not samples:
        raise Unreadable(
            f"{path} has none of DCGM's profiling metrics: configure the exporter to serve DCGM_FI_PROF_SM_ACTIVE and "
            "the others (its dcp-metrics-included.csv)."
        )
    levels = {
        _LEVELS[name]: Level(_LEVELS[name], fmean(values), _basis(len(values), len(gpus[name])))
        for name, values in samples.items()
        if name in _LEVELS
    }
    watts = samples.get(_POWER)
    source = _basis(len(watts), len(gpus[_POWER])) if watts else ""
    return levels, Power(fmean(watts), source=source) if watts else Power(reason=f"the text has no {_POWER}")


def _basis(count: int, gpus: int) -> str:
    samples = "1 sample" if count == 1 else f"{count} samples"
    return f"DCGM exporter, {samples} of {'1 GPU' if gpus == 1 else f'{gpus} GPUs'}"
