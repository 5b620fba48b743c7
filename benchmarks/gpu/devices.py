"""Checks that kernels run on the device of their tensors: on a second device, while the first is current."""

from __future__ import annotations

from functools import partial

import torch

from benchmarks.cases import cases_of
from benchmarks.gpu.correctness import DTYPES, odd_model
from benchmarks.gpu.correctness import row as errors_of_providers
from benchmarks.gpu.store import Results, Row, Setting, Task


def tasks(setting: Setting, results: Results) -> list[Task]:
    """One for each case without dropout, in bf16."""
    cases_without_dropout = [case for case in cases_of(odd_model(setting)) if not case.draws]
    return [Task(f"devices/{case.name}", partial(row, case.name, setting), 15) for case in cases_without_dropout]


def row(name: str, setting: Setting) -> Row:
    """The errors of every provider on the second device; "absent" if there is none."""
    if setting.device.type != "cuda" or torch.cuda.device_count() < 2:
        return {"absent": "There is no second device."}
    case = next(c for c in cases_of(odd_model(setting)) if c.name == name)
    current = torch.cuda.current_device()
    other = torch.device("cuda", (current + 1) % torch.cuda.device_count())
    result = errors_of_providers(case, DTYPES["bf16"], Setting(other, setting.toy))
    return result | {"current": current, "device": other.index, "stayed": torch.cuda.current_device() == current}
