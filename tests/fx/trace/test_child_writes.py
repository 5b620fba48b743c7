"""A parent that reads what its child writes in the same call computes what it computed; other parents are fused."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import autofuse
from tests.fx.conftest import fused_rules

TABLE = {"length": 0}


class Child(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.length, self.kept, self.fixed = 0, {"length": 0}, 0.5

    def forward(self, x: Tensor) -> Tensor:
        TABLE["length"] = self.kept["length"] = self.length = x.shape[1]
        return torch.tanh(x)


class Parent(nn.Module):
    def __init__(self, read: str) -> None:
        super().__init__()
        self.child, self.read = Child(), read

    def forward(self, x: Tensor) -> Tensor:
        y = self.child(x)
        scores = y @ y.mT * 0.3
        if self.read == "attribute":
            return torch.softmax(scores, -1) @ y * self.child.length
        if self.read == "dict":
            return torch.softmax(scores, -1) @ y * self.child.kept["length"]
        if self.read == "global":
            return torch.softmax(scores, -1) @ y * TABLE["length"]
        return torch.softmax(scores, -1) @ y * self.child.fixed


@pytest.mark.parametrize("read", ["attribute", "dict", "global"])
def test_what_a_child_writes_is_read_in_every_call(read: str) -> None:
    model, x = Parent(read).double(), torch.randn(2, 6, 4, dtype=torch.float64)
    fused = autofuse.optimize(copy.deepcopy(model), (x,), tune=False)
    for length in (6, 3, 6, 2):
        torch.testing.assert_close(fused(x[:, :length]), model(x[:, :length]))
    (why,) = (s.reason for s in autofuse.report(fused).sites if s.module == "")
    assert "which a child writes during the call" in why or "outside of the module" in why


def test_a_parent_that_does_not_read_it_is_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TABLE, "length", 6)
    fused = autofuse.optimize(Parent("nothing"), (torch.randn(2, 6, 4),), tune=False)
    assert "AF101" in fused_rules(fused)


class Optional(nn.Module):
    """Holds a list or nothing, and adds to the list."""

    def __init__(self, seen: list[int] | None) -> None:
        super().__init__()
        self.seen = seen

    def forward(self, x: Tensor) -> Tensor:
        if self.seen is not None:
            self.seen.append(len(x))
        return torch.tanh(x)


class Asks(nn.Module):
    """Reads None, as an attribute that has nothing to do with what its child holds."""

    def __init__(self, seen: list[int] | None) -> None:
        super().__init__()
        self.child, self.token = Optional(seen), None

    def forward(self, x: Tensor) -> Tensor:
        y = self.child(x)
        scores = y @ y.mT if self.token is None else y @ self.token
        return torch.softmax(scores * 0.3, -1) @ y


def test_none_is_not_altered_by_a_child_that_may_hold_a_list_there() -> None:
    model, x = Asks(None).double(), torch.randn(2, 6, 4, dtype=torch.float64)
    fused = autofuse.optimize(copy.deepcopy(model), (x,), tune=False)
    assert "AF101" in fused_rules(fused)
    torch.testing.assert_close(fused(x), model(x))
    fused.child.seen = []  # type: ignore[union-attr]
    torch.testing.assert_close(fused(x), model(x))
    assert fused.child.seen == [2]  # type: ignore[union-attr]
