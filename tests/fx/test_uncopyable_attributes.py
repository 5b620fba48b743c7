"""Modules with attributes that copy.deepcopy refuses are fused as without them, in every dtype, with and without
examples."""

from __future__ import annotations

import concurrent.futures
import io
import logging
import math
import multiprocessing
import queue
import socket
import tempfile
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autofuse

D = 8


class NoDeepcopy:
    def __init__(self) -> None:
        self.number = 1

    def __deepcopy__(self, memo: object) -> None:
        raise RuntimeError("this is not copied")


class NoReduce:
    def __init__(self) -> None:
        self.number = 1

    def __reduce_ex__(self, protocol: object) -> Any:
        raise ValueError("nor this")


class NoNew:
    """A class of which no other object can be created."""

    made = 0

    def __new__(cls) -> NoNew:
        cls.made += 1
        if cls.made > 1:
            raise RuntimeError("there is one already")
        return super().__new__(cls)

    def __init__(self) -> None:
        self.number = 1


class Slots:
    __slots__ = ("lock",)

    def __init__(self) -> None:
        self.lock = threading.Lock()


class HoldsALock:
    def __init__(self) -> None:
        self.lock, self.scale = threading.Lock(), 1.0


class NoSubclass:
    def __init_subclass__(cls, **kwargs: object) -> None:
        raise ValueError("this class is final")

    def __init__(self) -> None:
        self.number = 1


class Hostile:
    """Raises an error for every operation."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no comparison")

    __hash__ = None  # type: ignore[assignment]


def no_new() -> NoNew:
    NoNew.made = 0
    return NoNew()


HELD: dict[str, Callable[[], object]] = {
    "lock": threading.Lock, "rlock": threading.RLock, "event": threading.Event, "condition": threading.Condition,
    "file": tempfile.TemporaryFile, "text": lambda: io.TextIOWrapper(io.BytesIO()), "bytes": io.BytesIO,
    "queue": queue.Queue, "logger": lambda: logging.getLogger("a model's"), "generator": lambda: iter(range(3)),
    "yields": lambda: (i for i in range(3)), "module": lambda: types.ModuleType("a_module"), "socket": socket.socket,
    "value": lambda: multiprocessing.Value("i", 0), "thread": threading.Thread, "local": threading.local,
    "weakref": lambda: weakref.ref(logging), "torch generator": torch.Generator, "no deepcopy": NoDeepcopy,
    "executor": lambda: concurrent.futures.ThreadPoolExecutor(1), "no reduce": NoReduce, "no new": no_new,
    "slots": Slots, "holds a lock": HoldsALock, "list of locks": lambda: [threading.Lock()], "hostile": Hostile,
    "no subclass": NoSubclass, "dict": lambda: {"a": threading.Lock(), 1: {2: NoDeepcopy()}},
    "memory": lambda: memoryview(b"ab"),
    "frame": lambda: types.SimpleNamespace(lock=threading.Lock()),
    "results": lambda: torch.ones(2, requires_grad=True) * 2,
}  # fmt: skip


class Attention(nn.Module):
    def __init__(self, held: Callable[[], object]) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(D, D), nn.Linear(D, D), nn.Linear(D, D)
        self.held = held()

    def forward(self, x: Tensor) -> Tensor:
        scores = self.q(x) @ self.k(x).transpose(-2, -1) / math.sqrt(D)
        return torch.softmax(scores, -1) @ self.v(x)


class Norm(nn.Module):
    def __init__(self, held: Callable[[], object]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(D))
        self.attention = Attention(held)
        self.held = held()

    def forward(self, x: Tensor) -> Tensor:
        x = self.attention(x)
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


@pytest.mark.parametrize("lazily", [False, True], ids=["example", "lazily"])
@pytest.mark.parametrize(
    ("model", "dtype"), [(Attention, torch.float32), (Norm, torch.float64), (Attention, torch.bfloat16)]
)
@pytest.mark.parametrize("name", HELD)
def test_attributes_that_cannot_be_copied_do_not_prevent_fusion(
    model: Any, name: str, dtype: torch.dtype, lazily: bool
) -> None:
    torch.manual_seed(0)
    original = model(HELD[name]).to(dtype) if name != "no new" else None
    torch.manual_seed(0)
    optimized = model(Once(HELD[name])).to(dtype)
    x = torch.randn(2, 6, D, dtype=dtype)
    held = optimized.held

    autofuse.optimize(optimized, None if lazily else x, tune=False)
    found = optimized(x)

    statuses = {(s.rule, s.status) for s in autofuse.report(optimized).sites}
    expected = {("AF101", "fused")} | ({("AF202", "fused")} if model is Norm else set())
    assert statuses == expected, autofuse.report(optimized).sites
    assert optimized.held is held
    if original is not None:
        bound = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 5e-2}[dtype]
        torch.testing.assert_close(found, original(x), rtol=bound, atol=bound)
    autofuse.restore(optimized)


class Once:
    """Creates an object once, and always returns it."""

    def __init__(self, make: Callable[[], object]) -> None:
        self._make, self._made = make, list[object]()

    def __call__(self) -> object:
        self._made = self._made or [self._make()]
        return self._made[0]
