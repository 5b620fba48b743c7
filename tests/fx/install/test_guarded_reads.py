"""What was rewritten follows from the classes and dtypes of the module's own tensors, so these are guarded."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autofuse
from tests.fx.conftest import fused_rules

X = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.eye(4).bool() | (torch.arange(16).view(4, 4) % 3 == 0))

    def forward(self, x: Tensor) -> Tensor:
        scores = (x @ x.mT * 0.5).masked_fill(~self.kept, -torch.inf)
        return scores.softmax(-1) @ x


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(1, 2, 8, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class Recorded(Tensor):
    """A tensor that notes which functions get it."""

    calls: list[str] = []  # noqa: RUF012

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.calls.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {})


def result(module: nn.Module) -> Tensor | str:
    try:
        return module(X).detach()
    except Exception as error:
        return type(error).__name__


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.int64, torch.uint8, torch.bool])
def test_a_mask_of_another_dtype_is_not_read_as_the_mask_that_it_replaced(dtype: torch.dtype) -> None:
    model = Masked()
    plain = copy.deepcopy(model)
    autofuse.optimize(model, (X,), tune=False)
    assert fused_rules(model) == {"AF101"}
    for each in (model, plain):
        each.kept = each.kept.to(dtype)
    torch.testing.assert_close(result(model), result(plain)) if dtype is torch.bool else None
    assert type(result(model)) is type(result(plain))
    assert isinstance(result(plain), Tensor) or result(model) == result(plain)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_weight_of_another_dtype_gives_the_dtype_of_the_original(dtype: torch.dtype) -> None:
    model = Norm()
    plain = copy.deepcopy(model)
    autofuse.optimize(model, (X,), tune=False)
    for each in (model, plain):
        each.weight.data = each.weight.data.to(dtype)
    torch.testing.assert_close(result(model), result(plain), check_dtype=True)


def test_a_tensor_that_overrides_functions_sees_the_calls_of_the_original() -> None:
    model = Norm()
    plain = copy.deepcopy(model)
    autofuse.optimize(model, (X,), tune=False)
    assert fused_rules(model) == {"AF202"}
    seen = []
    for each in (model, plain):
        each.weight = nn.Parameter(torch.ones(8, dtype=torch.float64).as_subclass(Recorded), requires_grad=False)
        Recorded.calls.clear()
        each(X)
        seen.append(list(Recorded.calls))
    assert seen[0] == seen[1] and "rms_norm" not in seen[0]
