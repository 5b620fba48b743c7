"""One row, measured: what was fused and why the rest was not, whether results agree, and whether fused code ran.

Three independent questions: autofuse.verify.modules judges the optimized model as it stands, guards and all; five
training steps of both are compared with the same steps in double; and a profile of one step counts the operators that
ran.
"""

from __future__ import annotations

import copy
import re
import sys
import time
import types
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import autofuse
from autofuse import ops
from autofuse.fx.session.state import is_candidate
from autofuse.fx.trace.twin import copied_object
from autofuse.loading.registry import load_rules
from autofuse.measure.operators import count_operators
from autofuse.ops import lowered as plain
from autofuse.verify import bounds
from autofuse.verify.arithmetic import AsWrittenMode, DoubleMode, RandomRoundingMode
from autofuse.verify.modules import verify
from autofuse.verify.runs import copy_in_double
from tools.models.row import Row

STEPS = 5
_SEED = 0
_RATE = 0.05  # of SGD with momentum: Adam turns the noise in gradients that are 0 into steps of full length
_CPU = torch.device("cpu")

_UNEXPLAINED = 32.0  # units of error that are put down to rounding where the original does not run in double
_CODES = {
    f.__code__: name
    for place in (ops, plain)  # the second are what calls are made of that need nothing put right
    for name in set(ops.__all__) - {"kernel_of", "masked", "rows"}  # none of which computes in place of a model
    if isinstance(f := getattr(place, name, None), types.FunctionType)
}
_CODES |= {f.seen.__code__: name for name in ops.__all__ if hasattr(f := getattr(plain, name, None), "seen")}
_CODES |= {c: "attention" for c in plain.settled_attention.__wrapped__.__code__.co_consts if hasattr(c, "co_code")}
# A closure of an activation holds the operation that it stands for as `whole`.
_CODES |= {c: "" for c in plain.activation.__wrapped__.__code__.co_consts if hasattr(c, "co_code")}
_OPERATIONS: dict[str, set[str]] = defaultdict(set)
for _loaded in load_rules():
    if _loaded.change is None:
        _OPERATIONS[_loaded.rule.code].add(_loaded.replacement.operation)
_FALLBACKS = {r.rule.code for r in load_rules() if r.rule.fallback}  # what a caller that wants less does without

Batch = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass
class Measured:
    """What became of a row. `failure` says why there is nothing more, and is empty where all was measured.

    modules: how many modules have a forward of their own. fused: sites by rule. refused: (rule, reason) of the sites
    that were seen and left, counted. unread: why modules were not looked into, counted. rolled_back: reasons, counted.
    difference: empty where outputs and every gradient agree; else what differs. error, bound: of the result nearest
    to its bound. losses: how much of the bound on the five losses is used up; above 1 they differ. operators:
    how many ran in one step of training, before and after. calls: of each fused operation in that step and in one
    forward in evaluation. seconds: what optimize took.
    """

    name: str
    package: str
    note: str = ""
    failure: str = ""
    modules: int = 0
    fused: dict[str, int] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    unread: dict[str, int] = field(default_factory=dict)
    rolled_back: dict[str, int] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    difference: str = ""
    error: float = 0.0
    bound: float = 0.0
    losses: float = 0.0
    operators: tuple[int, int] = (0, 0)
    calls: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    def broken(self) -> Iterator[str]:
        """Every promise that was not kept, as a sentence."""
        if self.failure:
            yield self.failure
        if self.difference:
            yield self.difference
        if not self.losses <= 1:
            yield f"the losses of {STEPS} training steps differ by {self.losses:.1e} times what rounding explains"
        for rule in self.missing:
            yield f"{rule} fused nothing"
        for rule in () if self.failure else self.fused:
            told = rule not in _FALLBACKS and rule[:3] != "AF3"  # an activation may be torch's own function
            if told and not self.ran(rule):
                yield f"{rule} fused something that did not run"

    def ran(self, rule: str) -> bool:
        """Whether an operation of a rule's was called, `gelu_tanh` standing for `gelu` with an argument."""
        return any(call.startswith(operation) for call in self.calls for operation in _OPERATIONS.get(rule, ()))


def measured(row: Row) -> Measured:
    """Build the model of `row` and put every question to it. Raises what the library raises."""
    found = Measured(row.name, row.package, row.note)
    torch.manual_seed(_SEED)
    model = row.make()
    torch.manual_seed(_SEED)
    inputs = row.inputs()
    call = _call(inputs)
    _call_once(model, call)
    found.modules = sum(map(is_candidate, model.modules()))
    before = time.perf_counter()
    fused = autofuse.optimize(copy.deepcopy(model), inputs)
    found.seconds = time.perf_counter() - before
    _tell(found, fused)
    found.missing = [rule for rule in row.expects if rule not in found.fused]
    outcome = verify(model, fused, *call, copy_object=copied_object)
    found.difference, found.error, found.bound = outcome.reason, outcome.max_error, outcome.bound
    found.losses = _losses_gap(model, fused, call)
    found.operators = _operators(model, call), _operators(fused, call)
    found.calls = _fused_calls(fused, call)
    return found


def _call_once(model: nn.Module, call: Batch) -> None:
    """Some models register buffers when they are first called: that is over before anything is compared."""
    args, kwargs = _given(call, None)
    with torch.no_grad():
        model(*args, **kwargs)


