"""Which operators a step runs, by category."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.profiler import record_function

from autofuse.ir.operator_categories import ORDER
from autofuse.measure.operators import operators_of

CPU = torch.device("cpu")
QUERY, KEY, VALUE = (torch.randn(1, 2, 8, 4, requires_grad=True) for _ in range(3))


def by_hand() -> Tensor:
    return torch.softmax(QUERY @ KEY.transpose(-2, -1) / 2, dim=-1) @ VALUE


def test_attention_by_hand_is_two_matmuls_and_a_softmax() -> None:
    found = operators_of(by_hand, CPU)
    assert (found["matmul"].count, found["softmax"].count) == (2, 1)
    assert "attention" not in found


def test_the_fused_kernel_is_named_forward_and_backward() -> None:
    found = operators_of(lambda: F.scaled_dot_product_attention(QUERY, KEY, VALUE).sum().backward(), CPU)
    assert found["attention"].operators == {
        "aten::_scaled_dot_product_flash_attention_for_cpu": 1,
        "aten::_scaled_dot_product_flash_attention_for_cpu_backward": 1,
    }
    assert not {"softmax", "matmul"} & set(found)


def test_a_composite_is_counted_by_what_it_calls_and_once() -> None:
    linear = nn.Linear(4, 4)
    found = operators_of(lambda: linear(torch.ones(2, 4)), CPU)
    assert found["matmul"].operators == {"aten::addmm": 1}


def test_views_and_allocations_are_no_work() -> None:
    assert operators_of(lambda: torch.empty(4, 4).transpose(0, 1)[1:].unsqueeze(0).detach(), CPU) == {}


@pytest.mark.parametrize("fused", [False, True])
def test_what_runs_under_an_optimizers_step_is_the_optimizers(fused: bool) -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters(), fused=fused)
    model(torch.ones(2, 4)).sum().backward()
    found = operators_of(optimizer.step, CPU)
    assert set(found) == {"optimizer"}
    assert ("aten::_fused_adamw_" in found["optimizer"].operators) is fused


def test_compiled_graphs_are_counted_under_one_name() -> None:
    def step() -> None:
        with record_function("## Call CompiledFxGraph first ##"):
            torch.ones(2).exp()
        with record_function("## Call CompiledFxGraph second ##"):
            pass

    assert operators_of(step, CPU)["compiled"].operators == {"CompiledFxGraph": 2}


def test_counts_are_sums_and_seconds_are_durations() -> None:
    found = operators_of(by_hand, CPU)
    assert all(category.count == sum(category.operators.values()) > 0 for category in found.values())
    assert all(0 <= category.seconds < 60 for category in found.values())


def test_categories_come_in_one_order() -> None:
    found = list(operators_of(lambda: by_hand().sum().backward(), CPU))
    assert found == sorted(found, key=ORDER.index)
