"""State of torch, of Python modules and of variables that a forward reads is guarded, or refused and restored."""

from __future__ import annotations

import functools
import os
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn

import autofuse

settings = types.ModuleType("settings")
settings.__dict__["calls"] = 0


class Scaled(nn.Module):
    """Attention with a scale that subclasses compute."""

    def scale(self, x: Tensor) -> float:
        return 1.0

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(x @ x.transpose(-2, -1) * self.scale(x), -1) @ x


class Benchmark(Scaled):
    def scale(self, x: Tensor) -> float:
        return 1.0 if torch.backends.cudnn.benchmark else 0.25


class Tf32(Scaled):
    def scale(self, x: Tensor) -> float:
        return 1.0 if torch.backends.cuda.matmul.allow_tf32 else 0.25


class AutocastDtype(Scaled):
    def scale(self, x: Tensor) -> float:
        return 1.0 if torch.get_autocast_dtype("cpu") is torch.float16 else 0.25


class NewTensor(Scaled):
    def scale(self, x: Tensor) -> float:
        return torch.finfo(torch.zeros(1).dtype).bits / 100


class Quotient(Scaled):
    def scale(self, x: Tensor) -> float:
        return torch.finfo((torch.arange(3) / 2).dtype).bits / 100


@contextmanager
def _benchmark() -> Iterator[None]:
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = False


@contextmanager
def _tf32() -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = not before
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


@contextmanager
def _half() -> Iterator[None]:
    before = torch.get_autocast_dtype("cpu")
    torch.set_autocast_dtype("cpu", torch.float16)
    try:
        yield
    finally:
        torch.set_autocast_dtype("cpu", before)


@contextmanager
def _double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (Benchmark, _benchmark),
        (Tf32, _tf32),
        (AutocastDtype, _half),
        (NewTensor, _double),
        (Quotient, _double),
    ],
)
@pytest.mark.parametrize("example", [True, False])
def test_a_later_change_of_torchs_state_is_noticed(
    kind: type[nn.Module], change: Callable[[], Iterator[None]], example: bool
) -> None:
    x = torch.randn(2, 4, 8, dtype=torch.float64)
    model = autofuse.optimize(kind().eval(), (x,), tune=False) if example else autofuse.optimize(kind().eval())
    torch.testing.assert_close(model(x), kind()(x), rtol=1e-12, atol=1e-12)
    with change():  # type: ignore[attr-defined]
        torch.testing.assert_close(model(x), kind()(x), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(model(x), kind()(x), rtol=1e-12, atol=1e-12)


class BoolOrFloatMask(Scaled):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.ones(4, 4, dtype=torch.bool).tril())

    def forward(self, x: Tensor) -> Tensor:
        scores = x @ x.transpose(-2, -1)
        if self.mask.dtype == torch.bool:  # type: ignore[union-attr]
            scores = scores.masked_fill(~self.mask, float("-inf"))  # type: ignore[operator]
        else:
            scores = scores + self.mask
        return torch.softmax(scores, -1) @ x


def test_a_buffer_of_another_dtype_is_noticed() -> None:
    x, plain = torch.randn(2, 4, 8), BoolOrFloatMask()
    model = autofuse.optimize(BoolOrFloatMask(), (x,))
    torch.testing.assert_close(model(x), plain(x))
    model.mask = plain.mask = torch.randn(4, 4)
    torch.testing.assert_close(model(x), plain(x))


class CountsInModule(Scaled):
    def scale(self, x: Tensor) -> float:
        settings.calls += 1
        return 0.25


class CountsInEnvironment(Scaled):
    def scale(self, x: Tensor) -> float:
        os.environ["AUTOFUSE_TEST"] = str(int(os.environ["AUTOFUSE_TEST"]) + 1)
        return 0.25


def counting_closure() -> tuple[nn.Module, Callable[[], int]]:
    calls = 0

    class Counts(Scaled):
        def scale(self, x: Tensor) -> float:
            nonlocal calls
            calls += 1
            return 0.25

    return Counts(), lambda: calls


@pytest.mark.parametrize("example", [True, False])
@pytest.mark.parametrize("where", ["module", "environment", "closure"])
def test_a_counter_of_calls_counts_as_without_autofuse(
    where: str, example: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "calls", 0)
    monkeypatch.setenv("AUTOFUSE_TEST", "0")
    closure, calls = counting_closure()
    model, count = {
        "module": (CountsInModule(), lambda: settings.calls),
        "environment": (CountsInEnvironment(), lambda: int(os.environ["AUTOFUSE_TEST"])),
        "closure": (closure, calls),
    }[where]
    x = torch.randn(2, 4, 8)
    autofuse.optimize(model, (x,) if example else None)
    assert count() == 0
    for expected in (1, 2, 3):
        model(x)
        assert count() == expected


@functools.singledispatch
def heat(module: object) -> float:
    return 3.0


class Dispatched(Scaled):
    def scale(self, x: Tensor) -> float:
        return heat(self)


@pytest.mark.parametrize("example", [True, False])
def test_a_later_registration_with_singledispatch_is_noticed(example: bool) -> None:
    x = torch.randn(2, 4, 8)
    model = autofuse.optimize(Dispatched(), (x,) if example else None)
    torch.testing.assert_close(model(x), Dispatched()(x))
    heat.register(Dispatched, lambda module: 0.5 if example else 0.75)
    torch.testing.assert_close(model(x), Dispatched()(x))


KNOWN: list[nn.Module] = []


class Registered(Scaled):
    def scale(self, x: Tensor) -> float:
        return 0.25 if self in KNOWN else 3.0


@pytest.mark.parametrize("example", [True, False])
def test_a_module_is_found_in_a_list_of_modules(example: bool) -> None:
    x, plain, model = torch.randn(2, 4, 8), Registered(), Registered()
    KNOWN[:] = [plain, model]
    autofuse.optimize(model, (x,) if example else None)
    torch.testing.assert_close(model(x), plain(x))
    KNOWN.clear()
    torch.testing.assert_close(model(x), plain(x))
