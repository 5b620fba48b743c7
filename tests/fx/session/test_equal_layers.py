"""Layers that differ in an integer share a plan only if nothing depends on the integer."""

from __future__ import annotations

import copy
import ctypes
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autofuse
from autofuse.fx.rewrite.module_plan import ModulePlan, plan_trace
from autofuse.fx.session import planner as planner_file
from autofuse.fx.trace.tracer import ForwardTrace

WIDTH, LAYERS, THIRD = 16, 3, 2


class Cache:
    """Keeps the result of each layer."""

    def __init__(self) -> None:
        self.kept: list[Tensor] = []
        self.scale = 0.5

    def update(self, x: Tensor, index: int) -> Tensor:
        while len(self.kept) <= index:
            self.kept.append(torch.zeros(1))
        self.kept[index] = x * (index + 1)
        return self.kept[index]

    def narrow_or_wide(self, x: Tensor, index: int) -> tuple[Tensor, Tensor]:
        return self.update(x, index), x[:, : 1 + index % 2]

    def update_by_name(self, x: Tensor, name: str) -> Tensor:
        return self.update(x, len(name))


class Layer(nn.Module):
    """A hand-written GELU, between layers that differ in their index only."""

    def __init__(self, index: int) -> None:
        super().__init__()
        self.index, self.scales, self.table = index, [1.0, 2.0, 3.0, 4.0, 5.0], {i: 0.1 * i for i in range(9)}
        self.inner = nn.Linear(WIDTH, WIDTH)

    def gelu(self, x: Tensor) -> Tensor:
        return 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))


def _passes_on(self: Any, x: Tensor, cache: Cache) -> Tensor:
    return self.gelu(cache.update(self.inner(x), self.index))


def _passes_by_name(self: Any, x: Tensor, cache: Cache) -> Tensor:
    return self.gelu(cache.update(self.inner(x), index=getattr(self, "index")))  # noqa: B009


def _stores(cache: Cache, x: Tensor, index: int) -> Tensor:
    return cache.update(x, index)


def _passes_through_a_function(self: Any, x: Tensor, cache: Cache) -> Tensor:
    index = self.index
    return self.gelu(_stores(cache, self.inner(x), index))


def _tests_that_it_is_an_integer(self: Any, x: Tensor, cache: Cache) -> Tensor:
    return self.gelu(cache.update(self.inner(x), self.index if isinstance(self.index, int) else 0))


def _does_not_read(self: Any, x: Tensor, cache: Cache) -> Tensor:
    return self.gelu(self.inner(x))


def _indexes_constants(self: Any, x: Tensor, cache: Cache) -> Tensor:
    return self.gelu(cache.update(self.inner(x), self.index) * self.scales[self.index])


def _slices_constants(self: Any, x: Tensor, cache: Cache) -> Tensor:
    return self.gelu(self.inner(x)) * sum(self.scales[: self.index], 1.0)


def _looks_up_a_key(self: Any, x: Tensor, cache: Cache) -> Tensor:
    return self.gelu(self.inner(x)) + self.table.get(self.index, 0.0)


def _branches(self: Any, x: Tensor, cache: Cache) -> Tensor:
    hidden = cache.update(self.inner(x), self.index)
    return self.gelu(hidden) if self.index % 2 else torch.relu(hidden)


def _branches_on_membership(self: Any, x: Tensor, cache: Cache) -> Tensor:
    hidden = self.gelu(self.inner(x))
    return -hidden if self.index in (1, 3) else hidden


def _computes_with_tensors(self: Any, x: Tensor, cache: Cache) -> Tensor:
    return self.gelu(self.inner(x)) * self.index


def _computes_first(self: Any, x: Tensor, cache: Cache) -> Tensor:
    return self.gelu(cache.update(self.inner(x), self.index + 1))


