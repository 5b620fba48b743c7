"""Times the fused code of a site against the original code, and decides which of them runs.

Each site is timed separately, on random inputs with the sizes, strides and dtypes of the trace. In training, forward
and backward are timed together. Equal sites are timed once.
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
from autofuse.fx.session.remembered_times import load, site_key, store
from autofuse.kernels.candidate_timing import race_steps
from autofuse.kernels.operation import OPERATIONS, record_calls
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
SECONDS = 0.15  # seconds for each candidate
_WARM, _ENOUGH = 4, 0.05  # warm-up calls, and the seconds that suffice for them
_LOOKS, _FAR, _FAR_SECONDS = 15, 2.0, 2e-5  # for a short site: calls, and what counts as far slower
_UNMEASURED = "not measured"
_LOG = logging.getLogger("autofuse")


@dataclass(frozen=True)
class SiteTiming:
    """The timing of a site. The timing cache stores its fields by name.

    If nothing was measured, `words` says why, and the fused operation runs with its default kernel.

    Attributes:
        kept: Whether the original stays.
        words: A clause for the report.
        kernel: The kernel of the fused operation.
        noisy: Whether the original stays because the measurement was inconclusive.
        choice: Why this kernel was chosen, if several were timed.
    """

    kept: bool = False
    words: str = ""
    kernel: str = ""
    noisy: bool = False
    choice: str = ""

    @property
    def reason(self) -> Reason:
        """The reason why the original stays."""
        if self.noisy:
            return because(outcomes.TOO_NOISY, why=self.words)
        return because(outcomes.NOT_FASTER, why=self.words)


class SiteTimer:
    """Times sites. Equal sites are timed once."""

    def __init__(self) -> None:
        self._known: dict[Hashable, SiteTiming] = {}

    def time_site(self, excerpt: Excerpt, module: nn.Module, training: bool) -> SiteTiming:
        """Time one site in one mode.

        Args:
            excerpt: The replaced and the new code.
            module: A copy of the module, which may run.
            training: Whether to time forward and backward.
        """
        key = (excerpt.key, training, _shapes(module))
        if key not in self._known:
            self._known[key] = _load_or_time(excerpt, module, training)
        return self._known[key]


def _load_or_time(excerpt: Excerpt, module: nn.Module, training: bool) -> SiteTiming:
    """The stored timing of an equal site, or a new one."""
    device = next((v.device for v in pytree.tree_leaves(excerpt.example_inputs) if isinstance(v, Tensor)), None)
    key = "" if device is None else site_key(excerpt, module, training)
    if device is not None and (known := load(key, device, SiteTiming)) is not None:
        return known
    timing = _time_excerpt(excerpt, module, training)
    # Inconclusive and failed measurements are repeated by the next process.
    if device is not None and not timing.noisy and not timing.words.startswith(_UNMEASURED):
        store(key, device, timing)
    return timing


def _time_excerpt(excerpt: Excerpt, module: nn.Module, training: bool) -> SiteTiming:
    try:
        values = tuple(pytree.tree_map(_random_like, v) for v in excerpt.example_inputs)
        before, after = excerpt.functions(module)
        site = _TimedSite(before, after, values, training)
        if site.seconds(before) < SHORTEST.get(site.device.type, SHORTEST_ELSEWHERE):
            return site.check_short_site()
        kernel, why = _best_kernel(excerpt, after, values, training)
        return site.measure(kernel, why)
    except Exception as error:  # a forward may not accept random inputs
        _LOG.debug("autofuse.ops.%s could not be timed: %s: %s", excerpt.operation, type(error).__name__, error)
        why = "memory ran out" if is_out_of_memory(error) else f"{type(error).__name__} on random inputs"
        return SiteTiming(words=f"{_UNMEASURED} ({why})")


@dataclass(frozen=True)
class _TimedSite:
    before: fx.GraphModule
    after: fx.GraphModule
    values: Sequence[Any]
    training: bool

    @property
    def device(self) -> torch.device:
        tensors = [v for v in pytree.tree_leaves(self.values) if isinstance(v, Tensor)]
        return tensors[0].device

    def step(self, function: fx.GraphModule) -> Callable[[], object]:
        """The function to time: forward and backward, or only the forward if nothing has a gradient."""
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
        """The approximate time of a warm call. The first calls of a fast function are ignored."""
        step, durations = self.step(function), list[float]()
        while len(durations) < _WARM and sum(durations) < _ENOUGH:
            durations.append(seconds_of(step, self.device))
        return durations[-1]

    def check_short_site(self) -> SiteTiming:
        """Compare a site that is too short for a full measurement. It is fused unless that is far slower.

        At such sizes Python takes most of the time, which says little about larger sizes.
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

    def measure(self, kernel: str, choice: str) -> SiteTiming:
        functions = {FUSED: self.after, ORIGINAL: self.before}
        steps = {name: self.step(function) for name, function in functions.items()}
        self.seconds(self.after)
        measured = race_steps(steps, [self.trial(name, f) for name, f in functions.items()], SECONDS, self.device)
        return decide(measured, kernel, choice)

    def trial(self, name: str, function: fx.GraphModule) -> Trial:
        """The memory of a function, without its time."""
        held_bytes = measure_held_memory(partial(self.forward, function), self.device).bytes if self.training else 0
        peak = measure_peak_memory(self.step(function), self.device).bytes
        return Trial(name, peak_bytes=peak, held_bytes=held_bytes)


