"""Arguments that are not tensors: containers that children write to, callbacks, iterators, and logging objects."""

from __future__ import annotations

import itertools
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autofuse
from tests.fx.trace.test_containers import WIDTH, Plain, agree, example

LOGGED: list[str] = []
MISSING = object()


class AttentionBase(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def attend(self, x: Tensor) -> Tensor:
        return F.softmax(self.q(x) @ self.k(x).transpose(-2, -1) * WIDTH**-0.5, -1) @ self.v(x)


class Appends(AttentionBase):
    def forward(self, x: Tensor, kept: list[Tensor]) -> Tensor:
        y = self.attend(x)
        kept.append(y)
        return y


class ChildAppends(AttentionBase):
    """Writes before and after a child does, and reads what the child has stored."""

    def __init__(self) -> None:
        super().__init__()
        self.child = Appends()

    def forward(self, x: Tensor, kept: list[Any]) -> Any:
        kept.append(x)
        y = self.child(self.attend(x), kept)
        kept.append(y)
        return kept[-2] * 2 + kept[0], kept


class OwnListForChildren(AttentionBase):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = Appends(), Appends()

    def forward(self, x: Tensor, _: object) -> Any:
        kept: list[Tensor] = []
        y = self.other(self.one(self.attend(x), kept), kept)
        return y, kept, sum(t.mean() for t in kept)


class StoresNew(AttentionBase):
    def forward(self, x: Tensor, d: dict[str, Any]) -> Any:
        d["new"] = {"y": self.attend(x), "all": []}
        return d["new"]


class ChildStoresNew(AttentionBase):
    def __init__(self) -> None:
        super().__init__()
        self.child = StoresNew()

    def forward(self, x: Tensor, d: dict[str, Any]) -> Any:
        made = self.child(self.attend(x), d)
        made["all"].append(made["y"])
        d["new"]["n"] = 1
        return made, d


class TwoCaches(AttentionBase):
    """The same dict under two names."""

    def forward(self, x: Tensor, d: dict[str, dict[str, Tensor]]) -> Tensor:
        y = self.attend(x)
        d["a"]["y"] = y
        return y + d["b"]["y"]


class StoresAndReturns(AttentionBase):
    def forward(self, x: Tensor, d: dict[str, Any]) -> Any:
        y = self.attend(x)
        d["same"], d["size"] = y.double(), x.shape
        own = {"y": y}
        return y, y, own, own


class Calls(AttentionBase):
    def forward(self, x: Tensor, callback: Any) -> Tensor:
        y = self.attend(x)
        callback(y)
        return y


class CallsNext(AttentionBase):
    def forward(self, x: Tensor, numbers: Any) -> Tensor:
        return self.attend(x) * (1 + next(numbers))


class CallsMethod(AttentionBase):
    def forward(self, x: Tensor, logger: Any) -> Tensor:
        y = self.attend(x)
        logger.log(y)
        return y


class CallsMethodInChild(AttentionBase):
    def __init__(self) -> None:
        super().__init__()
        self.child = CallsMethod()

    def forward(self, x: Tensor, logger: Any) -> Tensor:
        out: Tensor = self.child(self.attend(x), logger)
        return out


class Logger:
    def __init__(self) -> None:
        self.count = 0

    def log(self, x: Tensor) -> None:
        LOGGED.append(type(x).__name__)
        self.count += 1


class ComparesWithSentinel(AttentionBase):
    def forward(self, x: Tensor, mask: Any = MISSING) -> Tensor:
        y = self.attend(x)
        return y if mask is MISSING else y * 2


class ComparesTensors(AttentionBase):
    def forward(self, x: Tensor, other: Any) -> Tensor:
        return self.pick(x, x) + self.pick(x, x.clone())

    def pick(self, a: Tensor, b: Tensor) -> Tensor:
        return self.attend(a) * (2 if a is b else 1)


def logs(x: Tensor) -> None:
    LOGGED.append(type(x).__name__)


def one_dict_twice() -> Any:
    held: dict[str, Any] = {}
    return {"a": held, "b": held}


FUSED: list[tuple[type[nn.Module], Callable[[], Any]]] = [
    (ChildAppends, list), (OwnListForChildren, lambda: None), (ChildStoresNew, dict), (TwoCaches, one_dict_twice),
    (StoresAndReturns, dict), (ComparesWithSentinel, lambda: MISSING), (ComparesTensors, lambda: None),
    (Calls, lambda: torch.relu), (Calls, lambda: Plain().add),
]  # fmt: skip
ORIGINAL: list[tuple[type[nn.Module], Callable[[], Any]]] = [
    (Calls, lambda: logs), (Calls, lambda: LOGGED.append), (Calls, lambda: lambda t: LOGGED.append(str(t.shape))),
    (CallsNext, itertools.count), (CallsNext, lambda: (i for i in range(100))), (CallsNext, lambda: iter(range(100))),
    (CallsMethod, Logger), (CallsMethodInChild, Logger),
]  # fmt: skip


def outcome(module: nn.Module, make: Callable[[], Any]) -> Any:
    torch.manual_seed(1)
    LOGGED.clear()
    given = make()
    results = [module(example(), given) for _ in range(4)]
    plain = isinstance(given, (dict, list, Logger, type(None)))
    left = given if plain else next(given) if isinstance(given, (itertools.count, types.GeneratorType)) else None
    return results, left, [x if isinstance(x, str) else type(x).__name__ for x in LOGGED]


@pytest.mark.parametrize("lazily", [False, True], ids=["example", "lazily"])
@pytest.mark.parametrize("kind, make", [*FUSED, *ORIGINAL])
def test_every_call_does_what_the_original_does(kind: type[nn.Module], make: Callable[[], Any], lazily: bool) -> None:
    torch.manual_seed(0)
    plain, fused = kind().double(), kind().double()
    fused.load_state_dict(plain.state_dict())
    LOGGED.clear()
    autofuse.optimize(fused, None if lazily else (example(), make()), tune=False)
    assert not LOGGED
    agree(outcome(fused, make), outcome(plain, make))
    statuses = {s.status for s in autofuse.report(fused).sites}
    if (kind, make) in FUSED and make is not FUSED[-1][1]:
        assert "fused" in statuses, autofuse.report(fused).sites


def test_an_iterator_in_the_example_inputs_is_not_advanced() -> None:
    numbers = itertools.count()
    autofuse.optimize(CallsNext().double(), (example(), numbers), tune=False)
    assert next(numbers) == 0


def test_a_dict_cache_grows_in_a_loop_and_stays_fused() -> None:
    class Cached(AttentionBase):
        def forward(self, x: Tensor, cache: dict[str, Tensor]) -> Tensor:
            k, v = self.k(x), self.v(x)
            if "k" in cache:
                k, v = torch.cat([cache["k"], k], 1), torch.cat([cache["v"], v], 1)
            cache["k"], cache["v"] = k, v
            return F.softmax(self.q(x) @ k.transpose(-2, -1) * WIDTH**-0.5, -1) @ v

    model, cache = Cached().double().eval(), dict[str, Tensor]()
    autofuse.optimize(model, (example(), {}), tune=False)
    for _ in range(12):
        model(example(), cache)
    assert cache["k"].shape[1] == 12 * example().shape[1]
    report = autofuse.report(model)
    assert [s.status for s in report.sites] == ["fused"]
    assert not [f for f in report.fallbacks if f.ran == "original"], report.fallbacks


class Kind:
    """A class that is passed as an argument."""

    scale = 0.25


class ReadsAttribute(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(x @ x.transpose(-2, -1) * getattr(x, "scale", 0.25), -1) @ x


class SetsAttribute(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x.seen = True  # type: ignore[attr-defined]
        return torch.softmax(x @ x.transpose(-2, -1), -1) @ x


class ReadsClass(nn.Module):
    def forward(self, x: Tensor, kind: type[Kind]) -> Tensor:
        return torch.softmax(x @ x.transpose(-2, -1) * kind.scale, -1) @ x


class ComparesArguments(nn.Module):
    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        scale = 0.25 if q is k else 2.0
        return torch.softmax(q @ k.transpose(-2, -1) * scale, -1) @ k


@pytest.mark.parametrize("example", [True, False])
def test_attributes_of_tensors_are_read_and_set_as_before(example: bool) -> None:
    x = torch.randn(2, 4, 8)
    model = autofuse.optimize(ReadsAttribute(), (x,) if example else None)
    torch.testing.assert_close(model(x), ReadsAttribute()(x))
    x.scale = 3.0  # type: ignore[attr-defined]
    torch.testing.assert_close(model(x), ReadsAttribute()(x))
    y = torch.randn(2, 4, 8)
    setting = autofuse.optimize(SetsAttribute(), (y,) if example else None)
    assert not hasattr(y, "seen")
    setting(y)
    assert hasattr(y, "seen")


@pytest.mark.parametrize("example", [True, False])
def test_a_changed_class_argument_is_noticed(example: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(2, 4, 8)
    model = autofuse.optimize(ReadsClass(), (x, Kind) if example else None)
    torch.testing.assert_close(model(x, Kind), ReadsClass()(x, Kind))
    monkeypatch.setattr(Kind, "scale", 3.0)
    torch.testing.assert_close(model(x, Kind), ReadsClass()(x, Kind))


@pytest.mark.parametrize("example", [True, False])
def test_one_tensor_passed_twice_is_distinguished_from_two(example: bool) -> None:
    x, y = torch.randn(2, 4, 8), torch.randn(2, 4, 8)
    plain = ComparesArguments()
    expected = plain(x, y), plain(x, x)
    model = autofuse.optimize(ComparesArguments(), (x, y) if example else None)
    torch.testing.assert_close((model(x, y), model(x, x)), expected)
