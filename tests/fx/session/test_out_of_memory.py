"""If memory runs out during optimize, nothing is raised, the model computes the same, and the report says so."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import autofuse
from tests.fx.conftest import Gpt

_PRODUCTS = """
import torch

class OutOfMemory:
    def __init__(self):
        self.count, self.at = 0, 0

    def tick(self):
        self.count += 1
        if self.count == self.at:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 8.00 GiB.")

    def product(self, a, b):
        self.tick()
        return torch.bmm(a[None], b[None])[0]

    def sum_of_product(self, bias, a, b, *, beta=1, alpha=1):
        self.tick()
        wide = bias.expand(a.shape[0], b.shape[1])
        return torch.baddbmm(wide[None], a[None], b[None], beta=beta, alpha=alpha)[0]
"""


@pytest.fixture(scope="module")
def memory() -> Iterator[Any]:
    """Raises an out-of-memory error at matrix product number `at`. `count` counts the products.

    It is registered as a kernel, because autofuse would restore state that user code changes while its forward is
    tried.
    """
    space: dict[str, Any] = {"__name__": "autofuse.kernels.out_of_memory"}
    exec(compile(_PRODUCTS, "products", "exec"), space)
    found = space["OutOfMemory"]()
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that a kernel is replaced
        library.impl("mm", found.product, "CPU")
        library.impl("addmm", found.sum_of_product, "CPU")
    yield found
    library._destroy()


def optimized(memory: Any, at: int, inputs: Tensor, **options: object) -> tuple[Gpt, int]:
    """Optimize a model while memory runs out at one product (0: none). Returns it and the number of products."""
    torch.manual_seed(0)
    model = Gpt()
    memory.count, memory.at = 0, at
    try:
        autofuse.optimize(model, inputs, **options)  # type: ignore[arg-type]
    finally:
        memory.at = 0
    return model, memory.count


def is_right(model: Gpt, inputs: Tensor) -> bool:
    torch.manual_seed(0)
    plain = Gpt().train(model.training)
    one, other = plain(inputs), model(inputs)
    one.square().mean().backward()
    other.square().mean().backward()
    pairs = zip(plain.parameters(), model.parameters(), strict=True)
    alike = all(
        torch.allclose(a.grad, b.grad, atol=1e-5) for a, b in pairs if a.grad is not None and b.grad is not None
    )
    return alike and torch.allclose(one, other, atol=1e-5)


def check_everywhere(
    memory: Any, inputs: Tensor, parts: int, monkeypatch: pytest.MonkeyPatch, folder: Path, **options: object
) -> None:
    """Memory runs out at `parts` points from the first product to the last. Each report names the error."""
    for name in ("first", "second"):  # the first run does the work that is done once in a process
        monkeypatch.setenv("AUTOFUSE_CACHE_DIR", str(folder / name))
        _, count = optimized(memory, 0, inputs, **options)
    codes = set[str]()
    for number in range(parts):
        monkeypatch.setenv("AUTOFUSE_CACHE_DIR", str(folder / str(number)))
        at = 1 + number * (count - 1) // max(1, parts - 1)
        model, _ = optimized(memory, at, inputs, **options)
        assert is_right(model, inputs), f"at product {at}"
        report = autofuse.report(model)
        assert "internal-error" not in {s.reason_code for s in report}, f"at product {at}"
        codes |= {s.reason_code for s in report if "emory" in s.reason}
        codes |= {"in part" for s in report if "for memory ran out" in s.choice}
        codes |= {"not timed" for step in report.steps if "memory" in (step.not_timed or "")}
    assert codes & {"out-of-memory", "in part", "whole-not-verified"} and len(codes) > 1, codes


def test_a_failing_allocation_is_handled_where_it_happens(
    memory: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.CRITICAL, "autofuse"):
        check_everywhere(memory, torch.randint(0, 20, (2, 6)), 6, monkeypatch, tmp_path, tune=False)


@pytest.mark.night
@pytest.mark.parametrize("tune", [False, True])
@pytest.mark.parametrize("shape", [(2, 6), (6, 32)], ids=str)
def test_a_failing_allocation_is_handled_at_each_of_many_points(
    memory: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tune: bool, shape: tuple[int, int]
) -> None:
    check_everywhere(memory, torch.randint(0, 20, shape), 40, monkeypatch, tmp_path, tune=tune)
