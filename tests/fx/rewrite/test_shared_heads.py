"""Keys and values are passed to fused attention before their heads are repeated."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import autofuse
from autofuse.kernels.operation import record_calls
from tests.fx.conftest import assert_same, fused_rules

N = 3


def by_expand(x: Tensor) -> Tensor:
    b, g, s, d = x.shape
    return x[:, :, None, :, :].expand(b, g, N, s, d).reshape(b, g * N, s, d)


def by_expand_of_open_sizes(x: Tensor) -> Tensor:
    return x.unsqueeze(2).expand(-1, -1, N, -1, -1).flatten(1, 2)


def by_repeat(x: Tensor) -> Tensor:
    return x.unsqueeze(-3).repeat(1, 1, N, 1, 1).flatten(1, 2)


def by_stack(x: Tensor) -> Tensor:
    return torch.stack([x] * N, dim=2).flatten(1, 2)


def in_the_order_of_a_projection(x: Tensor) -> Tensor:
    """As in Meta's Llama: heads are repeated before the transpose."""
    x = x.transpose(1, 2)
    b, s, g, d = x.shape
    return torch.unsqueeze(x, dim=3).expand(b, s, g, N, d).reshape(b, s, g * N, d).transpose(1, 2)


SHARED: dict[str, Callable[[Tensor], Tensor]] = {
    "expand": by_expand,
    "expand with open sizes": by_expand_of_open_sizes,
    "repeat_interleave": lambda x: x.repeat_interleave(N, dim=1),
    "torch.repeat_interleave": lambda x: torch.repeat_interleave(x, repeats=N, dim=-3),
    "repeat": by_repeat,
    "stack": by_stack,
    "before the transpose": in_the_order_of_a_projection,
    "cast since": lambda x: by_expand(x).contiguous().to(torch.float32),
    "an ellipsis": lambda x: x[..., None, :, :].expand(-1, -1, N, -1, -1).flatten(-4, -3),
}


def other_heads_first(x: Tensor) -> Tensor:
    b, g, s, d = x.shape
    return x[:, None].expand(b, N, g, s, d).reshape(b, g * N, s, d)


def by_length(x: Tensor) -> Tensor:
    b, g, s, d = x.shape
    return x[:, :, :, None].expand(b, g, s, N, d).reshape(b, g, s * N, d).view(b, g * N, s, d)


def of_two_tensors(x: Tensor) -> Tensor:
    return torch.stack([x, x, x * 2], dim=2).flatten(1, 2)


APART: dict[str, Callable[[Tensor], Tensor]] = {
    "repeat tiles the heads": lambda x: x.repeat(1, N, 1, 1),
    "groups in another order": other_heads_first,
    "keys repeated": by_length,
    "not all the same": of_two_tensors,
    "scaled since": lambda x: by_expand(x) * torch.linspace(0.5, 1.0, 6)[:, None, None],
    "one of them written": lambda x: by_expand(x).clone().index_fill_(1, torch.tensor([1]), 0.5),
}


class WithQueries(nn.Module):
    """`assert_same` compares the gradients of parameters, too."""

    def __init__(self) -> None:
        super().__init__()
        self.to_q, self.to_k, self.to_v = (nn.Parameter(torch.linspace(0.5, 1.5, 4)) for _ in range(3))


class Grouped(WithQueries):
    def __init__(self, of_keys: Callable[[Tensor], Tensor], of_values: Callable[[Tensor], Tensor] | None = None):
        super().__init__()
        self.of_keys, self.of_values = of_keys, of_values or of_keys

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = self.of_keys(k * self.to_k), self.of_values(v * self.to_v)
        return torch.softmax(q * self.to_q @ k.transpose(2, 3) / 2.0, dim=-1) @ v


class Repeater(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return by_expand(x)


class ByAChild(WithQueries):
    def __init__(self) -> None:
        super().__init__()
        self.repeat = Repeater()

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        weights = torch.softmax(q @ self.repeat(k * self.to_k).mT * 0.5, dim=-1)
        return weights @ self.repeat(v * self.to_v)


class AskedForLengths(WithQueries):
    """The mask is cut to the length of the repeated keys."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        k, v = by_expand(k * self.to_k), by_expand(v * self.to_v)
        scores = q @ k.mT * 0.5 + mask[:, :, :, : k.shape[-2]]
        return torch.softmax(scores, dim=-1) @ v


def operands(b: int = 2, t: int = 5, g: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(b, g * N, t, 4), torch.randn(b, g, t, 4), torch.randn(b, g, t, 4)


def heads_of_keys(model: nn.Module, *given: Tensor) -> list[int]:
    """The number of key heads in each call of fused attention."""
    with record_calls() as calls:
        model(*given)
    return [c.args[1].shape[1] for c in calls if c.operation.name == "attention"]


@pytest.mark.parametrize("spelling", SHARED)
def test_repeated_heads_are_passed_once(spelling: str) -> None:
    plain = Grouped(SHARED[spelling])
    model = autofuse.optimize(Grouped(SHARED[spelling]), operands())
    assert fused_rules(model) == {"AF101"}
    for given in (operands(), operands(1, 7), operands(3, 4)):
        assert heads_of_keys(model, *given) == [2]
        assert_same(plain, model, *given)


@pytest.mark.parametrize("spelling", APART)
def test_code_that_is_not_a_repetition_of_heads_stays(spelling: str) -> None:
    plain = Grouped(APART[spelling])
    model = autofuse.optimize(Grouped(APART[spelling]), operands())
    for given in (operands(), operands(1, 7)):
        assert 2 not in heads_of_keys(model, *given)
        assert_same(plain, model, *given)


def test_both_keys_and_values_must_be_repeated_equally() -> None:
    model = autofuse.optimize(Grouped(by_expand, APART["repeat tiles the heads"]), operands())
    assert heads_of_keys(model, *operands()) in ([6], [])
    assert_same(Grouped(by_expand, APART["repeat tiles the heads"]), model, *operands())


def test_another_number_of_groups_is_checked_at_the_call() -> None:
    model = autofuse.optimize(Grouped(by_expand), operands())
    for g in (1, 4):
        assert_same(Grouped(by_expand), model, *operands(g=g))
    one_query_head = torch.randn(2, 1, 5, 4), *operands()[1:]
    assert_same(Grouped(by_expand), model, *one_query_head)


def test_a_child_that_repeats_is_recognized() -> None:
    model = autofuse.optimize(ByAChild(), operands())
    assert heads_of_keys(model, *operands()) == [2]
    assert_same(ByAChild(), model, *operands())


def test_reading_a_size_of_the_repeated_keys_does_not_keep_them() -> None:
    mask = torch.zeros(1, 1, 5, 9)
    mask[..., 3:] = -1.0
    model = autofuse.optimize(AskedForLengths(), (*operands(), mask))
    assert heads_of_keys(model, *operands(), mask) == [2]
    assert_same(AskedForLengths(), model, *operands(), mask)


def test_gradients_of_shared_heads_are_the_sums_of_those_of_the_copies() -> None:
    given = [x.double().requires_grad_() for x in operands()]
    model = autofuse.optimize(Grouped(by_expand), tuple(given))
    expected = torch.autograd.grad(Grouped(by_expand)(*given).square().sum(), given)
    for one, other in zip(torch.autograd.grad(model(*given).square().sum(), given), expected, strict=True):
        torch.testing.assert_close(one, other)