def _scales_dropout(self: Any, x: Tensor, cache: Cache) -> Tensor:
    hidden = nn.functional.dropout(self.inner(x), 0.1 * self.index, self.training)
    return self.gelu(hidden) * (1 - 0.1 * self.index)


def _makes_a_name(self: Any, x: Tensor, cache: Cache) -> Tensor:
    return self.gelu(cache.update_by_name(self.inner(x), "l" * self.index))


def _formats_a_name(self: Any, x: Tensor, cache: Cache) -> Tensor:
    return self.gelu(self.inner(x)) * len(f"{self.index:>{self.index}}")


def _passes_and_branches(self: Any, x: Tensor, cache: Cache) -> Tensor:
    index = self.index
    hidden = cache.update(self.inner(x), index)
    return self.gelu(hidden) if index else hidden


def _asks_for_the_type(self: Any, x: Tensor, cache: Cache) -> Tensor:
    hidden = cache.update(self.inner(x), self.index)
    return self.gelu(hidden) * (2.0 if type(self.index) is int and self.index % 2 else 1.0)


def _catches_an_error(self: Any, x: Tensor, cache: Cache) -> Tensor:
    try:
        scale = ctypes.c_int(self.index).value % 2
    except TypeError:
        scale = 0
    return self.gelu(cache.update(self.inner(x), self.index)) * (1.0 + scale)


def _compares_by_identity(self: Any, x: Tensor, cache: Cache) -> Tensor:
    last = len(self.scales) - 3
    return self.gelu(cache.update(self.inner(x), self.index)) * (3.0 if self.index is last else 1.0)


def _reads_its_dict(self: Any, x: Tensor, cache: Cache) -> Tensor:
    return self.gelu(cache.update(self.inner(x), self.index)) * (1.0 + vars(self)["index"])


def _reads_a_copy(self: Any, x: Tensor, cache: Cache) -> Tensor:
    return self.gelu(self.inner(x)) * (1.0 + copy.copy(self).index)


def _repeats(self: Any, x: Tensor, cache: Cache) -> Tensor:
    for _ in range(self.index):
        x = x + 1
    return self.gelu(self.inner(x))


def _gets_other_sizes(self: Any, x: Tensor, cache: Cache) -> Tensor:
    hidden, some = cache.narrow_or_wide(self.inner(x), self.index)
    return self.gelu(hidden) + some.sum()


def _reads_the_cache(self: Any, x: Tensor, cache: Cache) -> Tensor:
    return self.gelu(cache.update(self.inner(x * cache.scale), self.index))


# What forward does with the index -> the number of layers whose plan is made from a trace.
SHARED: dict[Callable[..., Tensor], int] = {
    _passes_on: 1, _passes_by_name: 1, _passes_through_a_function: 1, _tests_that_it_is_an_integer: 1,
    _does_not_read: 1,
}  # fmt: skip
SPLIT: dict[Callable[..., Tensor], int] = dict.fromkeys((
    _indexes_constants, _slices_constants, _looks_up_a_key, _branches, _branches_on_membership, _computes_with_tensors,
    _computes_first, _scales_dropout, _makes_a_name, _formats_a_name, _passes_and_branches, _catches_an_error,
    _compares_by_identity, _reads_its_dict, _repeats, _reads_the_cache,
), LAYERS) | {_gets_other_sizes: 2}  # fmt: skip
REFUSED = dict.fromkeys((_asks_for_the_type, _reads_a_copy), 0)


class Stack(nn.Module):
    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.first, self.layers = nn.Linear(WIDTH, WIDTH), nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        x, cache = self.first(x), Cache()
        for layer in self.layers:
            x = layer(x, cache)
        return x + sum(kept.sum() for kept in cache.kept)


def stack_of(forward: Callable[..., Tensor]) -> Stack:
    torch.manual_seed(0)
    kind: Any = type("Case", (Layer,), {"forward": forward})
    return Stack([kind(i) for i in range(LAYERS)]).double()


