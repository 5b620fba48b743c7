"""A copy of a deep model keeps a few repetitions of its pattern of layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn

from autofuse.fx.session.short_copies import ShortCopy

A, B = (lambda: nn.Linear(4, 4)), (lambda: nn.Linear(4, 4, bias=False))


class Deep(nn.Module):
    def __init__(self, *chains: Sequence[nn.Module]) -> None:
        super().__init__()
        self.chains = nn.ModuleList(nn.Sequential(*chain) for chain in chains)

    def forward(self, x: Tensor) -> Tensor:
        for chain in self.chains:
            x = chain(x)
        return x


def _short(model: nn.Module) -> ShortCopy:
    return ShortCopy(model, repr)


def _lengths(model: Deep) -> list[int]:
    return [len(chain) for chain in model.chains]  # type: ignore[arg-type]


@pytest.mark.parametrize(("chain", "kept", "size"), [
    ([A] * 48, 4, "4 of 48 layers"),
    ([A] * 4, 4, ""),
    ([A, B] * 12, 4, "4 of 24 layers"),
    ([A, A, B] * 8, 3, "3 of 24 layers"),
    ([A] * 11 + [B], 12, ""),
    ([B] + [A] * 11, 12, ""),
])  # fmt: skip
def test_repetitions_of_the_pattern_stay(chain: list[Callable[[], nn.Module]], kept: int, size: str) -> None:
    model = Deep([layer() for layer in chain])
    short = _short(model)
    assert (_lengths(model), short.size) == ([kept], size)
    assert model(torch.randn(2, 4)).shape == (2, 4)


def test_all_chains_are_shortened_by_one_factor() -> None:
    model = Deep([A() for _ in range(24)], [B() for _ in range(8)])
    assert _short(model).factor == 2.0
    assert _lengths(model) == [12, 4]


def test_a_chain_inside_a_layer_stays() -> None:
    model = nn.Sequential(*(Deep([A() for _ in range(8)]) for _ in range(8)))
    short = _short(model)
    assert short.size == "4 of 8 layers"
    assert _lengths(model[0]) == [8]


def test_undo_puts_all_layers_back() -> None:
    model = Deep([A() for _ in range(12)])
    before, x = dict(model.named_modules()), torch.randn(2, 4)
    expected = model(x)
    short = _short(model)
    assert not torch.equal(model(x), expected)
    short.undo()
    assert dict(model.named_modules()) == before
    assert (short.size, short.layers) == ("", ())
    assert torch.equal(model(x), expected)


def test_calls_of_the_remaining_layers_are_counted() -> None:
    model = Deep([A() for _ in range(12)])
    short = _short(model)
    with short.count_calls() as calls:
        model(torch.randn(2, 4))
    assert calls == dict.fromkeys(model.chains[0], 1)
    assert not any(layer._forward_pre_hooks for layer in short.layers)
