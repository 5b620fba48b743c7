"""`optimize` leaves the state outside of a module unchanged, and later calls still update it."""

from __future__ import annotations

import copy
import functools
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

import autofuse
from tests.fx.conftest import computed, fused_rules

MASKS: dict[int, Tensor] = {}
SEEN: list[Tensor] = []
MASK: Tensor | None = None
CALLS = 0


def causal_mask(n: int) -> Tensor:
    return torch.ones(n, n, dtype=torch.bool).tril()


def in_a_dict(n: int) -> Tensor:
    if n not in MASKS:
        MASKS[n] = causal_mask(n)
    return MASKS[n]


@functools.lru_cache
def by_functools(n: int) -> Tensor:
    return causal_mask(n)


def in_a_global(n: int) -> Tensor:
    global MASK
    if MASK is None or MASK.shape[0] < n:
        MASK = causal_mask(n)
    return MASK[:n, :n]


def in_a_default(n: int, cache: dict[int, Tensor] = {}) -> Tensor:  # noqa: B006
    if n not in cache:
        cache[n] = causal_mask(n)
    return cache[n]


class Masks:
    cache: ClassVar[dict[int, Tensor]] = {}

    @classmethod
    def of(cls, n: int) -> Tensor:
        if n not in cls.cache:
            cls.cache[n] = causal_mask(n)
        return cls.cache[n]


class Attention(nn.Module):
    def __init__(self, mask: Callable[[int], Tensor]) -> None:
        super().__init__()
        self.qkv, self.mask = nn.Linear(8, 24), mask

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = (q @ k.mT).masked_fill(~self.mask(x.shape[1]), float("-inf"))
        return torch.softmax(scores, -1) @ v


class Counts(Attention):
    def forward(self, x: Tensor) -> Tensor:
        global CALLS
        CALLS += 1
        return super().forward(x)


class Collects(Attention):
    def forward(self, x: Tensor) -> Tensor:
        SEEN.append(x)
        return super().forward(x)


def clear_caches() -> None:
    global MASK
    MASK = None
    by_functools.cache_clear()
    for cache in (MASKS, Masks.cache, SEEN, *(in_a_default.__defaults__ or ())):
        cache.clear()


