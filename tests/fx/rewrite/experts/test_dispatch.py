"""Tokens that one-hot tensors send to places of experts are read by index, and results do not change."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import autofuse
from tests.fx.trace.test_fold_experts import assert_equal_steps, codes, send_all_to_first
from tests.spellings import dispatched_experts
from tests.spellings.experts import WIDTH


def model_of(kind: type[nn.Module]) -> tuple[nn.Module, nn.Module, Tensor]:
    torch.manual_seed(0)
    model, x = kind().double(), torch.randn(2, 5, WIDTH, dtype=torch.float64)
    return model, autofuse.optimize(copy.deepcopy(model), (x,), tune=False, verify=False), x


@pytest.mark.parametrize("kind", dispatched_experts.FOUND)
def test_rows_are_read_by_index(kind: type[nn.Module]) -> None:
    model, fused, x = model_of(kind)
    found = [s for s in autofuse.report(fused).sites if s.rule == "AF701" and s.status == "fused"]
    assert len(found) == 2, str(autofuse.report(fused))
    for training in (True, False):
        assert_equal_steps(model.train(training), fused.train(training), x, 1e-12)
    assert_equal_steps(model, fused, torch.randn(3, 8, WIDTH, dtype=torch.float64), 1e-12)
    for m in (model, fused):
        send_all_to_first(m)
    assert_equal_steps(model, fused, x, 1e-12)  # tokens over the capacity are dropped


@pytest.mark.parametrize("kind", dispatched_experts.LOOK_ALIKES)
def test_a_product_whose_entries_all_count_is_unchanged(kind: type[nn.Module]) -> None:
    model, fused, _ = model_of(kind)
    for shape in ((2, 5), (3, 7)):
        assert_equal_steps(model, fused, torch.randn(*shape, WIDTH, dtype=torch.float64), 1e-12)
    assert ("AF701", "") not in codes(fused)


def test_a_mask_that_is_written_after_the_product_is_not_read_later() -> None:
    with torch.no_grad():
        model, fused, x = model_of(dispatched_experts.MaskWritten)
        torch.testing.assert_close(fused(x), model(x))


def test_results_under_autocast_have_the_dtype_of_the_original() -> None:
    torch.manual_seed(0)
    model, x = dispatched_experts.SwitchEinsum(), torch.randn(2, 5, WIDTH)
    with torch.autocast("cpu", torch.bfloat16):
        fused = autofuse.optimize(copy.deepcopy(model), (x,), tune=False)
        expected, made = model(x), fused(x)
    assert made.dtype is expected.dtype
    torch.testing.assert_close(made, expected, rtol=0.05, atol=0.05)
