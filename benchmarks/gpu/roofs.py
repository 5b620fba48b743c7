"""The most that this device achieves, measured: bytes copied and bf16 matrix products.

All other figures are compared to it. No program reaches the figures of a data sheet. A copy of a tensor much larger
than the cache and a large square matmul are realistic limits (S. Williams, A. Waterman and D. Patterson, "Roofline",
CACM 2009).
"""

from __future__ import annotations

from functools import partial

import torch

from benchmarks.gpu.store import Results, Row, Setting, Task
from benchmarks.rounds import time_in_rounds

COPY, MATMUL = "roofs/copy", "roofs/matmul"
_ELEMENTS = {True: 2**20, False: 2**30}  # 2 GiB of bf16 are read, and as many written
_WIDTH = {True: 256, False: 8192}


def tasks(setting: Setting, results: Results) -> list[Task]:
    """Both roofs."""
    return [Task(COPY, partial(copy, setting), 15), Task(MATMUL, partial(matmul, setting), 15)]


def copy(setting: Setting) -> Row:
    """Bytes read and written per second, from the fastest of many copies."""
    source = torch.ones(_ELEMENTS[setting.toy], dtype=torch.bfloat16, device=setting.device)
    target = torch.empty_like(source)
    rounds = time_in_rounds({"copy": lambda: target.copy_(source)}, setting.device, seconds=setting.seconds)
    seconds = min(rounds.seconds["copy"])
    return {"bytes_per_second": 2 * source.nbytes / seconds, "elements": source.numel()}


def matmul(setting: Setting) -> Row:
    """FLOPs per second of a square product in bf16, from the fastest of many."""
    width = _WIDTH[setting.toy]
    a, b = (torch.randn(width, width, device=setting.device, dtype=torch.bfloat16) for _ in range(2))
    rounds = time_in_rounds({"matmul": lambda: a @ b}, setting.device, seconds=setting.seconds)
    return {"flops_per_second": 2 * width**3 / min(rounds.seconds["matmul"]), "width": width}


def bandwidth(results: Results) -> float | None:
    """Bytes per second, if measured."""
    return results.rows.get(COPY, {}).get("bytes_per_second")


def compute(results: Results) -> float | None:
    """FLOPs per second, if measured."""
    return results.rows.get(MATMUL, {}).get("flops_per_second")
