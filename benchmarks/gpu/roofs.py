"""What this device does at most, measured: bytes copied and bf16 matrix products. Everything else is held against it.

A data sheet's figure is reached by nothing; a copy of a tensor far larger than the cache and a large square matmul are
what programs can hope for (S. Williams, A. Waterman and D. Patterson, "Roofline", CACM 2009).
"""

from __future__ import annotations

from functools import partial

import torch

from benchmarks.gpu.store import Results, Row, Setting, Task
from benchmarks.rounds import measured

COPY, MATMUL = "roofs/copy", "roofs/matmul"
_ELEMENTS = {True: 2**20, False: 2**30}  # 2 GiB of bf16 read and as many written
_WIDTH = {True: 256, False: 8192}


def tasks(setting: Setting, results: Results) -> list[Task]:
    """Both roofs."""
    return [Task(COPY, partial(copy, setting), 15), Task(MATMUL, partial(matmul, setting), 15)]


def copy(setting: Setting) -> Row:
    """Bytes read and written a second, by the fastest of many copies."""
    source = torch.ones(_ELEMENTS[setting.toy], dtype=torch.bfloat16, device=setting.device)
    target = torch.empty_like(source)
    rounds = measured({"copy": lambda: target.copy_(source)}, setting.device, seconds=setting.seconds)
    seconds = min(rounds.seconds["copy"])
    return {"bytes_per_second": 2 * source.nbytes / seconds, "elements": source.numel()}


def matmul(setting: Setting) -> Row:
    """FLOPs a second of a square product in bf16, by the fastest of many."""
    width = _WIDTH[setting.toy]
    a, b = (torch.randn(width, width, device=setting.device, dtype=torch.bfloat16) for _ in range(2))
    rounds = measured({"matmul": lambda: a @ b}, setting.device, seconds=setting.seconds)
    return {"flops_per_second": 2 * width**3 / min(rounds.seconds["matmul"]), "width": width}


def bandwidth(results: Results) -> float | None:
    """Bytes a second, where they were measured."""
    return results.rows.get(COPY, {}).get("bytes_per_second")


def compute(results: Results) -> float | None:
    """FLOPs a second, where they were measured."""
    return results.rows.get(MATMUL, {}).get("flops_per_second")
