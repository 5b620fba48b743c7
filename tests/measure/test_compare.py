"""Tests of compare() on models with a few hundred parameters. No test asserts how long anything takes."""

from __future__ import annotations

import copy
from typing import Any, get_args

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autofuse.measure import Comparison, Verdict, compare
from autofuse.measure.compare import device_of


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 48)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(x).chunk(3, dim=-1)
        weights = torch.softmax(query @ key.transpose(-2, -1) / 4, dim=-1)
        out: Tensor = self.drop(weights) @ value
        return out


class Fused(Attention):
    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (part.unsqueeze(1) for part in self.qkv(x).chunk(3, dim=-1))
        return F.scaled_dot_product_attention(query, key, value).squeeze(1)


X = torch.randn(2, 8, 16)


def run_compare(**options: Any) -> Comparison:
    return compare(Attention(), Fused(), X, **({"pairs": 4, "warmup": 1} | options))


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    return run_compare()


def test_a_comparison_holds_times_memory_operators_and_a_verdict(comparison: Comparison) -> None:
    assert comparison.verdict in get_args(Verdict)
    assert len(comparison.before_seconds) == len(comparison.after_seconds) == comparison.pairs == 4
    assert comparison.interval.low <= comparison.ratio <= comparison.interval.high
    assert comparison.interval.low <= comparison.interval.high
    assert comparison.before_peak_bytes and comparison.after_peak_bytes
    assert comparison.environment["torch"] == torch.__version__


def test_operators_after_contain_the_fused_kernel(comparison: Comparison) -> None:
    assert "attention" not in comparison.operators_before
    assert "aten::_scaled_dot_product_flash_attention_for_cpu" in comparison.operators_after["attention"].operators
    new = " ".join(row[-1].text for row in comparison.operators_table().rows)
    assert "aten::_scaled_dot_product_flash_attention_for_cpu x1" in new


@pytest.mark.parametrize("inputs", [X, (X,), {"x": X}])
def test_inputs_have_the_same_forms_as_for_optimize(inputs: Any) -> None:
    assert compare(Attention(), Fused(), inputs, pairs=2, warmup=0).pairs == 2


def test_the_second_variant_can_be_a_copy_or_the_same_model() -> None:
    model = Attention()
    assert compare(model, copy.deepcopy(model), X, pairs=2, warmup=0).pairs == 2
    assert compare(model, model, X, pairs=2, warmup=0).pairs == 2


def test_a_custom_step_gets_the_model_and_the_unchanged_inputs() -> None:
    calls: list[tuple[object, object]] = []
    before, after, inputs = Attention(), Fused(), [X, "anything"]
    compare(before, after, inputs, lambda *call: calls.append(call), pairs=3, warmup=2)  # type: ignore[arg-type]
    assert {id(model) for model, _ in calls} == {id(before), id(after)}
    assert all(passed is inputs for _, passed in calls)
    # Warm-up, pairs, one step for memory and one for operators.
    assert len(calls) == 2 * (2 + 3 + 1 + 1)


def test_models_that_a_step_trains_are_restored() -> None:
    before, after = Attention(), Fused().eval()
    optimizers = {model: torch.optim.SGD(model.parameters(), lr=0.1) for model in (before, after)}
    states = [copy.deepcopy(model.state_dict()) for model in (before, after)]
    random_state = torch.random.get_rng_state()

    def step(model: nn.Module, inputs: Tensor) -> None:
        model(inputs).square().mean().backward()
        optimizers[model].step()

    compare(before, after, X, step, pairs=2, warmup=1)
    for model, state in zip((before, after), states, strict=True):
        assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
        assert all(parameter.grad is None for parameter in model.parameters())
    assert before.training and not after.training
    assert torch.equal(torch.random.get_rng_state(), random_state)


def test_peak_memory_includes_gradients_wherever_a_step_clears_them() -> None:
    def at_the_end(model: nn.Module, inputs: Tensor) -> None:
        model(inputs).sum().backward()
        model.zero_grad()

    def at_the_start(model: nn.Module, inputs: Tensor) -> None:
        model.zero_grad()
        model(inputs).sum().backward()

    model = Attention()
    peaks = [compare(model, model, X, step, pairs=2).before_peak_bytes for step in (at_the_end, at_the_start)]
    assert peaks[0] == peaks[1]


def test_functions_can_be_compared() -> None:
    assert compare(torch.sin, torch.cos, X, pairs=2, warmup=0).operators_before["elementwise"].operators == {
        "aten::sin": 1
    }


def test_nothing_is_printed_if_stderr_is_not_a_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    run_compare(pairs=2)
    out, err = capfd.readouterr()
    assert "pairs of steps" not in out + err


def test_too_few_pairs_raise_an_error_before_anything_runs() -> None:
    with pytest.raises(ValueError, match="A/A control"):
        compare(lambda x: pytest.fail("it ran"), Fused(), X, pairs=1)


def test_inputs_of_another_type_raise_an_error() -> None:
    with pytest.raises(TypeError, match="tuple of positional"):
        compare(Attention(), Fused(), 3, pairs=2)  # type: ignore[arg-type]


def test_the_device_is_the_cpu_if_all_tensors_are_there() -> None:
    assert device_of(Attention(), X).type == "cpu"
    assert device_of(len, (1, 2)).type == "cpu"
