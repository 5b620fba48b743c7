"""Measures one row: what was fused and why the rest was not, whether results agree, and whether fused code ran.

Three independent checks: autofuse.verify.modules compares the optimized model, guards included, with the original. Five
training steps of both are compared with the same steps in double. A profile of one step counts the operators.
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
_RATE = 0.05  # of SGD with momentum; Adam would turn rounding noise in zero gradients into full steps
_CPU = torch.device("cpu")

_UNEXPLAINED = 32.0  # the allowed error in units of rounding, if the original does not run in double
_CODES = {
    f.__code__: name
    for place in (ops, plain)  # `plain` has the functions that fused calls without adjustments are lowered to
    for name in set(ops.__all__) - {"kernel_of", "masked", "rows"}  # these three replace no computation of a model
    if isinstance(f := getattr(place, name, None), types.FunctionType)
}
_CODES |= {f.seen.__code__: name for name in ops.__all__ if hasattr(f := getattr(plain, name, None), "seen")}
_CODES |= {c: "attention" for c in plain.settled_attention.__wrapped__.__code__.co_consts if hasattr(c, "co_code")}
# The closure of an activation has its operation in the variable `whole`.
_CODES |= {c: "" for c in plain.activation.__wrapped__.__code__.co_consts if hasattr(c, "co_code")}
_OPERATIONS: dict[str, set[str]] = defaultdict(set)
for _loaded in load_rules():
    if _loaded.change is None:
        _OPERATIONS[_loaded.rule.code].add(_loaded.replacement.operation)
_FALLBACKS = {r.rule.code for r in load_rules() if r.rule.fallback}  # the lowered call may omit their operation

Batch = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass
class Measured:
    """The measurements of a row.

    Attributes:
        failure: why the other fields are empty; "" if everything was measured.
        modules: the number of modules with a forward of their own.
        fused: rule -> number of fused sites.
        refused: "rule: reason" -> number of declined sites.
        unread: reason -> number of modules that could not be captured.
        rolled_back: "rule: reason" -> number of sites.
        missing: the expected rules that fused nothing.
        difference: what differs between the results; "" if outputs and all gradients agree.
        error: the error of the result that is closest to its bound.
        bound: the bound of that result.
        losses: the difference of the five losses, as a share of its bound; above 1 they differ.
        operators: the number of operators in a training step, before and after.
        calls: fused operation -> calls in that step and in one forward in evaluation.
        seconds: the time that optimize took.
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
        """Yield a sentence for every broken promise."""
        if self.failure:
            yield self.failure
        if self.difference:
            yield self.difference
        if not self.losses <= 1:
            yield f"the losses of {STEPS} training steps differ by {self.losses:.1e} times what rounding explains"
        for rule in self.missing:
            yield f"{rule} fused nothing"
        for rule in () if self.failure else self.fused:
            visible = rule not in _FALLBACKS and rule[:3] != "AF3"  # an activation may be torch's own function
            if visible and not self.ran(rule):
                yield f"{rule} fused something that did not run"

    def ran(self, rule: str) -> bool:
        """Whether an operation of a rule was called. `gelu_tanh` counts as `gelu` with an argument."""
        return any(call.startswith(operation) for call in self.calls for operation in _OPERATIONS.get(rule, ()))


def measure(row: Row) -> Measured:
    """Build the model of `row` and measure everything. Errors of the library are not caught."""
    found = Measured(row.name, row.package, row.note)
    torch.manual_seed(_SEED)
    model = row.make()
    torch.manual_seed(_SEED)
    inputs = row.inputs()
    call = _call(inputs)
    _call_once(model, call)
    found.modules = sum(map(is_candidate, model.modules()))
    before = time.perf_counter()
    fused = autofuse.optimize(copy.deepcopy(model), inputs, tune=False)
    found.seconds = time.perf_counter() - before
    _add_report(found, fused)
    found.missing = [rule for rule in row.expects if rule not in found.fused]
    outcome = verify(model, fused, *call, copy_object=copied_object)
    found.difference, found.error, found.bound = outcome.reason, outcome.max_error, outcome.bound
    found.losses = _losses_gap(model, fused, call)
    found.operators = _operators(model, call), _operators(fused, call)
    found.calls = _fused_calls(fused, call)
    return found


def _call_once(model: nn.Module, call: Batch) -> None:
    """Call the model once, because some models register buffers at their first call."""
    args, kwargs = _inputs_of(call, None)
    with torch.no_grad():
        model(*args, **kwargs)


def _call(inputs: Any) -> Batch:
    if isinstance(inputs, Tensor):
        return (inputs,), {}
    return ((), dict(inputs)) if isinstance(inputs, Mapping) else (tuple(inputs), {})


