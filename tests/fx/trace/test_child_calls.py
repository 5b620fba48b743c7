"""What a trace assumes about the children of a module: their number and what they return."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import autofuse


def _linear() -> nn.Linear:
    return nn.Linear(8, 8).double()


def _attend(h: Tensor, x: Tensor) -> Tensor:
    return torch.softmax(h @ x.transpose(-2, -1) * 0.3, -1) @ x


class Flagged(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.proj, self.return_weights = _linear(), False

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        weights = torch.softmax(self.proj(x) @ x.transpose(-2, -1) * 0.35, -1)
        return weights @ x, weights if self.return_weights else None


class UsesWeights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn = Flagged()

    def forward(self, x: Tensor) -> Tensor:
        h, weights = self.attn(x)
        if weights is not None:
            h = h * 3
        return _attend(h, x)


class Loops(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([_linear(), _linear()])

    def forward(self, x: Tensor) -> Tensor:
        h = x
        for part in self.parts:
            h = part(h)
        return _attend(h, x)


class WithDict(Loops):
    def __init__(self) -> None:
        super().__init__()
        self.named = nn.ModuleDict({"a": _linear()})

    def forward(self, x: Tensor) -> Tensor:
        return _attend(x * 3 if "z" in self.named else x, x)


class Weighted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ParameterList([nn.Parameter(torch.eye(8).double()) for _ in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        h = x
        for part in self.parts:
            h = h @ part
        return _attend(h, x)


class Hooked(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return _attend(x * 3 if self._forward_hooks else x, x)


@pytest.mark.parametrize(
    ("make", "change"),
    [
        (UsesWeights, lambda m: setattr(m.attn, "return_weights", True)),
        (Loops, lambda m: m.parts.append(nn.Identity())),
        (Loops, lambda m: m.parts.append(nn.Softmax(-1))),
        (Loops, lambda m: m.parts.__delitem__(-1)),
        (WithDict, lambda m: m.named.update({"z": nn.Identity()})),
        (Weighted, lambda m: m.parts.append(nn.Parameter(torch.ones(8, 8).double()))),
        (Hooked, lambda m: m.register_forward_hook(lambda *_: None)),
    ],
)
@pytest.mark.parametrize("example", [True, False])
def test_a_later_change_of_a_child_is_noticed(
    make: Callable[[], nn.Module], change: Callable[[nn.Module], object], example: bool
) -> None:
    torch.manual_seed(0)
    plain = make().eval()
    torch.manual_seed(0)
    model = make().eval()
    x = torch.randn(2, 4, 8, dtype=torch.float64)
    autofuse.optimize(model, (x,)) if example else autofuse.optimize(model)
    torch.testing.assert_close(model(x), plain(x), rtol=1e-12, atol=1e-12)
    assert any(s.status == "fused" for s in autofuse.report(model).sites)
    change(plain)
    change(model)
    torch.testing.assert_close(model(x), plain(x), rtol=1e-12, atol=1e-12)
