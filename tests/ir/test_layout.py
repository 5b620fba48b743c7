"""Permutations of the last dimensions, and einsum as one matmul between them."""

from __future__ import annotations

import pytest

from autofuse.ir.layout import SWAP, Product, compose, product, tail, transposition


def test_a_full_permutation_is_a_tail() -> None:
    assert tail((0, 2, 3, 1)) == (-2, -1, -3)
    assert tail((0, 1, 3, 2)) == SWAP == transposition(-2, -1)
    assert compose(SWAP, SWAP) == ()


@pytest.mark.parametrize(
    ("equation", "expected"),
    [
        ("bhid,bhjd->bhij", Product((), SWAP, ())),
        ("b i d, b j d -> b i j", Product((), SWAP, ())),
        ("bhij,bhjd->bhid", Product((), (), ())),
        ("bqhd,bkhd->bhqk", Product((-2, -3, -1), (-2, -1, -3), ())),
        ("bhqk,bkhd->bqhd", Product((), (-2, -3, -1), (-2, -3, -1))),
        ("b h i d, h j d -> b h i j", Product((), SWAP, ())),
    ],
)
def test_an_einsum_of_two_operands_is_a_product(equation: str, expected: Product) -> None:
    assert product(equation) == expected


def test_an_einsum_that_mixes_heads_is_not_attention() -> None:
    assert product("bhij,hg->bgij") != Product((), (), ())
