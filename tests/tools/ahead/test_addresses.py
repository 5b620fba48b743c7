"""Only addresses that may overflow in 32 bits are found in Triton's intermediate code."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

from tools.ahead.addresses import narrow_addresses

HEAD = "tt.func public @kernel(%x: !tt.ptr<f32>, %stride: i32 {tt.divisibility = 16 : i32}, %far: i64) {"
PROGRAM = "%0 = tt.get_program_id x : i32"
ADDRESS = "%9 = tt.addptr %x, %5 : !tt.ptr<f32>, i32"
BAD = {
    "a row times a stride": [PROGRAM, "%5 = arith.muli %0, %stride : i32", ADDRESS],
    "a stride times a row": [PROGRAM, "%5 = arith.muli %stride, %0 : i32", ADDRESS],
    "a program times a block": [PROGRAM, "%5 = arith.muli %0, %c1024_i32 : i32", ADDRESS],
    "a column of rows": [
        PROGRAM,
        "%1 = tt.splat %0 : i32 -> tensor<8xi32>",
        "%2 = tt.splat %stride : i32 -> tensor<8xi32>",
        "%3 = arith.muli %1, %2 : tensor<8xi32>",
        "%4 = arith.extsi %3 : tensor<8xi32> to tensor<8xi64>",
        "%9 = tt.addptr %7, %4 : tensor<8x!tt.ptr<f32>>, tensor<8xi64>",
    ],
    "a loop over rows": [
        "%6 = scf.for %i = %c0_i32 to %c9_i32 step %c1_i32 iter_args(%a = %c0) -> (i32)  : i32 {",
        "%5 = arith.muli %i, %stride : i32",
        ADDRESS,
    ],
    "what a loop carries": [
        PROGRAM,
        "%6 = scf.for %i = %c0_i32 to %c9_i32 step %c1_i32 iter_args(%a = %0) -> (i32)  : i32 {",
        "%5 = arith.muli %a, %stride : i32",
        ADDRESS,
    ],
    "a width that is a multiple": [
        PROGRAM,
        "%2 = arith.muli %stride, %c16_i32 : i32",
        "%5 = arith.muli %0, %2 : i32",
        ADDRESS,
    ],
}
GOOD = {
    "a row in 64 bits": [
        PROGRAM,
        "%1 = arith.extsi %0 : i32 to i64",
        "%2 = arith.extsi %stride : i32 to i64",
        "%5 = arith.muli %1, %2 : i64",
        ADDRESS,
    ],
    "the second dimension of a grid": [
        "%0 = tt.get_program_id y : i32",
        "%5 = arith.muli %0, %c1024_i32 : i32",
        ADDRESS,
    ],
    "a sum": [PROGRAM, "%5 = arith.addi %0, %stride : i32", ADDRESS],
    "a product that is no address": [PROGRAM, "%4 = arith.muli %0, %stride : i32", ADDRESS],
    "what a row divides to": [
        PROGRAM,
        "%1 = arith.divsi %0, %stride : i32",
        "%5 = arith.muli %1, %stride : i32",
        ADDRESS,
    ],
}


@pytest.mark.parametrize("lines", BAD.values(), ids=BAD)
def test_a_32_bit_product_is_reported(lines: list[str]) -> None:
    (found,) = narrow_addresses("\n".join([HEAD, *lines]), has_long_form=False)
    assert found.startswith("arith.muli") and "loc(" not in found


@pytest.mark.parametrize("lines", GOOD.values(), ids=GOOD)
def test_an_address_that_cannot_overflow_is_not_reported(lines: list[str]) -> None:
    assert narrow_addresses("\n".join([HEAD, *lines]), has_long_form=False) == []


def test_a_kernel_with_a_long_form_may_use_32_bits_otherwise() -> None:
    code = "\n".join([HEAD, *BAD["a program times a block"]])
    assert narrow_addresses(code, has_long_form=True) == []
    assert narrow_addresses("\n".join([HEAD, *BAD["a row times a stride"]]), has_long_form=True)
