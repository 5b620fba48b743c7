"""While the verifier runs autofuse's operations, nothing is dropped, and the verifier receives every rate."""

from __future__ import annotations

import torch

from autofuse import ops
from autofuse.verify.arithmetic import AsWrittenMode
from autofuse.verify.dropout_switch import is_dropout_off, restore_dropout, switch_dropout_off


def test_dropout_is_off_inside_the_switch_and_on_afterwards() -> None:
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


def test_switches_nest_and_only_the_innermost_receives_rates() -> None:
    outer, inner = list[float](), list[float]()
    switch_dropout_off(outer.append)
    switch_dropout_off(inner.append)
    assert is_dropout_off(0.25)
    restore_dropout()
    assert is_dropout_off(0.75)
    restore_dropout()
    assert not is_dropout_off(0.5)
    assert (outer, inner) == ([0.75], [0.25])


def test_a_mode_restores_dropout_if_its_block_raises() -> None:
    try:
        with AsWrittenMode():
            raise ValueError
    except ValueError:
        pass
    assert not is_dropout_off(0.5)
