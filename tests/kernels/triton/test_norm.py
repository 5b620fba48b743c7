"""The Triton kernels of norms, in Triton's interpreter, against the formula in double."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

from tests.kernels.norms import EPS, SEED, Case, check

SINGLE, BRAIN, HALF = torch.float32, torch.bfloat16, torch.float16


@pytest.fixture(scope="module")
def kernel() -> ModuleType:
    return pytest.importorskip("autofuse.kernels.triton.norm")


@pytest.mark.parametrize("dtype", [SINGLE, BRAIN, HALF])
@pytest.mark.parametrize("residual, p", [(False, 0.0), (True, 0.0), (True, 0.3), (False, 0.3)])
@pytest.mark.parametrize("centred", [True, False])
def test_every_combination_of_summands(
    kernel: ModuleType, centred: bool, residual: bool, p: float, dtype: torch.dtype
) -> None:
    check(kernel, Case(5, 37, dtype, centred, residual, p=p))


CASES = {
    "no weight": Case(3, 20, weight=False),
    "no bias": Case(3, 20, bias=False, centred=False),
    "neither": Case(3, 20, weight=False, bias=False, residual=True),
    "one column": Case(3, 1, residual=True),
    "one row": Case(1, 64),
    "a block to the full": Case(2, 128, residual=True, p=0.5),
    "more rows than a tile": Case(70, 16, BRAIN, residual=True),
    "rows that are not next to each other": Case(6, 33, residual=True, p=0.2, gap=7),
    "a residual in fp32": Case(4, 40, BRAIN, residual=True, residual_dtype=SINGLE),
    "a residual in fp32 and dropout": Case(4, 40, HALF, residual=True, residual_dtype=SINGLE, p=0.4),
    "weights in fp32": Case(4, 40, BRAIN, weight_dtype=SINGLE),
    "a long row": Case(2, 8192 + 77, residual=True, p=0.1),
    "a long row in bf16": Case(2, 12288, BRAIN, centred=False, bias=False),
    "short rows that are loaded ahead": Case(70, 768, BRAIN, residual=True, p=0.1),
    "rows that are loaded ahead": Case(5, 2048, HALF, centred=False),
    "many long rows": Case(33, 8200, weight=False),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_shapes_strides_and_dtypes(kernel: ModuleType, case: Case) -> None:
    check(kernel, case)


@pytest.mark.parametrize("width, dtype, centred, memory, ahead", [
    (4096, BRAIN, False, 227, True), (4096, BRAIN, False, 40, False), (4096, BRAIN, False, 0, False),
    (4096, SINGLE, False, 227, False), (4100, BRAIN, False, 227, False), (8192, HALF, True, 99, True),
    (8200, HALF, True, 227, False), (768, BRAIN, True, 227, True), (768, BRAIN, False, 227, False),
])  # fmt: skip
def test_rows_are_loaded_ahead_if_a_block_has_the_memory_and_addresses_are_aligned(
    kernel: ModuleType, monkeypatch: pytest.MonkeyPatch, width: int, dtype: torch.dtype, centred: bool, memory: int,
    ahead: bool,
) -> None:  # fmt: skip
    """`memory` in KiB."""
    stages = list[int]()
    monkeypatch.setattr(kernel, "block_memory", lambda _: memory * 1024)
    monkeypatch.setattr(kernel, "launch", lambda function, grid, *given, **_: stages.append(given[-1]))
    x, weight = torch.randn(2, width, dtype=dtype), torch.rand(width, dtype=dtype)
    mean = torch.zeros(2, 1) if centred else None
    kernel.backward(x, None, x, weight, mean, torch.ones(2, 1), None, 0.0, dtype, None, True, centred)
    assert (stages[0] == kernel._STAGES) is ahead


@pytest.mark.parametrize("shape", [(0, 16), (4, 0)])
def test_an_empty_tensor_is_normalised(kernel: ModuleType, shape: tuple[int, int]) -> None:
    x, weight = torch.randn(shape), torch.rand(shape[1])
    out, total, mean, rstd = kernel.forward(x, x, weight, weight, None, 0.0, EPS, True, SINGLE, SINGLE)
    assert out.shape == total.shape == shape and mean.shape == rstd.shape == (shape[0], 1)
    dx, _, dweight, dbias = kernel.backward(
        out, None, total, weight, mean, rstd, None, 0.0, SINGLE, None, True, True
    )  # fmt: skip
    assert dx.shape == shape and dweight.shape == dbias.shape == (shape[1],) and not dweight.any()


@pytest.mark.parametrize("width", [500, 8200])
def test_dropout_drops_its_share_and_repeats(kernel: ModuleType, width: int) -> None:
    x, p = torch.ones(40 if width < 8192 else 2, width), 0.25
    run = lambda seed: kernel.forward(x, None, None, None, torch.tensor([seed]), p, EPS, True, SINGLE, SINGLE)
    total = run(SEED)[1]
    assert set(total.unique().tolist()) == {0.0, torch.tensor(1 / (1 - p)).item()}
    share, deviation = (total == 0).float().mean().item(), (p * (1 - p) / x.numel()) ** 0.5
    assert abs(share - p) < 4 * deviation
    assert torch.equal(total, run(SEED)[1]) and not torch.equal(total, run(SEED + 1)[1])


def test_weight_gradients_are_the_same_each_time(kernel: ModuleType) -> None:
    x, g = torch.randn(300, 24), torch.randn(300, 24)
    _, _, mean, rstd = kernel.forward(x, None, None, None, None, 0.0, EPS, True, SINGLE, SINGLE)
    first, second = (
        kernel.backward(g, None, x, None, mean, rstd, None, 0.0, SINGLE, None, True, True) for _ in range(2)
    )
    assert first[1] is second[1] is None
    assert all(torch.equal(first[i], second[i]) for i in (0, 2, 3))


def test_a_large_mean_costs_no_digits(kernel: ModuleType) -> None:
    """The variance is not the difference of two large numbers, in one block nor in chunks."""
    for width in (64, 8200):
        x = torch.randn(2, width) + 1000.0
        out, *_ = kernel.forward(x, None, None, None, None, 0.0, EPS, True, SINGLE, SINGLE)
        truth = torch.nn.functional.layer_norm(x.double(), (width,), eps=EPS)
        assert (out - truth).abs().max() < 8 * 1000 * torch.finfo(SINGLE).eps


@pytest.mark.parametrize("width", [30, 33, 36, 40, 48, 4100])
@pytest.mark.parametrize("gap", [0, 2, 4, 7])
def test_widths_and_strides_of_every_unit(kernel: ModuleType, width: int, gap: int) -> None:
    check(kernel, Case(3, width, BRAIN, residual=True, p=0.2, gap=gap))


def test_rows_of_single_precision_in_blocks_of_half_as_many_entries_a_thread(kernel: ModuleType) -> None:
    check(kernel, Case(3, 4096, residual=True, p=0.2))
