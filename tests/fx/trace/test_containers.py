"""Writes of a forward to its arguments: {container} x {write} x {with an example, lazily} x {mode}.

Each cell calls the original and the optimized module several times with the same containers, in float64. It compares
the
results, the gradients, the contents of the containers, their order, and which objects occur twice.
"""

from __future__ import annotations

import copy
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autofuse

WIDTH, CALLS = 8, 4


@dataclass
class Record:
    hidden: list[Any] = field(default_factory=list)
    d: dict[str, Any] = field(default_factory=dict)
    n: int = 0
    last: Any = None


@dataclass(slots=True)
class Slotted:
    hidden: list[Any] = field(default_factory=list)
    d: dict[str, Any] = field(default_factory=dict)
    n: int = 0
    last: Any = None


@dataclass(frozen=True)
class Frozen:
    hidden: list[Any] = field(default_factory=list)
    d: dict[str, Any] = field(default_factory=dict)


class Pair(NamedTuple):
    hidden: list[Any]
    d: dict[str, Any]


class Plain:
    def __init__(self) -> None:
        self.hidden: list[Any] = []
        self.d: dict[str, Any] = {}
        self.n = 0
        self.last: Any = None

    def add(self, x: Tensor) -> None:
        self.hidden.append(x)
        self.n += 1

    def update(self, name: str, x: Tensor) -> Tensor:
        self.d[name] = torch.cat([self.d[name], x], 1) if name in self.d else x
        return self.d[name]


class WithSlots:
    __slots__ = ("d", "hidden", "last", "n")

    def __init__(self) -> None:
        self.hidden: list[Any] = []
        self.d: dict[str, Any] = {}
        self.n = 0
        self.last: Any = None


class Cache(dict[str, Any]):
    """Counts the stores."""

    def __init__(self) -> None:
        super().__init__()
        self.stores = 0

    def __setitem__(self, key: str, value: Any) -> None:
        self.stores += 1
        super().__setitem__(key, value)


class Log(list[Any]):
    pass


Write = Callable[[Any, Tensor, Tensor, Tensor], Any]  # container, keys, values, result


def sets_two(c: Any, k: Tensor, v: Tensor, y: Tensor) -> None:
    c["k"], c["v"] = k, v


def grows(c: Any, k: Tensor, v: Tensor, y: Tensor) -> None:
    c["k"] = torch.cat([c["k"], k], 1) if "k" in c else k


def updates(c: Any, k: Tensor, v: Tensor, y: Tensor) -> None:
    c.update(k=k, y=y)


def sets_default(c: Any, k: Tensor, v: Tensor, y: Tensor) -> None:
    c.setdefault("first", k)
    c.setdefault("all", []).append(y)


def pops(c: Any, k: Tensor, v: Tensor, y: Tensor) -> None:
    c["b"] = c.pop("a", None)
    c["a"] = k


def counts(c: Any, k: Tensor, v: Tensor, y: Tensor) -> None:
    c["n"] = c.get("n", 0) + 1


def nests(c: Any, k: Tensor, v: Tensor, y: Tensor) -> None:
    c["layer"] = {"kv": (k, v), "ys": [y, y]}


def clears(c: Any, k: Tensor, v: Tensor, y: Tensor) -> None:
    c.clear()
    c[3], c["y"] = y, y


def appends(c: Any, k: Tensor, v: Tensor, y: Tensor) -> None:
    c.append(y.pow(2).mean())


def extends(c: Any, k: Tensor, v: Tensor, y: Tensor) -> None:
    c += [k, (k, v)]


def replaces_first(c: Any, k: Tensor, v: Tensor, y: Tensor) -> None:
    if len(c) > 1:
        c[0] = (torch.cat([c[0][0], k], 1), v)
    else:
        c.append((k, v))


def inserts(c: Any, k: Tensor, v: Tensor, y: Tensor) -> None:
    c.insert(0, y)


def reverses(c: Any, k: Tensor, v: Tensor, y: Tensor) -> None:
    c.append(y)
    c.reverse()


def appends_left(c: Any, k: Tensor, v: Tensor, y: Tensor) -> None:
    c.appendleft(y)


def hidden_appends(c: Any, k: Tensor, v: Tensor, y: Tensor) -> None:
    c.hidden.append(y)


def nested_sets(c: Any, k: Tensor, v: Tensor, y: Tensor) -> None:
    c.d["h"] = y
    c.d["hs"] = c.hidden


def attribute_counts(c: Any, k: Tensor, v: Tensor, y: Tensor) -> None:
    c.n += 1


def attribute_set(c: Any, k: Tensor, v: Tensor, y: Tensor) -> None:
    c.last = y
    c.last = (c.last, k)


def adds(c: Any, k: Tensor, v: Tensor, y: Tensor) -> None:
    c.add(y)


def adds_and_appends(c: Any, k: Tensor, v: Tensor, y: Tensor) -> None:
    c.hidden.append(k)
    c.add(y)
    c.hidden.append(v)


def new_attribute(c: Any, k: Tensor, v: Tensor, y: Tensor) -> None:
    c.found = [y]
    c.found.append(c.found[0])


def members(c: Any, k: Tensor, v: Tensor, y: Tensor) -> None:
    c.add("seen")
    c.discard("gone")


