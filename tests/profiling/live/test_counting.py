"""FLOPs, bytes and operators by module and phase, compared with counts by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from autofuse.profiling.live.counting import Counting
from autofuse.profiling.live.module_calls import ModuleNames
from autofuse.profiling.live.roofs import Roofs
from autofuse.profiling.trace.work import Own
from autofuse.results.profile import OUTSIDE, Work


class Gate(nn.Module):
    """Multiplies its input by what a layer makes of it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.layer(x)


class Twice(nn.Module):
    def __init__(self, use_reentrant: bool | None = None) -> None:
        super().__init__()
        self.one, self.other = Gate(), Gate()
        self.use_reentrant = use_reentrant

    def forward(self, x: Tensor) -> Any:
        if self.use_reentrant is None:
            return self.other(self.one(x))
        return checkpoint(lambda x: self.other(self.one(x)), x, use_reentrant=self.use_reentrant)


@pytest.fixture
def x() -> Tensor:
    return torch.randn(4, 8, requires_grad=True)


def works(model: nn.Module, run: Callable[[], object], **options: Any) -> Own:
    with Counting(ModuleNames({"": model}), **options) as counting:
        run()
    return counting.works()


PRODUCT = 2 * 4 * 8 * 8
X, WEIGHT = 4 * 8 * 4, 8 * 8 * 4  # bytes


def test_operators_belong_to_the_innermost_module_in_both_directions(x: Tensor) -> None:
    model = Twice()

    found = works(model, lambda: model(x).sum().backward())

    for name in ("one", "other"):
        assert found[f"{name}.layer", "forward"] == Work(0.0, PRODUCT, 2 * X + WEIGHT, 1)
        # Two products, and the second gradient of x added to the first.
        assert found[f"{name}.layer", "backward"] == Work(0.0, 2 * PRODUCT, 2 * (2 * X + WEIGHT) + 3 * X, 3)
        assert found[name, "forward"] == Work(0.0, 0, 3 * X, 1)
    assert found["one", "backward"] == Work(0.0, 0, 6 * X, 2)
    assert found["other", "backward"].bytes == 2 * (4 + 2 * X)  # the gradient of a sum is one number, expanded
    assert found[OUTSIDE, "forward"].bytes == X + 4 + 4  # the sum, and the 1 that its backward starts with
    assert ("", "forward") not in found


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_a_recomputed_forward_is_part_of_its_modules_backward(x: Tensor, use_reentrant: bool) -> None:
    plain, model = Twice(), Twice(use_reentrant)

    before = works(plain, lambda: plain(x).sum().backward())
    after = works(model, lambda: model(x).sum().backward())

    assert after["one", "forward"] == before["one", "forward"]
    assert after["one.layer", "forward"] == before["one.layer", "forward"]
    assert after["one.layer", "backward"].flops == 3 * PRODUCT
    assert after["one", "backward"].operators >= before["one", "backward"].operators + 1


def test_several_steps_make_the_average(x: Tensor) -> None:
    model = Twice()

    def run() -> None:
        for _ in range(3):
            model(x).sum().backward()

    one = works(model, lambda: model(x).sum().backward())
    model.zero_grad()
    three = works(model, run, steps=3)

    assert three["one.layer", "forward"] == one["one.layer", "forward"]


def test_a_module_under_two_names_has_the_first_and_parts_of_several_models_their_prefix(x: Tensor) -> None:
    gate = Gate()
    both = nn.Sequential(gate, gate)

    with Counting(ModuleNames({"g": both, "d": nn.ReLU()})) as counting:
        both(x)

    assert counting.works()["g.0.layer", "forward"].flops == 2 * PRODUCT


def test_ideal_seconds_are_those_of_each_operator(x: Tensor) -> None:
    layer = nn.Linear(8, 8, bias=False)
    machine = Roofs("toy", ((0, 64.0),), 1.0, 1.0, {"float32": 256.0})

    with torch.no_grad(), Counting(ModuleNames({"": layer})) as counting:
        layer(x).relu()

    found = counting.works(machine)
    assert found["", "forward"].ideal_seconds == max(PRODUCT / 256, (2 * X + WEIGHT) / 64)
    assert found[OUTSIDE, "forward"].ideal_seconds == 2 * X / 64


def test_an_accumulated_gradient_belongs_to_the_node_that_computed_it(x: Tensor) -> None:
    model = Twice()
    model(x).sum().backward()

    again = works(model, lambda: model(x).sum().backward())

    assert again["one.layer", "backward"].operators == 5  # and those of x and of the weight are added to what is there
    assert again["one.layer", "backward"].bytes == 2 * (2 * X + WEIGHT) + 3 * X + 3 * X + 3 * WEIGHT


def test_flops_are_counted_by_dtype() -> None:
    layer = nn.Linear(8, 8, bias=False)

    with Counting(ModuleNames({"": layer})) as counting, torch.autocast("cpu", torch.bfloat16):
        layer(torch.randn(4, 8))
        layer(torch.randn(4, 8)).double() @ torch.ones(8, 1, dtype=torch.float64)

    assert counting.by_dtype == {"bfloat16": 2 * PRODUCT, "float64": PRODUCT // 8}
    assert counting.flops.dtype == "bfloat16"


def test_nothing_is_left_on_the_modules(x: Tensor) -> None:
    model = Twice()
    call, state = nn.Module.__call__, {key: dict(vars(m)) for key, m in model.named_modules()}

    with pytest.raises(ZeroDivisionError), Counting(ModuleNames({"": model})):
        model(x)
        1 / 0  # noqa: B018

    assert nn.Module.__call__ is call
    assert state == {key: dict(vars(m)) for key, m in model.named_modules()}


def test_under_inference_mode_composites_are_counted_by_their_parts() -> None:
    layer, x = nn.Linear(8, 8, bias=False), torch.randn(2, 2, 8)

    with torch.inference_mode(), Counting(ModuleNames({"": layer})) as counting:
        layer(x)

    assert counting.works()["", "forward"] == Work(0.0, PRODUCT, 2 * X + WEIGHT, 1)
