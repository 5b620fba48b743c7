"""Sums of products keep the precision of the sum, whatever the operands', and torch has what is called on GPUs."""

from __future__ import annotations

import pytest
import torch

from autofuse.kernels import wide_products
from autofuse.kernels.wide_products import add_product, is_fused


@pytest.mark.parametrize("wide", [torch.float32, torch.float64])
@pytest.mark.parametrize("narrow", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("piece", [5, 8192])
def test_a_sum_of_products_equals_that_of_wider_operands(
    monkeypatch: pytest.MonkeyPatch, narrow: torch.dtype, wide: torch.dtype, piece: int
) -> None:
    monkeypatch.setattr(wide_products, "_PIECE", piece)
    left, right = torch.randn(3, 13, 7).to(narrow), torch.randn(3, 7, 9).to(narrow)
    total = torch.full((13, 9), torch.nan, dtype=wide)
    for i in range(3):
        add_product(total, left[i], right[i], i == 0)
    bound = 3 * torch.finfo(narrow).eps * float((left.abs().double() @ right.abs().double()).max())
    torch.testing.assert_close(total.double(), (left.double() @ right.double()).sum(0), rtol=0, atol=bound)


def test_a_cpu_adds_in_pieces() -> None:
    assert not is_fused(torch.zeros(2, 2), torch.zeros(2, 2, dtype=torch.bfloat16))


def test_torchs_products_with_an_output_dtype_accept_our_arguments() -> None:
    if not wide_products._has_overloads():
        pytest.skip("This version of torch has no such product.")
    for overload, names in (
        (torch.ops.aten.mm.dtype_out, ["self", "mat2", "out_dtype", "out"]),
        (torch.ops.aten.addmm.dtype_out, ["self", "mat1", "mat2", "out_dtype", "out"]),
    ):
        required = [a.name for a in overload._schema.arguments if not a.has_default_value()]
        assert required == names


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_adds_in_the_product() -> None:
    left, right = (torch.randn(256, 256, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    total = torch.randn(256, 256, device="cuda")
    expected = total.double() + left.double() @ right.double()
    add_product(total, left, right, False)
    torch.testing.assert_close(total.double(), expected, rtol=0, atol=1e-3)