def _call(inputs: Any) -> Batch:
    if isinstance(inputs, Tensor):
        return (inputs,), {}
    return ((), dict(inputs)) if isinstance(inputs, Mapping) else (tuple(inputs), {})


def _tell(found: Measured, model: nn.Module) -> None:
    sites = autofuse.report(model).sites
    found.fused = dict(sorted(Counter(s.rule for s in sites if s.status == "fused").items()))
    found.rolled_back = _counted(f"{s.rule}: {s.reason}" for s in sites if s.status == "rolled-back")
    declined = [s for s in sites if s.status == "declined"]
    found.refused = _counted(f"{s.rule}: {_plain(s.reason)}" for s in declined if s.rule)
    found.unread = _counted(_plain(s.reason) for s in declined if not s.rule)


def _counted(reasons: Iterator[str]) -> dict[str, int]:
    return dict(sorted(Counter(reasons).items(), key=lambda c: (-c[1], c[0])))


def _plain(reason: str) -> str:
    """A reason without the names of the program, so that those of equal layers are one."""
    return re.sub(r"\s*\(line \d+\)|, line \d+", "", re.sub(r"\S*/site-packages/", "", reason)).strip()


# Training.


def _losses_gap(model: nn.Module, fused: nn.Module, call: Batch) -> float:
    own = _losses(copy.deepcopy(model), call, AsWrittenMode())
    after = _losses(copy.deepcopy(fused), call, None)
    dtype = next((p.dtype for p in model.parameters()), torch.float32)
    unit = torch.finfo(dtype).eps / 2
    try:
        exact = _losses(copy_in_double(model), call, DoubleMode(dtype))
    except RuntimeError:  # a kernel that has no double
        return bounds.measure_gap(after, own, own, _UNEXPLAINED * unit).ratio
    found = bounds.measure_gap(after, own, exact, unit)
    if not found.within:
        rounded = [
            _losses(copy_in_double(model), call, RandomRoundingMode(dtype, unit, i)) for i in range(bounds.DRAWS)
        ]
        found = bounds.measure_gap(after, own, exact, unit, [bounds.rounding_spread(r, own, exact) for r in rounded])
    return found.ratio


def _losses(model: nn.Module, call: Batch, arithmetic: AsWrittenMode | None) -> Tensor:
    """The loss before each of the first steps, (steps,) in double."""
    model.train()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=_RATE, momentum=0.9)
    args, kwargs = _given(call, arithmetic)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        torch.manual_seed(_SEED)
        losses.append(_step(model, (args, kwargs), arithmetic))
        optimizer.step()
    return torch.stack(losses)


def _step(model: nn.Module, call: Batch, arithmetic: AsWrittenMode | None) -> Tensor:
    """Forward and backward; the loss in double."""
    args, kwargs = call
    if arithmetic is None:
        loss = loss_of(model(*args, **kwargs))
        loss.backward()
    else:
        with arithmetic:
            loss = loss_of(model(*args, **kwargs))
            loss.backward()
    return loss.detach().double()


def loss_of(returned: Any) -> Tensor:
    """Half the mean square distance of every result from numbers of its own, summed."""
    results = [t for t in tensors_in(returned) if t.is_floating_point() and t.requires_grad]
    parts = [0.5 * (t - _target(t)).square().mean() for t in results]
    return torch.stack([p.to(parts[0].dtype) for p in parts]).sum()


def _target(t: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(_SEED)
    return torch.randn(t.shape, generator=generator, dtype=torch.float32).to(t.dtype)


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Every tensor in a result of whatever containers and objects."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for v in value.values():
            yield from tensors_in(v)
    elif isinstance(value, (list, tuple)):
        for v in value:
            yield from tensors_in(v)


def _given(call: Batch, arithmetic: AsWrittenMode | None) -> Batch:
    def of(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value if arithmetic is None or not value.is_floating_point() else arithmetic.convert(value)
        if isinstance(value, dict):
            return {k: of(v) for k, v in value.items()}
        return type(value)(map(of, value)) if type(value) in (list, tuple) else value

    return of(call[0]), of(call[1])


# What ran.


def _operators(model: nn.Module, call: Batch) -> int:
    """How many run in one step of training."""
    model = copy.deepcopy(model).train()
    return sum(category.count for category in count_operators(lambda: _step(model, call, None), _CPU).values())


def _fused_calls(model: nn.Module, call: Batch) -> dict[str, int]:
    """The calls of autofuse's operations in a step of training and a forward in evaluation, by name."""
    model = copy.deepcopy(model)
    counts: Counter[str] = Counter()
    inside: list[types.FrameType] = []

    def seen(frame: types.FrameType, event: str, _: object) -> None:
        if event == "call" and not inside and frame.f_code in _CODES:
            inside.append(frame)
            counts[_CODES[frame.f_code] or frame.f_locals["whole"].__name__] += 1
        elif event == "return" and inside and frame is inside[0]:
            inside.clear()

    sys.setprofile(seen)
    try:
        _step(model.train(), call, None)
        with torch.no_grad():
            model.eval()(*call[0], **call[1])
    finally:
        sys.setprofile(None)
    return dict(sorted(counts.items()))
