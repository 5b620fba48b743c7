"""Names of classes and functions are guarded where forward can read them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

import autofuse


def helper() -> None:
    """A function whose name is read."""


class Attention(nn.Module):
    """Attention whose scale follows from a name."""

    def __init__(self, name: Callable[[Attention], str]) -> None:
        super().__init__()
        self.name, self.child = name, nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        scale = 2.0 if "Other" in self.name(self) else 0.25
        return torch.softmax(x @ x.transpose(-2, -1) * scale, -1) @ x


NAMES: dict[str, Callable[[Attention], str]] = {
    "of the class": lambda m: type(m).__name__,
    "by torch": lambda m: m._get_name(),
    "in a text": lambda m: f"{Attention}",
    "in a text with %": lambda m: "%s" % Attention,  # noqa: UP031
    "of a function": lambda m: helper.__name__,
}


@pytest.fixture(autouse=True)
def _names() -> Iterator[None]:
    yield
    for named, name in ((Attention, "Attention"), (helper, "helper")):
        named.__name__ = named.__qualname__ = name


@pytest.mark.parametrize("name", NAMES)
def test_an_assigned_name_is_noticed(name: str) -> None:
    plain, x = Attention(NAMES[name]), torch.randn(2, 5, 8)
    model = autofuse.optimize(copy.deepcopy(plain), x, tune=False)
    assert [s.rule for s in autofuse.report(model).with_status("fused")] == ["AF101"]
    torch.testing.assert_close(model(x), plain(x))
    Attention.__name__ = Attention.__qualname__ = helper.__name__ = "Other"
    torch.testing.assert_close(model(x), plain(x))


@pytest.mark.parametrize("fill", [lambda m: "", lambda m: "" if m.child.in_features % m.child.out_features else "none"])
def test_a_forward_that_reads_no_name_has_no_such_guard(fill: Callable[[Attention], str]) -> None:
    model, x = Attention(fill), torch.randn(2, 5, 8)
    autofuse.optimize(model, x, tune=False)
    Attention.__name__ = "Other"
    model(x)
    assert not autofuse.report(model).fallbacks


def test_a_name_that_a_dispatcher_got_stays_after_restore() -> None:
    model, x = Attention(NAMES["of the class"]), torch.randn(2, 5, 8)
    autofuse.optimize(model, x, tune=False)
    before = Attention.forward.__name__
    Attention.forward.__name__ = "attend"
    try:
        autofuse.restore(model)
        assert Attention.forward.__name__ == "attend"
    finally:
        Attention.forward.__name__ = before
