"""While a verifier runs our operations nothing is dropped, and it hears of every rate that would have been."""

from __future__ import annotations

import torch

from autofuse import ops
from autofuse.verify.arithmetic import AsWritten
from autofuse.verify.dropout_switch import is_dropout_off, restore_dropout, switch_dropout_off


def test_operations_drop_nothing_while_it_is_off_and_drop_again_afterwards() -> None:
    x, rates = torch.ones(64, 64), list[float]()

    def dropped() -> torch.Tensor:
        return ops.dropout_add_norm(x, torch.zeros(64, 64), torch.ones(64), dropout_p=0.5, training=True)

    switch_dropout_off(rates.append)
    try:
        off = dropped()
    finally:
        restore_dropout()
    assert rates == [0.5] and off.std() < 1e-3
    assert dropped().std() > 0.1


def test_switches_nest_and_only_the_innermost_hears() -> None:
    outer, inner = list[float](), list[float]()
    switch_dropout_off(outer.append)
    switch_dropout_off(inner.append)
    assert is_dropout_off(0.25)
    restore_dropout()
    assert is_dropout_off(0.75)
    restore_dropout()
    assert not is_dropout_off(0.5)
    assert (outer, inner) == ([0.75], [0.25])


def test_an_arithmetic_switches_back_where_its_block_fails() -> None:
    try:
        with AsWritten():
            raise ValueError
    except ValueError:
        pass
    assert not is_dropout_off(0.5)
