"""Tests of counting operators by category."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.profiler import record_function

from autofuse.ir.operator_categories import ORDER
from autofuse.measure.operators import count_operators

CPU = torch.device("cpu")
QUERY, KEY, VALUE = (torch.randn(1, 2, 8, 4, requires_grad=True) for _ in range(3))


def written_out_attention() -> Tensor:
    return torch.softmax(QUERY @ KEY.transpose(-2, -1) / 2, dim=-1) @ VALUE


def test_attention_by_hand_is_two_matmuls_and_a_softmax() -> None:
    categories = count_operators(written_out_attention, CPU)
    assert (categories["matmul"].count, categories["softmax"].count) == (2, 1)
    assert "attention" not in categories


def test_fused_attention_counts_in_forward_and_backward() -> None:
    categories = count_operators(lambda: F.scaled_dot_product_attention(QUERY, KEY, VALUE).sum().backward(), CPU)
    assert categories["attention"].operators == {
        "aten::_scaled_dot_product_flash_attention_for_cpu": 1,
        "aten::_scaled_dot_product_flash_attention_for_cpu_backward": 1,
    }
    assert not {"softmax", "matmul"} & set(categories)


def test_a_composite_operator_counts_once_by_the_operators_it_calls() -> None:
    linear = nn.Linear(4, 4)
    categories = count_operators(lambda: linear(torch.ones(2, 4)), CPU)
    assert categories["matmul"].operators == {"aten::addmm": 1}


def test_views_and_allocations_do_not_count() -> None:
    assert count_operators(lambda: torch.empty(4, 4).transpose(0, 1)[1:].unsqueeze(0).detach(), CPU) == {}


@pytest.mark.parametrize("fused", [False, True])
def test_operators_in_an_optimizer_step_have_the_category_optimizer(fused: bool) -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters(), fused=fused)
    model(torch.ones(2, 4)).sum().backward()
    categories = count_operators(optimizer.step, CPU)
    assert set(categories) == {"optimizer"}
    assert ("aten::_fused_adamw_" in categories["optimizer"].operators) is fused


def test_compiled_graphs_count_under_one_name() -> None:
    def step() -> None:
        with record_function("## Call CompiledFxGraph first ##"):
            torch.ones(2).exp()
        with record_function("## Call CompiledFxGraph second ##"):
            pass

    assert count_operators(step, CPU)["compiled"].operators == {"CompiledFxGraph": 2}


def test_counts_are_sums_and_seconds_are_durations() -> None:
    categories = count_operators(written_out_attention, CPU)
    assert all(category.count == sum(category.operators.values()) > 0 for category in categories.values())
    assert all(0 <= category.seconds < 60 for category in categories.values())


def test_categories_have_a_fixed_order() -> None:
    categories = list(count_operators(lambda: written_out_attention().sum().backward(), CPU))
    assert categories == sorted(categories, key=ORDER.index)
