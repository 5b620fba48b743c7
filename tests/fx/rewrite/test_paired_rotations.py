"""Query and key are rotated in one call where their rotations can run at one place."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autofuse
import autofuse.ops  # noqa: F401 - importing it defines the operations
from autofuse.kernels.operation import OPERATIONS

B, T, HEADS, D = 2, 6, 2, 8
WIDTH = HEADS * D
PAIR, ROTARY = OPERATIONS["rotary_pair"], OPERATIONS["rotary"]


@pytest.fixture(autouse=True)
def triton_is_default() -> Iterator[None]:
    """Our Triton kernels are defaults on this CPU, interpreted, for tensors of any size."""
    pytest.importorskip("triton")
    before = {o: (o.providers, o.least) for o in (ROTARY, PAIR)}
    for operation in before:
        ours = replace(operation.provider("triton"), devices=("cpu",))
        operation.providers, operation.least = (ours, operation.torch), 0
        operation.forget()
    yield
    for operation, (providers, least) in before.items():
        operation.providers, operation.least = providers, least
        operation.forget()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Both(nn.Module):
    """As in most models: both are projected, then both are rotated."""

    def __init__(self) -> None:
        super().__init__()
        self.wq, self.wk = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH // 2)
        self.register_buffer("cos", torch.rand(T, D))
        self.register_buffer("sin", torch.rand(T, D))

    def heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], -1, D).transpose(1, 2)

    def forward(self, x: Tensor) -> Any:
        q, k = self.heads(self.wq(x)), self.heads(self.wk(x))
        return rotate(q, self.cos, self.sin), rotate(k, self.cos, self.sin)


class KeyProjectedLater(Both):
    def forward(self, x: Tensor) -> Any:
        q = rotate(self.heads(self.wq(x)), self.cos, self.sin)
        k = rotate(self.heads(self.wk(x)), self.cos, self.sin)
        return q, k


class QueryReadBetween(Both):
    def forward(self, x: Tensor) -> Any:
        q, k = self.heads(self.wq(x)), self.heads(self.wk(x))
        q = rotate(q, self.cos, self.sin)
        scale = q.amax(-1, keepdim=True)
        return q * scale, rotate(k, self.cos, self.sin)


class Neighbours(Both):
    def forward(self, x: Tensor) -> Any:
        def turn(t: Tensor) -> Tensor:
            rotated = torch.stack((-t[..., 1::2], t[..., ::2]), dim=-1).flatten(-2)
            return t * self.cos + rotated * self.sin

        return turn(self.heads(self.wq(x))), turn(self.heads(self.wk(x)))


class KeyFromQuery(Both):
    """The key's projection needs the rotated query."""

    def forward(self, x: Tensor) -> Any:
        q = rotate(self.heads(self.wq(x)), self.cos, self.sin)
        k = self.heads(self.wk(q.transpose(1, 2).flatten(-2)))
        return q, rotate(k, self.cos, self.sin)


class WrittenBetween(Both):
    """The angles change between the two rotations."""

    def forward(self, x: Tensor, cos: Tensor) -> Any:
        q, k = self.heads(self.wq(x)), self.heads(self.wk(x))
        q = rotate(q, cos, self.sin)
        cos.mul_(2.0)
        return q, rotate(k, cos, self.sin)


class OtherAngles(Both):
    def forward(self, x: Tensor) -> Any:
        q, k = self.heads(self.wq(x)), self.heads(self.wk(x))
        return rotate(q, self.cos, self.sin), rotate(k, self.sin, self.cos)


class ThreeRotations(Both):
    def forward(self, x: Tensor) -> Any:
        q, k = self.heads(self.wq(x)), self.heads(self.wk(x))
        return tuple(rotate(t, self.cos, self.sin) for t in (q, k, q + 1.0))


class OtherWidths(Both):
    def forward(self, x: Tensor) -> Any:
        q, k = self.heads(self.wq(x)), self.wk(x).view(*x.shape[:2], -1, D // 2).transpose(1, 2)
        cos, sin = self.cos[:, :1], self.sin[:, :1]
        return rotate(q, cos, sin), rotate(k, cos, sin)


def counted(run: Callable[[], Any]) -> tuple[Any, int, int]:
    """The result of a call, and how often one of the two operations ran our kernel."""
    before = PAIR.counts.get("triton", 0), ROTARY.counts.get("triton", 0)
    result = run()
    return result, PAIR.counts.get("triton", 0) - before[0], ROTARY.counts.get("triton", 0) - before[1]


@pytest.mark.parametrize(("kind", "pairs", "alone"), [
    (Both, 1, 0), (KeyProjectedLater, 1, 0), (WrittenBetween, 0, 2),
    *(pytest.param(*case, marks=pytest.mark.night) for case in (
        (QueryReadBetween, 1, 0), (Neighbours, 1, 0), (ThreeRotations, 1, 1), (KeyFromQuery, 0, 2),
        (OtherAngles, 0, 2), (OtherWidths, 0, 2),
    )),
])  # fmt: skip
def test_rotations_by_the_same_angles_are_one_call(kind: type[Both], pairs: int, alone: int) -> None:
    torch.manual_seed(0)
    plain, x = kind(), torch.randn(B, T, WIDTH)
    given = (x, torch.rand(T, D)) if kind is WrittenBetween else (x,)
    model = autofuse.optimize(copy.deepcopy(plain), tuple(t.clone() for t in given), tune=False)
    results, *counts = counted(lambda: model(*(t.clone() for t in given)))
    assert counts == [pairs, alone], autofuse.report(model)
    expected = plain(*(t.clone() for t in given))
    for found, wanted in zip(results, expected, strict=True):
        assert found.stride() == wanted.stride()
        torch.testing.assert_close(found, wanted)
    if kind is WrittenBetween:  # its backward pass needs the angles from before the write, and raises an error
        return
    for each in (results, expected):
        sum(t.square().sum() * (i + 1) for i, t in enumerate(each)).backward()
    for p, q in zip(plain.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(q.grad, p.grad)


def test_without_our_kernel_nothing_is_paired() -> None:
    PAIR.providers = (PAIR.torch,)
    PAIR.forget()
    model = autofuse.optimize(Both(), torch.randn(B, T, WIDTH), tune=False)
    assert counted(lambda: model(torch.randn(B, T, WIDTH)))[1:] == (0, 2)


def test_a_write_to_a_result_reaches_that_result_only() -> None:
    model = autofuse.optimize(Both(), torch.randn(B, T, WIDTH), tune=False)
    x = torch.randn(B, T, WIDTH)
    q, k = model(x)
    before = k.detach().clone()
    q.mul_(3.0)
    assert torch.equal(k, before)
    (q.sum() + k.sum()).backward()
