"""The counts of nvdisasm's listing: the loop that accesses memory, widths, instructions."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

from tools.ahead.sass import Instruction, counted, instructions

LISTING = """
.text.kernel:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/                   LDG.E R2, desc[UR4][R4.64] ;
.L_x_0:
        /*0020*/              @!P0 LDG.E.128 R8, desc[UR4][R6.64] ;
        /*0030*/                   FADD R9, R9, R8 ;
        /*0040*/               @P0 STG.E.64 desc[UR4][R6.64], R8 ;
        /*0050*/               @P1 BRA `(.L_x_0) ;
        /*0060*/                   STG.E.U16 desc[UR4][R6.64], R8 ;
        /*0070*/                   CALL.REL.NOINC `($kernel$__internal_0_$__cuda_sm20_div_s64) ;
        /*0078*/                   CALL.REL.NOINC `($__internal_1_$__cuda_sm70_shflsync_bfly_p) ;
        /*0080*/                   EXIT ;
.L_x_1:
        /*0090*/                   BRA `(.L_x_1);
        /*00a0*/                   NOP;
        /*00b0*/                   NOP;
"""


def test_the_listing_is_parsed_with_predicates_and_without_padding() -> None:
    code = instructions(LISTING)
    assert [i.opcode for i in code][:4] == ["LDC", "LDG.E", "LDG.E.128", "FADD"]
    assert len(code) == 11 and code[5] == Instruction("BRA", 2) and code[10].target == 10


@pytest.mark.parametrize(
    ("opcode", "width"),
    [
        ("LDG.E.128", 16), ("LDG.E.64.CONSTANT", 8), ("LDG.E", 4), ("STG.E.U16", 2), ("LDG.E.U8", 1),
        ("STG.E.EF.128", 16), ("LDS.128", 0), ("STS.U16", 0), ("LDGSTS.E", 4), ("LDGSTS.E.BYPASS.128", 16), ("FADD", 0),
    ],
)  # fmt: skip
def test_only_accesses_to_global_memory_have_a_width(opcode: str, width: int) -> None:
    assert Instruction(opcode).width == width


def test_the_hot_part_is_the_loop_that_moves_the_most_bytes() -> None:
    made = counted(instructions(LISTING))
    assert made.loads == {16: 1} and made.stores == {8: 1} and made.instructions == 4 and made.total == 11
    assert made.bytes == 24 and made.bytes_per_access == 12.0 and made.divisions == 1


def test_without_such_a_loop_it_is_the_whole_kernel() -> None:
    code = [Instruction("LDG.E"), Instruction("FADD"), Instruction("FADD", 1), Instruction("STG.E.128")]
    made = counted(code)
    assert made.loads == {4: 1} and made.stores == {16: 1} and made.instructions == 4 and made.bytes_per_access == 10.0


def test_a_loop_that_moves_few_bytes_does_not_count() -> None:
    wide = [Instruction("LDG.E.128")] * 8
    assert counted([*wide, Instruction("LDG.E"), Instruction("BRA", 8)]).loads == {4: 1, 16: 8}


def test_an_instruction_without_memory_access_has_no_width() -> None:
    assert counted([Instruction("FADD")]).bytes_per_access == 0.0