@pytest.mark.parametrize("example", [True, False])
@pytest.mark.parametrize("mask", [in_a_dict, by_functools, in_a_global, in_a_default, Masks.of])
def test_a_cached_mask_is_never_fake_and_exists_after_a_call(mask: Callable[[int], Tensor], example: bool) -> None:
    clear_caches()
    model, x = Attention(mask), torch.randn(2, 6, 8)
    autofuse.optimize(model, x if example else None)
    assert MASK is None and not MASKS and not Masks.cache
    output, gradients = computed(model, x)
    masks = [MASK, *MASKS.values(), *Masks.cache.values(), *in_a_default.__defaults__[0].values()]  # type: ignore[index]
    assert ("AF101" in fused_rules(model)) == (mask is by_functools)
    assert any(m is not None and torch.equal(m, causal_mask(6)) for m in masks) == (mask is not by_functools)
    expected, others = computed(autofuse.restore(model), x)
    assert not isinstance(mask(6), FakeTensor)
    for one, other in zip([output, *gradients], [expected, *others], strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", [Counts, Collects])
def test_state_that_each_call_updates_is_still_updated(kind: type[Attention]) -> None:
    clear_caches()
    model, x = kind(causal_mask), torch.randn(2, 6, 8)
    autofuse.optimize(model, x)
    before = CALLS, len(SEEN)
    assert not SEEN and not fused_rules(model)
    model(x)
    assert (CALLS, len(SEEN)) != before


class Activated(nn.Module):
    def __init__(self, activation: Any) -> None:
        super().__init__()
        self.up, self.down, self.activation = nn.Linear(8, 16), nn.Linear(16, 8), activation

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(self.activation(self.up(x)))
        return y


@pytest.mark.parametrize("first", [F.gelu, functools.partial(F.gelu, approximate="tanh"), F.silu])
def test_a_function_in_an_attribute_may_be_replaced(first: Any) -> None:
    model, x = Activated(first), torch.randn(3, 8)
    autofuse.optimize(model, x)
    assert "AF304" in fused_rules(model)
    for other in (F.relu, functools.partial(F.gelu, approximate="none"), nn.SiLU().forward):
        model.activation = other
        torch.testing.assert_close(model(x), model.down(other(model.up(x))))


class CreatesAtLookup(OrderedDict[str, Any]):
    """A table whose items are created at each lookup, like the tables of activations in some libraries."""

    def __getitem__(self, key: str) -> Any:
        raise AssertionError(f"{key} was looked up")


TABLE = CreatesAtLookup(gelu=nn.GELU)


def test_optimize_looks_up_nothing_in_a_table_of_the_program() -> None:
    assert list(TABLE) == ["gelu"]
    model, x = Activated(F.silu), torch.randn(3, 8)
    autofuse.optimize(model, x)
    assert "AF304" in fused_rules(model)


class HoldsLambda(nn.Module):
    """An MLP as a lambda over its own children, as in minGPT."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
        self.mlp = lambda x: self.down(F.gelu(self.up(x)))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.mlp(x)
        return y


def test_a_lambda_over_children_is_fused() -> None:
    model, x = HoldsLambda(), torch.randn(3, 8)
    expected = model(x)
    autofuse.optimize(model, x)
    assert "AF304" in fused_rules(model)
    torch.testing.assert_close(model(x), expected)


def test_the_lambda_of_a_copy_still_runs_the_children_of_the_original() -> None:
    model, x = HoldsLambda(), torch.randn(3, 8)
    autofuse.optimize(model, x)
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.up.weight.zero_()
    torch.testing.assert_close(other(x), model(x))


class MovesMask(nn.Module):
    """CLIP moves its mask to the device of the input at each call."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.mask, self.bias = nn.Linear(8, 24), torch.zeros(6, 6), None

    def forward(self, x: Tensor) -> Tensor:
        self.mask = self.mask.to(dtype=x.dtype, device=x.device)
        self.bias = self.bias.to(x.device) if self.bias is not None else None
        q, k, v = self.qkv(x).chunk(3, -1)
        return (q @ k.mT + self.mask).softmax(-1) @ v


def test_an_assignment_of_the_same_value_is_allowed() -> None:
    model, x = MovesMask(), torch.randn(2, 6, 8)
    expected, mask = model(x), model.mask
    autofuse.optimize(model, x)
    assert "AF101" in fused_rules(model) and model.mask is mask
    torch.testing.assert_close(model(x), expected)


def in_a_call(x: Tensor) -> Tensor:
    parts: list[Tensor] = []

    def add(part: Tensor) -> None:
        parts.append(part)

    for part in x.chunk(3, -1):
        add(part)
    q, k, v = parts
    return torch.softmax(q @ k.mT, -1) @ v


class CallsAClosure(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x: Tensor) -> Tensor:
        return in_a_call(self.qkv(x))


def test_a_write_to_a_variable_of_an_enclosing_active_call_is_allowed() -> None:
    model, x = CallsAClosure(), torch.randn(2, 6, 8)
    expected = computed(model, x)
    autofuse.optimize(model, x)
    assert "AF101" in fused_rules(model)
    torch.testing.assert_close(computed(model, x), expected, atol=1e-5, rtol=1e-5)


def recorder_of(cache: list[Tensor]) -> Callable[[Tensor], Tensor]:
    def add(x: Tensor) -> Tensor:
        cache.append(x)
        return x

    return add


class CallsAnEarlierClosure(CallsAClosure):
    def __init__(self) -> None:
        super().__init__()
        self.cache: list[Tensor] = []
        self.add = recorder_of(self.cache)

    def forward(self, x: Tensor) -> Tensor:
        recorder_of([])(x)
        return super().forward(self.add(x))


def test_each_call_still_writes_to_a_closure_of_an_earlier_call() -> None:
    model, x = CallsAnEarlierClosure(), torch.randn(2, 6, 8)
    autofuse.optimize(model, x)
    assert not model.cache
    model(x), model(x)
    assert len(model.cache) == 2
