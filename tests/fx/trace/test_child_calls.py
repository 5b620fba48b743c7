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


class Sized(nn.Module):
    """A child that returns a tensor with its sizes, as the stages of vision models do."""

    def __init__(self) -> None:
        super().__init__()
        self.proj = _linear()

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[float, int, int]]:
        return self.proj(x), (0.5, x.shape[-2], x.shape[-1])


class Reshaping(nn.Module):
    """A child that gets numbers or a shape. It ends with dropout, which its caller may fuse."""

    def __init__(self) -> None:
        super().__init__()
        self.proj, self.drop = _linear(), nn.Dropout(0.0)

    def forward(self, x: Tensor, sizes: object, factor: float = 1.0) -> Tensor:
        rows = sizes[-2] if isinstance(sizes, tuple) else sizes
        return self.drop(self.proj(x).reshape(-1, rows, 8) * factor)  # type: ignore[operator]


PASSED = {
    "a number of a child's result": lambda x, sizes: (sizes[1],),
    "a number and a factor of it": lambda x, sizes: (sizes[1], sizes[0]),
    "numbers of it in a tuple": lambda x, sizes: ((sizes[1], sizes[2]),),
    "the whole of it": lambda x, sizes: (sizes,),
    "a shape": lambda x, sizes: (x.shape,),
    "a part of a shape": lambda x, sizes: (x.shape[-2:],),
    "a new shape": lambda x, sizes: (torch.Size((x.size(-2), sizes[2])),),
    "a computed number": lambda x, sizes: (sizes[1] * 2 // 2,),
}


class Passing(nn.Module):
    def __init__(self, passed: Callable[[Tensor, tuple[float, int, int]], tuple[object, ...]]) -> None:
        super().__init__()
        self.sized, self.reshaping, self.passed = Sized(), Reshaping(), passed
        self.norm = nn.LayerNorm(8).double()

    def forward(self, x: Tensor) -> Tensor:
        h, sizes = self.sized(x)
        return self.norm(x + self.reshaping(h, *self.passed(h, sizes)))  # type: ignore[no-any-return]


@pytest.mark.parametrize("passed", PASSED, ids=list(PASSED))
def test_numbers_and_shapes_are_passed_to_a_child(passed: str) -> None:
    torch.manual_seed(0)
    model = Passing(PASSED[passed])
    inputs = [torch.randn(2, length, 8, dtype=torch.float64) for length in (5, 7)]
    expected = [model(x) for x in inputs]
    autofuse.optimize(model, inputs[0], tune=False)
    reasons = [s.reason for s in autofuse.report(model)]
    assert not any("failed" in reason for reason in reasons), reasons
    assert "AF203" in [s.rule for s in autofuse.report(model).with_status("fused")]
    for x, result in zip(inputs, expected, strict=True):
        torch.testing.assert_close(model(x), result, rtol=1e-12, atol=1e-12)