DICTS: list[Callable[[], Any]] = [dict, OrderedDict, lambda: defaultdict(list), Cache, Counter]
LISTS: list[Callable[[], Any]] = [list, Log, deque, lambda: deque(maxlen=2)]
OBJECTS: list[Callable[[], Any]] = [Record, Slotted, Plain, SimpleNamespaceOf := lambda: SimpleNamespace(
    hidden=[], d={}, n=0, last=None)]  # fmt: skip

FUSED: list[tuple[Callable[[], Any], Write]] = [
    *((make, w) for make in DICTS for w in (sets_two, grows, updates, sets_default, pops, counts, nests, clears)),
    *((make, w) for make in LISTS for w in (appends, extends, replaces_first, reverses)),
    *((make, inserts) for make in LISTS[:3]),
    *((make, appends_left) for make in LISTS[2:]),
    *((make, w) for make in OBJECTS for w in (hidden_appends, nested_sets, attribute_counts, attribute_set)),
    (Plain, adds), (Plain, adds_and_appends), (Plain, new_attribute), (Record, new_attribute),
    (Frozen, hidden_appends), (Frozen, nested_sets), (lambda: Pair([], {}), hidden_appends),
    (lambda: Pair([], {}), nested_sets), (lambda: {"gone"}, members),
]  # fmt: skip
ORIGINAL: list[tuple[Callable[[], Any], Write]] = [(WithSlots, hidden_appends), (WithSlots, attribute_counts)]


class Attention(nn.Module):
    """Writes to its argument after its attention."""

    def __init__(self, write: Write, returns: bool) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.write, self.returns = write, returns

    def forward(self, x: Tensor, c: Any) -> Any:
        q, k, v = self.q(x), self.k(x), self.v(x)
        y = F.softmax(q @ k.transpose(-2, -1) * WIDTH**-0.5, -1) @ v
        self.write(c, k, v, y)
        return (y, c) if self.returns else y


def modules(write: Write, returns: bool) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    plain = Attention(write, returns).double()
    fused = Attention(write, returns).double()
    fused.load_state_dict(plain.state_dict())
    return plain, fused


def example() -> Tensor:
    return torch.randn(2, 3, WIDTH, dtype=torch.float64)


def leaves(value: Any, seen: dict[int, int], path: str = "") -> Iterator[tuple[str, Any]]:
    """The paths and values inside a value. An object that occurs again is represented by its number."""
    if isinstance(value, (int, float, str, type(None))):
        yield path, value
        return
    if id(value) in seen and not isinstance(value, tuple):
        yield path, ("again", seen[id(value)])
        return
    if not isinstance(value, tuple):
        seen[id(value)] = len(seen)
    yield path, type(value)
    if isinstance(value, Tensor):
        yield path, value
        return
    if isinstance(value, dict):
        yield f"{path} keys", list(value)
        for k, v in value.items():
            yield from leaves(v, seen, f"{path}[{k!r}]")
    elif isinstance(value, (list, tuple, deque)):
        for i, v in enumerate(value):
            yield from leaves(v, seen, f"{path}[{i}]")
    elif isinstance(value, set):
        yield path, sorted(value)
    attributes = {**getattr(value, "__dict__", {})}
    attributes |= {n: getattr(value, n) for n in getattr(type(value), "__slots__", ()) if hasattr(value, n)}
    for name in sorted(attributes):
        yield from leaves(attributes[name], seen, f"{path}.{name}")


def agree(a: Any, b: Any) -> None:
    """Assert that two values are equal in structure, identities and numbers."""
    one, other = list(leaves(a, {})), list(leaves(b, {}))
    assert [p for p, _ in one] == [p for p, _ in other]
    for (path, x), (_, y) in zip(one, other, strict=True):
        if isinstance(x, Tensor):
            torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-9, msg=path)
            assert x.requires_grad == y.requires_grad, path
        else:
            assert x == y, path


def run(module: nn.Module, make: Callable[[], Any]) -> tuple[Any, ...]:
    torch.manual_seed(1)
    container, results = make(), []
    for _ in range(CALLS):
        result = module(example(), container)
        if isinstance(result, tuple):
            assert result[1] is container
        results.append(result)
    total = sum(t.pow(2).sum() for _, t in leaves((results, container), {}) if isinstance(t, Tensor))
    module.zero_grad()
    if isinstance(total, Tensor) and total.requires_grad:
        total.backward()
    return results, container, [p.grad for p in module.parameters()]


def case_name(case: Any) -> str:
    return getattr(case, "__name__", str(case)).strip("<>")


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("lazily", [False, True], ids=["example", "lazily"])
@pytest.mark.parametrize("make, write", [*FUSED, *ORIGINAL], ids=case_name)
def test_attributes_that_forward_writes_exist_and_are_equal(
    make: Callable[[], Any], write: Write, lazily: bool, training: bool
) -> None:
    plain, fused = modules(write, returns=training)
    container = make()
    before = copy.deepcopy(container)
    autofuse.optimize(fused.train(training), None if lazily else (example(), container), tune=False)
    agree(container, before)
    agree(run(fused, make), run(plain.train(training), make))
    sites = autofuse.report(fused).sites
    if (make, write) in FUSED:
        assert [s.status for s in sites] == ["fused"], sites
