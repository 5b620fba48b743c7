"""autofuse.verify.arithmetic: dropout is off and recorded, hard-coded dtypes become double, rounding has the stated
size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from autofuse.verify.arithmetic import AsWrittenMode, DoubleMode, RandomRoundingMode

x = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))

DROPOUTS: dict[str, Callable[[], Tensor]] = {
    "F.dropout": lambda: F.dropout(x, 0.3),
    "F.dropout by keyword": lambda: F.dropout(input=x, p=0.3),
    "torch.dropout": lambda: torch.dropout(x, 0.3, True),
    "nn.Dropout": lambda: torch.nn.Dropout(0.3)(x),
    "F.alpha_dropout": lambda: F.alpha_dropout(x, 0.3, True),
    "F.dropout1d": lambda: F.dropout1d(x, 0.3),
    "scaled_dot_product_attention": lambda: F.scaled_dot_product_attention(x, x, x, dropout_p=0.3),
    "the same by position": lambda: F.scaled_dot_product_attention(x, x, x, None, 0.3),
}


@pytest.mark.parametrize("dropped", DROPOUTS.values(), ids=DROPOUTS)
def test_dropout_is_off_and_its_rate_is_recorded(dropped: Callable[[], Tensor]) -> None:
    with AsWrittenMode() as mode:
        assert torch.equal(dropped(), dropped())
    assert mode.rates == [0.3, 0.3]


def test_dropout_that_drops_nothing_is_not_recorded() -> None:
    with AsWrittenMode() as mode:
        F.dropout(x, 0.3, False)
        F.dropout(x, 0.0)
        F.alpha_dropout(x, 0.3)
    assert mode.rates == []


FLOATS: dict[str, Callable[[Tensor], Tensor]] = {
    "x.float()": lambda x: x.float(),
    "x.half()": lambda x: x.half(),
    "x.to(dtype)": lambda x: x.to(torch.float32),
    "x.to(device, dtype)": lambda x: x.to("cpu", torch.float16),
    "x.type(dtype)": lambda x: x.type(torch.bfloat16),
    "x.type(name)": lambda x: x.type("torch.FloatTensor"),
    "softmax": lambda x: F.softmax(x, -1, dtype=torch.float32),
    "sum": lambda x: x.sum(-1, dtype=torch.float32),
    "zeros": lambda x: torch.zeros(4, dtype=torch.float32),
    "a factory of the default dtype": lambda x: torch.linspace(0, 1, 4),
    "torch.tensor": lambda x: torch.tensor(0.1),
    "a constant in single precision": lambda x: x @ CONSTANT,
    "random numbers": lambda x: torch.rand(4),
    "random numbers like x": lambda x: torch.rand_like(x),
}
CONSTANT = torch.randn(4, 4)


@pytest.mark.parametrize("compute", FLOATS.values(), ids=FLOATS)
def test_hard_coded_dtypes_become_double(compute: Callable[[Tensor], Tensor]) -> None:
    with DoubleMode(torch.float32):
        assert compute(x.double()).dtype is torch.float64


def test_random_numbers_are_those_of_the_original_dtype() -> None:
    draws: list[Callable[[Tensor], Tensor]] = [
        lambda x: torch.rand(4),
        torch.randn_like,
        lambda x: torch.bernoulli(x.sigmoid()),
        lambda x: x.clone().uniform_(),
    ]
    for draw in draws:
        torch.manual_seed(0)
        written = draw(x)
        torch.manual_seed(0)
        with DoubleMode(torch.float32):
            assert torch.equal(draw(x.double()), written.double())


def test_finfo_describes_the_original_dtype() -> None:
    real = torch.finfo
    with DoubleMode(torch.bfloat16):
        assert torch.finfo(torch.float64).eps == real(torch.bfloat16).eps
        assert torch.finfo(torch.float64).min == real(torch.float32).min
        assert torch.finfo(torch.float16).max == 65504.0
        assert torch.equal(F.rms_norm(x.double(), (4,)), F.rms_norm(x.double(), (4,), eps=real(torch.bfloat16).eps))
    assert torch.finfo is real and torch.get_default_dtype() is torch.float32


def test_in_place_operations_stay_in_place() -> None:
    with DoubleMode(torch.float32):
        t = torch.zeros(4, dtype=torch.float64)
        t += 1.0
        t[0] = 5.0
        t.mul_(2.0)
    assert t.tolist() == [10.0, 2.0, 2.0, 2.0]


def test_rounding_changes_results_and_gradients_by_the_unit() -> None:
    unit = 1e-6
    exact = x.double().requires_grad_()
    with RandomRoundingMode(torch.float32, unit, 0):
        moved = exact.exp().sin()
    (gradient,) = torch.autograd.grad(moved.sum(), exact)
    plain = exact.exp().sin()
    (expected,) = torch.autograd.grad(plain.sum(), exact)
    for one, other in ((moved, plain), (gradient, expected)):
        error = (one - other).abs().max() / other.abs().max()
        assert 0 < error < 30 * unit


def test_rounding_shows_terms_that_cancel_inside_softmax() -> None:
    """The gradient of a weight that rounds to 1 is 0; a fused kernel rounds two equal terms differently."""
    scores = torch.tensor([[1e4, 0.0, -1e4]], dtype=torch.float64, requires_grad=True)

    def gradient(context: Any) -> Tensor:
        with context:
            weights = torch.softmax(scores, -1)
        return torch.autograd.grad(weights[0, 0], scores)[0]

    assert not gradient(DoubleMode(torch.float32)).any()
    assert gradient(RandomRoundingMode(torch.float32, 1e-6, 0)).any()


def test_views_and_whole_numbers_are_not_rounded() -> None:
    with RandomRoundingMode(torch.float32, 1e-3, 0):
        assert torch.equal(torch.arange(4.0) - 1.0, torch.tensor([-1.0, 0.0, 1.0, 2.0], dtype=torch.float64))
        assert torch.equal(x.double().mT, x.double().mT)
