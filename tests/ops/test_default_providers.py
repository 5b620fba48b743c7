"""The documented defaults are those of the operations."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from autofuse.kernels.operation import OPERATIONS
from autofuse.kernels.packages import COMPILER, FLEX, TORCH, TRITON
from autofuse.kernels.policy import using
from autofuse.ops.default_providers import default_order, markdown

PAGE = Path(__file__).parents[2] / "docs" / "kernels.md"


def test_the_table_in_the_documentation_is_current() -> None:
    (table,) = re.findall(r"(\| operation \| CUDA \| CPU \| elsewhere .*?\n)\n", PAGE.read_text(), re.DOTALL)
    assert table == markdown(), (
        "docs/kernels.md: put what `python -m autofuse.ops.default_providers` writes in its place"
    )


def test_torch_is_the_last_default_and_other_packages_are_no_default() -> None:
    for operation in OPERATIONS.values():
        for device in ("cpu", "cuda", "mps"):
            order = default_order(operation, device)
            assert order[-1] == "torch"
            assert {operation.provider(name).package for name in order} <= {TORCH, TRITON, COMPILER, FLEX}


def test_calls_follow_that_order_without_measurements() -> None:
    operation = OPERATIONS["rms_norm"]
    with using(measured=False):
        taken = operation._order(torch.zeros(2**10, 2**10), None, 1e-6)
    there = [p.name for p in operation.providers if not p.package.missing()]
    assert [p.name for p in taken] == [n for n in default_order(operation, "cpu") if n in there]