def _add_report(found: Measured, model: nn.Module) -> None:
    sites = autofuse.report(model).sites
    found.fused = dict(sorted(Counter(s.rule for s in sites if s.status == "fused").items()))
    found.rolled_back = _count(f"{s.rule}: {s.reason}" for s in sites if s.status == "rolled-back")
    declined = [s for s in sites if s.status == "declined"]
    found.refused = _count(f"{s.rule}: {_without_places(s.reason)}" for s in declined if s.rule)
    found.unread = _count(_without_places(s.reason) for s in declined if not s.rule)


def _count(reasons: Iterator[str]) -> dict[str, int]:
    return dict(sorted(Counter(reasons).items(), key=lambda c: (-c[1], c[0])))


def _without_places(reason: str) -> str:
    """A reason without lines and paths, so that equal layers have the same reason."""
    return re.sub(r"\s*\(line \d+\)|, line \d+", "", re.sub(r"\S*/site-packages/", "", reason)).strip()


# Training.


def _losses_gap(model: nn.Module, fused: nn.Module, call: Batch) -> float:
    own = _losses(copy.deepcopy(model), call, AsWrittenMode())
    after = _losses(copy.deepcopy(fused), call, None)
    dtype = next((p.dtype for p in model.parameters()), torch.float32)
    unit = torch.finfo(dtype).eps / 2
    try:
        exact = _losses(copy_in_double(model), call, DoubleMode(dtype))
    except RuntimeError:  # a kernel does not support double
        return bounds.measure_gap(after, own, own, _UNEXPLAINED * unit).ratio
    found = bounds.measure_gap(after, own, exact, unit)
    if not found.within:
        rounded = [
            _losses(copy_in_double(model), call, RandomRoundingMode(dtype, unit, i)) for i in range(bounds.DRAWS)
        ]
        found = bounds.measure_gap(after, own, exact, unit, [bounds.rounding_spread(r, own, exact) for r in rounded])
    return found.ratio


def _losses(model: nn.Module, call: Batch, arithmetic: AsWrittenMode | None) -> Tensor:
    """The loss before each step: (steps,), in double."""
    model.train()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=_RATE, momentum=0.9)
    args, kwargs = _inputs_of(call, arithmetic)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        torch.manual_seed(_SEED)
        losses.append(_step(model, (args, kwargs), arithmetic))
        optimizer.step()
    return torch.stack(losses)


def _step(model: nn.Module, call: Batch, arithmetic: AsWrittenMode | None) -> Tensor:
    """Run forward and backward, and return the loss in double."""
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
    """The sum over all results of half the mean squared distance to random targets."""
    results = [t for t in tensors_in(returned) if t.is_floating_point() and t.requires_grad]
    parts = [0.5 * (t - _target(t)).square().mean() for t in results]
    return torch.stack([p.to(parts[0].dtype) for p in parts]).sum()


def _target(t: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(_SEED)
    return torch.randn(t.shape, generator=generator, dtype=torch.float32).to(t.dtype)


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield every tensor in nested containers."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for v in value.values():
            yield from tensors_in(v)
    elif isinstance(value, (list, tuple)):
        for v in value:
            yield from tensors_in(v)


def _inputs_of(call: Batch, arithmetic: AsWrittenMode | None) -> Batch:
    def of(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value if arithmetic is None or not value.is_floating_point() else arithmetic.convert(value)
        if isinstance(value, dict):
            return {k: of(v) for k, v in value.items()}
        return type(value)(map(of, value)) if type(value) in (list, tuple) else value

    return of(call[0]), of(call[1])


# The operators that ran.


def _operators(model: nn.Module, call: Batch) -> int:
    """The number of operators in a training step."""
    model = copy.deepcopy(model).train()
    return sum(category.count for category in count_operators(lambda: _step(model, call, None), _CPU).values())


def _fused_calls(model: nn.Module, call: Batch) -> dict[str, int]:
    """Operation of autofuse -> calls in a training step and in a forward in evaluation."""
    model = copy.deepcopy(model)
    counts: Counter[str] = Counter()
    inside: list[types.FrameType] = []

    def count_call(frame: types.FrameType, event: str, _: object) -> None:
        if event == "call" and not inside and frame.f_code in _CODES:
            inside.append(frame)
            counts[_CODES[frame.f_code] or frame.f_locals["whole"].__name__] += 1
        elif event == "return" and inside and frame is inside[0]:
            inside.clear()

    sys.setprofile(count_call)
    try:
        _step(model.train(), call, None)
        with torch.no_grad():
            model.eval()(*call[0], **call[1])
    finally:
        sys.setprofile(None)
    return dict(sorted(counts.items()))
