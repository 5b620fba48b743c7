"""flash-attn 2's attention as a provider: layouts, groups of heads, causal masks, and refused calls."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from autofuse.kernels.flash_attn import PROVIDERS
from tests.kernels.agreement import assert_agrees, assert_has_second_derivatives, assert_refuses_second_derivatives
from tests.kernels.operands import scattered_tensor, tensor

BY_NAME = {provider.operation: provider for provider in PROVIDERS}
pytestmark = pytest.mark.usefixtures("others")


def grouped_attention(
    query: Tensor, key: Tensor, value: Tensor, *, scale: float, is_causal: bool = False, **_: Any
) -> Tensor:
    """Attention of groups of heads, causal from the top left."""
    key, value = (t.repeat_interleave(query.shape[1] // t.shape[1], dim=1) for t in (key, value))
    scores = query @ key.mT * scale
    if is_causal:
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), -torch.inf)
    return scores.softmax(-1) @ value


WINDOWS = [(2, 0), (0, 0), (1, 3), (4, 2)]


def window_mask(length: int, window: tuple[int, int]) -> Tensor:
    ahead = torch.arange(length) - torch.arange(length)[:, None]
    return (ahead <= window[1]) & (ahead >= -window[0])


def windowed_attention(
    query: Tensor, key: Tensor, value: Tensor, *, scale: float, mask: Tensor, cap: float = 0.0, **_: Any
) -> Tensor:
    """Attention of groups of heads with a mask, and with capped scores."""
    key, value = (t.repeat_interleave(query.shape[1] // t.shape[1], dim=1) for t in (key, value))
    scores = query @ key.mT * scale
    scores = cap * torch.tanh(scores) if cap else scores
    return scores.masked_fill(~mask, -torch.inf).softmax(-1) @ value


def packed_attention(
    query: Tensor, key: Tensor, value: Tensor, starts: Tensor, of_keys: Tensor, *_: int, scale: float, is_causal: bool
) -> Tensor:
    """The same for each sequence by itself."""
    parts = []
    for i in range(len(starts) - 1):
        rows, keys = slice(starts[i], starts[i + 1]), slice(of_keys[i], of_keys[i + 1])
        operands = (t.transpose(0, 1)[None] for t in (query[rows], key[keys], value[keys]))
        parts.append(grouped_attention(*operands, scale=scale, is_causal=is_causal)[0].transpose(0, 1))
    return torch.cat(parts)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("heads", [4, 2, 1])
@pytest.mark.parametrize(("queries", "keys"), [(5, 5), (3, 7), (1, 6)])
def test_attention_agrees(is_causal: bool, heads: int, queries: int, keys: int) -> None:
    operands = (
        scattered_tensor(2, 4, queries, 8),
        tensor(2, heads, keys, 8),
        scattered_tensor(2, heads, keys, 8, seed=5),
    )
    assert_agrees(BY_NAME["attention"], *operands, scale=0.3, is_causal=is_causal, formula=grouped_attention)


@pytest.mark.parametrize("widths", [(8, 4), (4, 8)])
def test_values_of_another_width_are_padded(widths: tuple[int, int]) -> None:
    operands = (tensor(2, 3, 5, widths[0]), tensor(2, 3, 6, widths[0], seed=2), tensor(2, 3, 6, widths[1]))
    assert_agrees(BY_NAME["attention"], *operands, scale=0.3)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("operation", ["attention", "soft_capped_attention"])
def test_a_mask_that_is_known_to_be_a_window_is_one(operation: str, window: tuple[int, int]) -> None:
    operands = (scattered_tensor(2, 4, 5, 8), tensor(2, 2, 5, 8), scattered_tensor(2, 2, 5, 8, seed=5))
    given = {"mask": window_mask(5, window), "scale": 0.3} | ({"cap": 2.0} if operation != "attention" else {})
    assert_agrees(BY_NAME[operation], *operands, **given, window=window, formula=windowed_attention)
    assert "windows only" in BY_NAME[operation].check(*operands, **given)
    assert_has_second_derivatives(BY_NAME[operation], *(tensor(1, 2, 5, 8, seed=i) for i in range(3)), **given)


def test_a_mask_that_is_known_to_be_causal_is() -> None:
    operands = tuple(tensor(2, 3, 5, 8, seed=i) for i in range(3))
    mask = torch.ones(5, 5, dtype=torch.bool).tril()
    assert_agrees(BY_NAME["attention"], *operands, mask=mask, mask_is_causal=True, scale=0.3)


def test_dropout_is_active_in_training_only() -> None:
    operands = tuple(tensor(2, 3, 5, 8, seed=i) for i in range(3))
    assert_agrees(BY_NAME["attention"], *operands, scale=0.3, dropout_p=0.5)
    dropped = BY_NAME["attention"].run(*operands, scale=0.3, dropout_p=0.5, training=True)
    assert not torch.allclose(dropped, BY_NAME["attention"].run(*operands, scale=0.3))


def test_soft_capping_agrees() -> None:
    operands = tuple(tensor(2, 3, 5, 8, seed=i) for i in range(3))
    assert_agrees(BY_NAME["soft_capped_attention"], *operands, cap=2.0, scale=0.3)


@pytest.mark.parametrize("is_causal", [False, True])
def test_packed_sequences_agree(is_causal: bool) -> None:
    starts = torch.tensor([0, 3, 4, 9], dtype=torch.int32)
    operands = (tensor(9, 4, 8), tensor(9, 2, 8), tensor(9, 2, 8, seed=3), starts, starts, 5, 5)
    check, run = BY_NAME["varlen_attention"].check, BY_NAME["varlen_attention"].run
    assert check(*operands, scale=0.3, is_causal=is_causal) == ""  # lengths that are one tensor stay one
    torch.testing.assert_close(
        run(*operands, scale=0.3, is_causal=is_causal), packed_attention(*operands, scale=0.3, is_causal=is_causal)
    )
    assert "bottom right" in check(*operands[:4], starts.clone(), 5, 5, is_causal=True)
    if not is_causal:
        assert_agrees(BY_NAME["varlen_attention"], *operands, scale=0.3, is_causal=False, formula=packed_attention)


def test_second_derivatives_are_those_of_the_formula_or_an_error() -> None:
    operands = tuple(tensor(1, 2, 3, 8, seed=i) for i in range(3))
    assert_has_second_derivatives(BY_NAME["attention"], *operands, scale=0.3, is_causal=True)
    assert_has_second_derivatives(BY_NAME["soft_capped_attention"], *operands, cap=2.0, scale=0.3)
    assert_refuses_second_derivatives(BY_NAME["attention"], *operands, scale=0.3, dropout_p=0.5, training=True)


_Q = tensor(2, 4, 5, 8)
_MASK = torch.ones(5, 5, dtype=torch.bool)


@pytest.mark.parametrize(
    ("args", "kwargs", "said"),
    [
        ((_Q, _Q, _Q), {"mask": _MASK}, "causal masks and windows only"),
        ((_Q, _Q, _Q), {"mask": torch.zeros(5, 5)}, "causal masks and windows only"),
        ((_Q, _Q[:, :, :3], _Q[:, :, :3]), {"is_causal": True}, "bottom right"),
        ((_Q, _Q, _Q), {"mask": _MASK[:, :4], "mask_is_causal": True}, "causal masks and windows only"),
        ((_Q, _Q, _Q), {"scale": torch.tensor(0.5)}, "a number as scale"),
        ((_Q[0], _Q[0], _Q[0]), {}, "(batch, heads, length, head_dim)"),
        ((_Q, _Q[:1], _Q[:1]), {}, "keys for every batch"),
        ((_Q, _Q[:, :3], _Q[:, :3]), {}, "multiple of the key heads"),
        ((_Q, _Q.double(), _Q), {}, "of one dtype"),
        ((_Q[:, :, :0], _Q, _Q), {}, "not support empty operands"),
        ((torch.empty(1, 1, 2, 264),) * 3, {}, "head_dim of at most 256"),
        ((_Q, _Q, _Q), {"dropout_p": 1.0, "training": True}, "dropout probability below 1"),
    ],
)
def test_unsupported_calls_are_refused_beforehand(args, kwargs, said) -> None:  # type: ignore[no-untyped-def]
    assert said in BY_NAME["attention"].check(*args, **kwargs)


def test_soft_capping_has_neither_dropout_nor_a_cap_of_0() -> None:
    check = BY_NAME["soft_capped_attention"].check
    assert "no dropout" in check(_Q, _Q, _Q, cap=2.0, dropout_p=0.1, training=True)
    assert "cap above 0" in check(_Q, _Q, _Q, cap=0.0)