def result_and_gradients(model: nn.Module, x: Tensor) -> list[Tensor]:
    result = model(x)
    return [
        result,
        *torch.autograd.grad(result.sum(), list(model.parameters()), allow_unused=True, materialize_grads=True),
    ]


@pytest.fixture
def planned_modules(monkeypatch: pytest.MonkeyPatch) -> set[nn.Module]:
    """The modules whose traces were rewritten."""
    modules: set[nn.Module] = set()

    def note(trace: ForwardTrace, *rest: Any) -> ModulePlan:
        modules.add(trace.module)
        return plan_trace(trace, *rest)

    monkeypatch.setattr(planner_file, "plan_trace", note)
    return modules


@pytest.mark.parametrize(
    ("forward", "expected"), (SHARED | SPLIT | REFUSED).items(), ids=lambda x: getattr(x, "__name__", "")
)
def test_layers_share_a_plan_only_if_it_does_not_depend_on_their_index(
    forward: Callable[..., Tensor], expected: int, planned_modules: set[nn.Module]
) -> None:
    model, x = stack_of(forward).eval(), torch.randn(2, 5, WIDTH, dtype=torch.float64)
    plain = copy.deepcopy(model)
    autofuse.optimize(model, x, tune=False, verify=False)
    assert len(planned_modules & {*model.layers}) == expected
    torch.testing.assert_close(result_and_gradients(model, x), result_and_gradients(plain, x))
    for each in (model, plain):
        each.layers[THIRD].index = 1  # type: ignore[assignment]
    torch.testing.assert_close(result_and_gradients(model, x), result_and_gradients(plain, x))


def test_all_layers_that_share_a_plan_run_fused() -> None:
    model, x = stack_of(_passes_on).eval(), torch.randn(2, 5, WIDTH, dtype=torch.float64)
    autofuse.optimize(model, x, tune=False, verify=False)
    model(x)
    report = autofuse.report(model)
    assert len(report.with_status("fused")) == LAYERS and not report.fallbacks


class Block(nn.Module):
    """Calls a layer, whose index it does not read itself, and does something with the result."""

    def __init__(self, layer: nn.Module, times: int = 1) -> None:
        super().__init__()
        self.layer, self.times = layer, times

    def forward(self, x: Tensor, cache: Cache) -> Tensor:
        hidden, _ = self.layer(x, cache)
        for _ in range(self.times - 1):
            hidden, _ = self.layer(hidden, cache)
        return 0.5 * hidden * (1 + torch.erf(hidden / 2**0.5))


def _returns_a_pair(self: Any, x: Tensor, cache: Cache) -> tuple[Tensor, None]:
    return cache.update(self.inner(x), self.index), None


def _returns_a_number_sometimes(self: Any, x: Tensor, cache: Cache) -> tuple[Tensor, Any]:
    return cache.update(self.inner(x), self.index), (None, x)[self.index % 2]


@pytest.mark.parametrize(("forward", "times", "expected"), [
    (_returns_a_pair, 1, 1), (_returns_a_pair, 2, LAYERS), (_returns_a_number_sometimes, 1, LAYERS),
])  # fmt: skip
def test_a_caller_shares_a_plan_if_the_plan_of_its_child_does_not_depend_on_the_index(
    forward: Callable[..., Any], times: int, expected: int, planned_modules: set[nn.Module]
) -> None:
    torch.manual_seed(0)
    kind: Any = type("Case", (Layer,), {"forward": forward})
    model = Stack([Block(kind(i), times) for i in range(LAYERS)]).double().eval()
    x, plain = torch.randn(2, 5, WIDTH, dtype=torch.float64), copy.deepcopy(model)
    autofuse.optimize(model, x, tune=False, verify=False)
    assert len(planned_modules & {*model.layers}) == expected
    torch.testing.assert_close(result_and_gradients(model, x), result_and_gradients(plain, x))
    assert len(autofuse.report(model).with_status("fused")) == LAYERS
    assert not autofuse.report(model).fallbacks
