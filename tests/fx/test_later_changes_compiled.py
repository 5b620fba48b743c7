"""Changes after torch.compile of an optimized model are noticed if torch.compile alone notices them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autofuse
from tests.fx.conftest import fused_rules


def weights_of(scores: Tensor) -> Tensor:
    return torch.softmax(scores, -1)


def twice(scores: Tensor) -> Tensor:
    return torch.softmax(scores * 2, -1)


class Attend(nn.Module):
    """Attention, with a function of this file."""

    def forward(self, x: Tensor) -> Tensor:
        return weights_of(x @ x.mT * 0.25) @ x


def as_scores(scores: Tensor, dim: int) -> Tensor:
    return scores


CHANGES: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "a function of the file": lambda patch: patch.setitem(globals(), "weights_of", twice),
    "a function's code": lambda patch: patch.setattr(weights_of, "__code__", twice.__code__),
    "a function of torch": lambda patch: patch.setattr(torch, "softmax", as_scores),
}


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("name", [n if n.startswith("a function of the") else pytest.param(n, marks=pytest.mark.night)
                                  for n in CHANGES])  # fmt: skip
def test_a_compiled_model_follows_what_is_replaced(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(2, 4, 8)
    model = autofuse.optimize(Attend(), (x,), tune=False)
    assert fused_rules(model)
    compiled: Any = torch.compile(model, backend="eager", fullgraph=True)
    before = Attend()(x)
    torch.testing.assert_close(compiled(x), before)
    CHANGES[name](monkeypatch)
    after = Attend()(x)
    assert not torch.allclose(before, after)
    torch.testing.assert_close(compiled(x), after)
    monkeypatch.undo()
    torch.testing.assert_close(compiled(x), before)