def decide(measured: CandidateTime, kernel: str, choice: str) -> SiteTiming:
    """Decide whether a site is fused.

    It is fused if it is faster beyond the noise of identical runs, or equally fast with less memory. If the measurement
    is inconclusive, the original stays.

    Args:
        measured: The timings of the original code (`ORIGINAL`) and of the fused code (`FUSED`).
        kernel: The kernel of the fused operation.
        choice: Why this kernel was chosen.
    """
    order, why = rank(measured, settings().policy)
    fused, own = (milliseconds(t.seconds or 0.0) for t in measured.trials)
    if settings().policy == "speed" and measured.unclear(order[0]):
        noise = f"identical runs differ by up to {measured.noise:.1f}x"
        words = f"too noisy to decide: {fused}, the original {own}, and {noise}; the original stays"
        return SiteTiming(True, words, noisy=True)
    if order[0] == ORIGINAL:
        return SiteTiming(True, f"measured here, the original stays: {why[:1].lower()}{why[1:].rstrip('.')}")
    words = f"{fused}, the original {own}"
    if not measured.slower(ORIGINAL, FUSED):  # the times do not explain the choice: 12.7 ms, the original 12.2 ms
        words += f"; {why[:1].lower()}{why[1:].rstrip('.')}"
    return SiteTiming(False, words, kernel, choice=choice)


def _best_kernel(excerpt: Excerpt, after: fx.GraphModule, values: Sequence[Any], training: bool) -> tuple[str, str]:
    """Measure the kernels of the operation for these arguments.

    Returns:
        The best kernel, and why; "" if nothing was timed.
    """
    operation = OPERATIONS.get(excerpt.operation)
    if operation is None or not operation.has_choice:
        return excerpt.kernel, ""
    with torch.set_grad_enabled(training), record_calls() as calls:
        args, kwargs = _Arguments(after, getattr(ops, excerpt.operation)).of(values)
    # The public function may turn a mask into a flag, by its values. Kernels are measured for the call that they get.
    made = next((c for c in calls if c.operation is operation), None)
    args, kwargs = (args, kwargs) if made is None else (made.args, made.kwargs)
    result = tune(operation, args, kwargs, training=training, seconds=SECONDS)
    why = f"{result.winner}: {result.why}" if result.measured else ""
    with torch.set_grad_enabled(training):
        return ops.kernel_of(excerpt.operation, *args, **kwargs), why


class _Arguments(fx.Interpreter):
    """Finds the arguments with which a graph calls an operation."""

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
    """Shapes and dtypes of the parameters and buffers of `module`, in which sites with equal code may differ."""
    tensors = (*module.named_parameters(), *module.named_buffers())
    return tuple((name, t.shape, t.dtype, t.requires_grad) for name, t in tensors)


def _random_like(fake: Any) -> Any:
    """Random values for a traced value: normal floats, zeros for integers (valid indices), mostly True for bool."""
    if not isinstance(fake, Tensor):
        return fake
    if type(fake) not in (FakeTensor, Tensor, nn.Parameter):
        raise TypeError(f"no random values exist for a {type(fake).__name__}")
    # The entries of an expanded dimension share memory and are filled once.
    sizes = [1 if stride == 0 else size for size, stride in zip(fake.shape, fake.stride(), strict=True)]
    values_like = torch.empty_strided(sizes, fake.stride(), dtype=fake.dtype, device=fake.device)
    with torch.no_grad():
        if values_like.dtype is torch.bool:
            values_like.copy_(torch.rand(sizes, device=values_like.device) < 0.9)
        elif values_like.is_floating_point() or values_like.is_complex():
            values_like.normal_()
        else:
            values_like.zero_()
    return values_like.expand(fake.shape).requires_grad_(fake.requires_grad)
