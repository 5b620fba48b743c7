"""FLOPs from a trace with shapes, compared with closed formulas."""

from __future__ import annotations

from typing import Any

import pytest

from autofuse.profiling.trace.flops import CountedFlops, count_flops, hfu_of
from autofuse.profiling.trace.scope import Scope, scope_of
from tests.profiling.trace.building import H100, Entry, entry, kernel, launch, step, trace

GEMM = "nvjet_tst_256x128_64x4_2x1_v_bz_coopA_TNN"
FLASH = "void flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4>>(Flash_fwd_params)"


def product(
    start: float, name: str, dims: Any, kind: str = "c10::BFloat16", took: float = 10, kernels: str = GEMM
) -> list[Entry]:
    """An operator that launches one kernel."""
    shapes = {"Input_Dims": dims, "Input_type": [kind] * (len(dims) if isinstance(dims, list) else 1)}
    number = int(start) + 1
    operator = entry(name, "cpu_op", start, 5, **shapes)
    return [operator, launch(number, start + 1), kernel(start + 2, took, name=kernels, correlation=number)]


def scope(*entries: Entry, **options: Any) -> Scope:
    return scope_of(trace(step(1, 0, 100), *entries, **options))


@pytest.mark.parametrize(
    "name, dims, flops",
    [
        ("aten::mm", [[64, 128], [128, 32]], 2 * 64 * 128 * 32),
        ("aten::addmm", [[32], [64, 128], [128, 32], [], []], 2 * 64 * 128 * 32),
        ("aten::bmm", [[8, 64, 128], [8, 128, 32]], 8 * 2 * 64 * 128 * 32),
        ("aten::baddbmm", [[1], [8, 64, 128], [8, 128, 32]], 8 * 2 * 64 * 128 * 32),
        (
            "aten::_scaled_dot_product_flash_attention",
            [[2, 4, 100, 64], [2, 4, 120, 64], [2, 4, 120, 32]],
            2 * 8 * 100 * 120 * 96,
        ),
        (
            "aten::_scaled_dot_product_flash_attention_backward",
            [[2, 4, 100, 64], [2, 4, 100, 64], [2, 4, 100, 64], [2, 4, 100, 64]],
            5 * 2 * 8 * 100 * 100 * 64,
        ),
    ],
)
def test_operators_count_as_torchs_own_counter_counts_them(name: str, dims: Any, flops: float) -> None:
    found = count_flops(scope(*product(0, name, dims)))
    assert isinstance(found, CountedFlops)
    assert (found.total, found.dtype) == (flops, "bfloat16")


def test_utilisation_is_of_the_data_sheets_peak() -> None:
    """2 x 4096^3 = 137.4 GFLOP in 100 us are 1374 TFLOP/s, which is impossible. Half the size gives 172 of 989.4."""
    big, half = (scope(*product(0, "aten::mm", [[side, side], [side, side]], took=90)) for side in (4096, 2048))
    assert hfu_of(half, count_flops(half)).value == pytest.approx(2 * 2048**3 / 100e-6 / 989.4e12)
    impossible = hfu_of(big, count_flops(big))
    assert impossible.value is None and "which is impossible" in impossible.reason


def test_a_peak_that_the_user_passes_replaces_the_data_sheet() -> None:
    found = scope(*product(0, "aten::mm", [[1000, 1000], [1000, 1000]]), devices=[{**H100, "name": "Accelerator 9"}])
    assert hfu_of(found, count_flops(found)).value is None
    told = scope_of(found.trace, peak=(1e15, None))
    level = hfu_of(told, count_flops(told))
    assert level.value == pytest.approx(2e9 / told.steps.seconds / 1e15) and "--peak-flops" in level.basis


def test_numbers_are_of_one_step() -> None:
    entries = [
        step(2, 100, 100),
        *product(0, "aten::mm", [[8, 8], [8, 8]]),
        *product(110, "aten::mm", [[8, 8], [8, 8]]),
    ]
    found = count_flops(scope(*entries))
    assert isinstance(found, CountedFlops) and found.total == 2 * 8**3


@pytest.mark.parametrize("kernels, dtype", [(GEMM, "tensorfloat32"), ("ampere_sgemm_128x64_nn", "float32")])
def test_single_precision_on_tensor_cores_is_another_peak(kernels: str, dtype: str) -> None:
    found = count_flops(scope(*product(0, "aten::mm", [[8, 8], [8, 8]], "float", kernels=kernels)))
    assert isinstance(found, CountedFlops) and found.dtype == dtype


@pytest.mark.parametrize(
    "more, why",
    [
        ([kernel(50, 10, name=FLASH)], "for only 50% of the kernel time"),  # an operator of the user
        ([kernel(50, 5, name="sm90_xmma_fprop_implicit_gemm_f16f16_f16f32_f32")], "for only 67% of the kernel time"),
        (product(50, "aten::mm", None), "does not have the shapes of every aten::mm"),
        (product(50, "aten::mm", [[8, 9], [8, 8]]), "does not have the shapes of every aten::mm"),
    ],
)
def test_incomplete_counts_are_not_reported(more: list[Entry], why: str) -> None:
    found = count_flops(scope(*product(0, "aten::mm", [[8, 8], [8, 8]]), *more))
    assert isinstance(found, str) and why in found


def test_without_shapes_and_a_data_sheet_there_is_a_reason() -> None:
    bare = scope(kernel(0, 10, name=GEMM))
    assert "record_shapes=True" in hfu_of(bare, count_flops(bare)).reason
    unknown = scope(*product(0, "aten::mm", [[8, 8], [8, 8]]), devices=[{**H100, "name": "NVIDIA Unheard-of"}])
    assert "no data sheet for NVIDIA Unheard-of" in hfu_of(unknown, count_flops(unknown)).reason
