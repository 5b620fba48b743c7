"""Whether a fused place is worth it: what stood there is timed against what would, and stays unless it is beaten.

Each place is weighed by itself, on numbers made up in the sizes, strides and dtypes that the trace saw, forward and
backward together where the model trains. Equal places are weighed once. Knows excerpts and how candidates are timed
and ranked; what becomes of a place that is not worth it is decided elsewhere.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn

from autofuse import ops
from autofuse.fx.rewrite.excerpt import Excerpt
from autofuse.fx.session.remembered_times import found, keep, place_of
from autofuse.kernels.candidate_timing import race_steps
from autofuse.kernels.operation import OPERATIONS
from autofuse.kernels.policy import settings
from autofuse.kernels.ranking import ORIGINAL, CandidateTime, rank
from autofuse.kernels.tuning import SHORTEST, SHORTEST_ELSEWHERE, tune
from autofuse.measure.memory import measure_held_memory, measure_peak_memory
from autofuse.measure.timing import seconds_of
from autofuse.reasons import outcomes
from autofuse.reasons.reason import Reason, because
from autofuse.results.comparison import milliseconds
from autofuse.results.tuning import Trial
from autofuse.torch_private import FakeTensor, pytree
from autofuse.verify.out_of_memory import is_out_of_memory

FUSED = "fused"
SECONDS = 0.15  # for each candidate
_WARM, _ENOUGH = 4, 0.05  # calls before the first that counts, and the seconds after which they are enough
_LOOKS, _FAR, _FAR_SECONDS = 15, 2.0, 2e-5  # at a short place: calls, and what is far longer
_UNMEASURED = "not measured"
_LOG = logging.getLogger("autofuse")


@dataclass(frozen=True)
class SiteTiming:
    """What weighing a place said. `kept`: the original stays. `words`: a clause for the report; `kernel` runs if fused,
    and `choice` says why, where several were timed. `noisy`: the original stays because nothing could be told.

    Where nothing was measured, `words` say why, and the fused operation with its default kernel is taken.
    """

    kept: bool = False
    words: str = ""
    kernel: str = ""
    noisy: bool = False
    choice: str = ""

    @property
    def reason(self) -> Reason:
        """Why the original stays."""
        if self.noisy:
            return because(outcomes.TOO_NOISY, why=self.words)
        return because(outcomes.NOT_FASTER, why=self.words)


class SiteTimer:
    """Remembers what was weighed."""

    def __init__(self) -> None:
        self._known: dict[Hashable, SiteTiming] = {}

    def weigh(self, excerpt: Excerpt, module: nn.Module, training: bool) -> SiteTiming:
        """Weigh one place of `module`, which is a copy that may be run, in the mode that is asked about."""
        key = (excerpt.likeness, training, _shapes(module))
        if key not in self._known:
            self._known[key] = _remembered_or_weighed(excerpt, module, training)
        return self._known[key]


def _remembered_or_weighed(excerpt: Excerpt, module: nn.Module, training: bool) -> SiteTiming:
    """What an earlier process measured of an equal place, or what is measured now."""
    device = next((v.device for v in pytree.tree_leaves(excerpt.example_inputs) if isinstance(v, Tensor)), None)
    place = "" if device is None else place_of(excerpt, module, training)
    if device is not None and (known := found(place, device, SiteTiming)) is not None:
        return known
    weighed = _weighed(excerpt, module, training)
    if device is not None and not weighed.noisy and not weighed.words.startswith(_UNMEASURED):
        keep(place, device, weighed)
    return weighed


def _weighed(excerpt: Excerpt, module: nn.Module, training: bool) -> SiteTiming:
    try:
        values = tuple(pytree.tree_map(_made_up, v) for v in excerpt.example_inputs)
        before, after = excerpt.functions(module)
        site = _Site(before, after, values, training)
        if site.seconds(before) < SHORTEST.get(site.device.type, SHORTEST_ELSEWHERE):
            return site.looked_at()
        kernel, why = _best_kernel(excerpt, after, values, training)
        return site.weighed(kernel, why)
    except Exception as error:  # numbers that are made up may not be what a forward can take
        _LOG.debug("autofuse.ops.%s could not be weighed: %s: %s", excerpt.operation, type(error).__name__, error)
        why = "memory ran out" if is_out_of_memory(error) else f"{type(error).__name__} on made-up numbers"
        return SiteTiming(words=f"{_UNMEASURED} ({why})")


@dataclass(frozen=True)
class _Site:
    before: fx.GraphModule
    after: fx.GraphModule
    values: Sequence[Any]
    training: bool

    @property
    def device(self) -> torch.device:
        tensors = [v for v in pytree.tree_leaves(self.values) if isinstance(v, Tensor)]
        return tensors[0].device

    def step(self, function: fx.GraphModule) -> Callable[[], object]:
        """What is timed: forward and backward, or the forward where nothing is trained."""
        leaves = [v for v in pytree.tree_leaves(self.values) if isinstance(v, Tensor) and v.requires_grad]
        leaves += [p for p in function.parameters() if p.requires_grad]
        if not self.training or not leaves:
            return partial(self.forward, function)
        gradients = [torch.ones_like(r) for r in self.differentiable(function)]

        def step() -> object:
            return torch.autograd.grad(self.differentiable(function), leaves, gradients, allow_unused=True)

        return step

    def forward(self, function: fx.GraphModule) -> Any:
        with torch.set_grad_enabled(self.training):
            return function(*self.values)

    def differentiable(self, function: fx.GraphModule) -> list[Tensor]:
        results = pytree.tree_leaves(self.forward(function))
        return [r for r in results if isinstance(r, Tensor) and r.requires_grad]

    def seconds(self, function: fx.GraphModule) -> float:
        """Of a warm call, roughly; the first few of a quick one are no measure."""
        step, taken = self.step(function), list[float]()
        while len(taken) < _WARM and sum(taken) < _ENOUGH:
            taken.append(seconds_of(step, self.device))
        return taken[-1]

    def looked_at(self) -> SiteTiming:
        """Of a place that is too short to be weighed: it is fused unless that takes far longer.

        At such sizes most of the time is Python's, which says little of larger ones.
        """
        if settings().policy != "speed":
            return SiteTiming()
        steps = [self.step(f) for f in (self.before, self.after)]
        self.seconds(self.after)
        pairs = [[seconds_of(step, self.device) for step in steps] for _ in range(_LOOKS)]
        own, fused = (min(times) for times in zip(*pairs, strict=True))
        if fused < _FAR * own or fused - own < _FAR_SECONDS:
            return SiteTiming()
        words = f"measured here, the original stays: {milliseconds(own)} a call, fused {milliseconds(fused)}"
        return SiteTiming(True, words)

    def weighed(self, kernel: str, choice: str) -> SiteTiming:
        functions = {FUSED: self.after, ORIGINAL: self.before}
        steps = {name: self.step(function) for name, function in functions.items()}
        self.seconds(self.after)
        measured = race_steps(steps, [self.trial(name, f) for name, f in functions.items()], SECONDS, self.device)
        return decided(measured, kernel, choice)

    def trial(self, name: str, function: fx.GraphModule) -> Trial:
        """What is known of it but its time."""
        held = measure_held_memory(partial(self.forward, function), self.device).bytes if self.training else 0
        peak = measure_peak_memory(self.step(function), self.device).bytes
        return Trial(name, peak_bytes=peak, held_bytes=held)


def decided(measured: CandidateTime, kernel: str, choice: str) -> SiteTiming:
    """Whether a place is fused, by the times of what stood there (`ORIGINAL`) and of what would (`FUSED`).

    It is fused on evidence: where it is faster beyond the noise of identical runs, or as fast with less memory. Where
    noise leaves that open, the original stays. `choice` says why the fused operation runs `kernel`.
    """
    order, why = rank(measured, settings().policy)
    fused, own = (milliseconds(t.seconds or 0.0) for t in measured.trials)
    if settings().policy == "speed" and measured.unclear(order[0]):
        noise = f"identical runs differ by up to {measured.noise:.1f}x"
        words = f"too noisy to decide: {fused}, the original {own}, and {noise}; the original stays"
        return SiteTiming(True, words, noisy=True)
    if order[0] == ORIGINAL:
        return SiteTiming(True, f"measured here, the original stays: {why[:1].lower()}{why[1:].rstrip('.')}")
    return SiteTiming(False, f"{fused}, the original {own}", kernel, choice=choice)


def _best_kernel(excerpt: Excerpt, after: fx.GraphModule, values: Sequence[Any], training: bool) -> tuple[str, str]:
    """Measure what computes the operation best for these arguments: the kernel, and why, "" where nothing was timed."""
    operation = OPERATIONS.get(excerpt.operation)
    if operation is None or not operation.has_choice:
        return excerpt.kernel, ""
    args, kwargs = _Arguments(after, getattr(ops, excerpt.operation)).of(values)
    result = tune(operation, args, kwargs, training=training, seconds=SECONDS)
    why = f"{result.winner}: {result.why}" if result.measured else ""
    with torch.set_grad_enabled(training):
        return ops.kernel_of(excerpt.operation, *args, **kwargs), why


class _Arguments(fx.Interpreter):
    """What an operation is called with in a graph."""

    def __init__(self, module: fx.GraphModule, operation: Callable[..., Any]) -> None:
        super().__init__(module)
        self._operation = operation
        self._found: tuple[tuple[Any, ...], dict[str, Any]] | None = None

    def of(self, values: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        self.run(*values)
        assert self._found is not None
        return self._found

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if target is self._operation:
            self._found = args, kwargs
        return super().call_function(target, args, kwargs)


def _shapes(module: nn.Module) -> Hashable:
    """The parameters and buffers of `module`: two places with equal code may differ in nothing else."""
    tensors = (*module.named_parameters(), *module.named_buffers())
    return tuple((name, t.shape, t.dtype, t.requires_grad) for name, t in tensors)


def _made_up(fake: Any) -> Any:
    """Numbers in the form of what a trace saw: normal, zero for integers (any index fits), mostly True for masks."""
    if not isinstance(fake, Tensor):
        return fake
    if type(fake) not in (FakeTensor, Tensor, nn.Parameter):
        raise TypeError(f"a {type(fake).__name__} is not made up")
    sizes = [1 if stride == 0 else size for size, stride in zip(fake.shape, fake.stride(), strict=True)]
    made = torch.empty_strided(sizes, fake.stride(), dtype=fake.dtype, device=fake.device)
    with torch.no_grad():
        if made.dtype is torch.bool:
            made.copy_(torch.rand(sizes, device=made.device) < 0.9)
        elif made.is_floating_point() or made.is_complex():
            made.normal_()
        else:
            made.zero_()
    return made.expand(fake.shape).requires_grad_(fake.requires_grad)
