"""Children whose caller reads only part of their result."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

import autofuse
from tests.spellings.harness import functions_called_by


class _Attention(nn.Module):
    """Returns its probabilities, as library models do."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 48)

    def forward(self, x: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / math.sqrt(8)
        weights = scores.masked_fill(~keep, float("-inf")).softmax(dim=-1)
        return (weights @ v).transpose(1, 2).flatten(2), weights


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = _Attention()

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        return x + self.attention(x, keep)[0]


def _operations(run: object) -> set[str]:
    return {name for name, _ in functions_called_by(run)} & {"attention", "masked_softmax"}  # type: ignore[arg-type]


def test_attention_is_fused_if_the_caller_ignores_the_probabilities() -> None:
    x, keep = torch.randn(2, 5, 16), torch.ones(5, 5, dtype=torch.bool).tril()
    model = _Block()
    expected = model(x, keep)
    autofuse.optimize(model, (x, keep))
    assert _operations(lambda: model(x, keep)) == {"attention"}
    assert _operations(lambda: model.attention(x, keep)) == {"masked_softmax"}
    torch.testing.assert_close(model(x, keep), expected)


class _Both(_Attention):
    """Also returns its scores, so that nothing can be fused in a full call."""

    def forward(self, x: Tensor, keep: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[override]
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-2, -1) / math.sqrt(8)).masked_fill(~keep, float("-inf"))
        weights = scores.softmax(dim=-1)
        return (weights @ v).transpose(1, 2).flatten(2), weights, scores


def test_a_declined_fallback_is_not_reported_if_attention_is_fused() -> None:
    model = _Block()
    model.attention = _Both()
    autofuse.optimize(model, (torch.randn(2, 5, 16), torch.ones(5, 5, dtype=torch.bool).tril()))
    assert [(s.rule, s.status) for s in autofuse.report(model)] == [("AF101", "fused")]


class Grows:
    """A cache that grows with each call."""

    def __init__(self) -> None:
        self.keys: list[Tensor] = []

    def update(self, key: Tensor) -> Tensor:
        self.keys.append(key)
        return torch.cat(self.keys, dim=-2)


class AttendsToAll(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor, mask: Tensor, cache: Grows) -> tuple[Tensor, Tensor]:
        key = cache.update(self.k(x))
        weights = (self.q(x) @ key.mT + mask).softmax(-1)
        return weights @ key, weights


class ReadsTheFirst(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attend = AttendsToAll()

    def forward(self, x: Tensor, mask: Tensor, cache: Grows) -> Tensor:
        return x + self.attend(x, mask, cache)[0]  # type: ignore[no-any-return]


def test_a_child_is_traced_with_the_cache_before_the_call() -> None:
    model, x, mask = ReadsTheFirst(), torch.randn(2, 5, 8), torch.zeros(5, 5)
    expected = model(x, mask, Grows())
    autofuse.optimize(model)
    torch.testing.assert_close(model(x, mask, Grows()), expected)
    assert "AF101" in {s.rule for s in autofuse.report(model).with_status("fused")}


class _Cached(nn.Module):
    """A block whose attention is called for whole sequences and for single queries."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = _Attending()

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        return x + self.attention(x, memory)[0]


class _Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.kv = nn.Linear(16, 16), nn.Linear(16, 32)

    def forward(self, x: Tensor, memory: Tensor | None) -> tuple[Tensor, Tensor]:
        keys = x if memory is None else torch.cat((memory, x), dim=1)
        key, value = self.kv(keys).chunk(2, dim=-1)
        weights = (self.q(x) @ key.mT / 4.0).softmax(dim=-1)
        return weights @ value, weights


def test_a_new_kind_of_narrow_call_is_captured_for_the_parts_that_are_read() -> None:
    """The block's guards accept any memory that it passes on. The narrow call of its attention is captured again."""
    x, memory = torch.randn(2, 5, 16), torch.randn(2, 3, 16)
    model = _Cached()
    expected = [model(x), model(x, memory), model(x.double().float(), memory)]
    autofuse.optimize(model, x)
    assert _operations(lambda: model(x)) == {"attention"}
    for _ in range(2):
        found = [model(x), model(x, memory), model(x, memory)]
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)
    assert _operations(lambda: model(x, memory)) == {"attention"}
    assert not [f for f in autofuse.report(model).fallbacks if f.ran == "original"]
