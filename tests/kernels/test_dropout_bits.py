"""Dropout's random bits: the right share, independent of each other, and equal for equal seeds."""

from __future__ import annotations

import torch

from autofuse.kernels.dropout_bits import draw_seed, keep_mask, mix


def _mask(rows: int, columns: int, p: float, seed: int = 0x1234_5678_9ABC) -> torch.Tensor:
    return keep_mask(torch.tensor([seed]), torch.arange(rows), columns, p)


def test_the_share_of_kept_entries_is_one_minus_p() -> None:
    for p in (0.1, 0.5, 0.9):
        mask = _mask(1000, 1000, p)
        deviation = (p * (1 - p) / mask.numel()) ** 0.5
        assert abs(mask.double().mean().item() - (1 - p)) < 5 * deviation


def test_nothing_is_dropped_at_0_and_all_at_1() -> None:
    assert _mask(10, 10, 0.0).all()
    assert not _mask(10, 10, 1.0).any()


def test_the_same_seed_draws_the_same_and_another_seed_does_not() -> None:
    assert torch.equal(_mask(50, 60, 0.3), _mask(50, 60, 0.3))
    for other in (0x1234_5678_9ABD, 0x1235_5678_9ABC, -1):
        agreement = (_mask(500, 600, 0.5) == _mask(500, 600, 0.5, other)).double().mean().item()
        assert abs(agreement - 0.5) < 5 * 0.5 / (500 * 600) ** 0.5


def test_neighbours_in_rows_and_columns_are_independent() -> None:
    mask = _mask(800, 800, 0.5).double() * 2 - 1
    for shift, dim in ((1, 0), (1, 1), (2, 1), (16, 1), (256, 1)):
        correlation = (mask * mask.roll(shift, dim)).mean().item()
        assert abs(correlation) < 5 / mask.numel() ** 0.5


def test_rows_beyond_32_bits_of_entries_have_their_own_bits() -> None:
    far = keep_mask(torch.tensor([7]), torch.tensor([0, 2**31, 2**32]), 4096, 0.5)
    assert not torch.equal(far[0], far[1])
    assert not torch.equal(far[0], far[2])


def test_the_mixer_is_one_to_one() -> None:
    numbers = torch.arange(-(2**16), 2**16, dtype=torch.int32) * 32749
    assert mix(numbers).unique().numel() == numbers.numel()


def test_seeds_come_from_torchs_generator() -> None:
    torch.manual_seed(3)
    first = draw_seed(torch.device("cpu"))
    torch.manual_seed(3)
    assert torch.equal(first, draw_seed(torch.device("cpu")))
    assert not torch.equal(first, draw_seed(torch.device("cpu")))
