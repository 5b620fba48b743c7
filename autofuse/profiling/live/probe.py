"""The double-the-batch probe: how much longer a step takes with twice the samples.

A step has a part that does not depend on the batch (launching operators, the optimizer, reading weights) and a part
that grows with it. If t is the step's time and c the constant part, t(2 x batch) / t(batch) = 2 - c / t: 2 if
everything grows, 1.5 if half of it is constant. The caller restores what steps change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from autofuse.measure.statistics import FEWEST_PAIRS, estimate
from autofuse.measure.step import Inputs
from autofuse.measure.timing import seconds_of, time_interleaved
from autofuse.profiling.live.roofline import HALF_STAYS, regime_of
from autofuse.results.comparison import Estimate
from autofuse.results.profile import Probe, Regime, Roof, Work
from autofuse.torch_private.nested import mapped, tensors_in

_MOST_PAIRS = 30
_WARMUP = 2  # first steps with twice the batch, which are not compared


class NotApplicable(ValueError):
    """It is unknown which size of the inputs is the batch. The message is a sentence for the user."""


def probe_batch(
    run: Callable[[Inputs], object], inputs: Inputs, device: torch.device, *,
    work: Work | None = None, roof: Roof | None = None, seconds: float = 4.0, seed: int = 0,
) -> Probe:  # fmt: skip
    """Time run(inputs) against run(inputs doubled), in pairs of random order.

    If a step does not run with twice the batch, or if the batch is unknown, the Probe has the reason, and nothing is
    raised.

    Args:
        run: Runs a step with the given inputs.
        inputs: The inputs of a step.
        device: The device of the step.
        work: The work of the whole step, with its seconds. With `roof`, it shows what limits the step if the batch does
            not.
        roof: The roof of the device.
        seconds: About how long to measure.
        seed: Of the random order.
    """
    try:
        twice = double_batch(inputs)
        for _ in range(_WARMUP):
            longer = seconds_of(lambda: run(twice), device)
    except NotApplicable as error:
        return Probe(reason=str(error))
    except Exception as error:
        return Probe(reason=f"A step with twice the batch failed with {_first_line(error)}")
    pairs = min(_MOST_PAIRS, max(FEWEST_PAIRS, int(seconds / (1.5 * longer))))
    timings = time_interleaved(
        lambda: run(twice), lambda: run(inputs), pairs=pairs, warmup=1, seed=seed, device=device
    )  # fmt: skip
    found = estimate(timings.before, timings.after, seed=seed)
    verdict, reason = verdict_of(found, work, roof)
    return Probe(found.ratio, found.interval, verdict, reason)


def verdict_of(found: Estimate, work: Work | None = None, roof: Roof | None = None) -> tuple[Regime, str]:
    """Return the verdict on t(2 x batch) / t(batch) with its interval, and a sentence.

    "overhead" if the whole interval is below 1.5; "inconclusive" if it contains 1.5; else the result of comparing the
    intensity of `work` with `roof`'s balance, or "unknown" without these.
    """
    low, high = found.interval
    between = f"twice the batch takes {found.ratio:.2f} times as long (95 %: {low:.2f} to {high:.2f})"
    if high < HALF_STAYS:
        stays = min(1.0, max(0.0, 2 - found.ratio))
        return "overhead", (
            f"{_sentence(between)}, so about {stays:.0%} of the step does not grow with it: launching operators, "
            "the optimizer, reading weights."
        )
    if low <= HALF_STAYS:
        return "inconclusive", (
            f"{_sentence(between)}. Below {HALF_STAYS}, overhead is the limit; above, it is not. The interval has "
            "both. Measure longer, or on a quieter machine."
        )
    if work is None or roof is None:
        return "unknown", f"{_sentence(between)}: overhead is not the limit."
    regime, why = regime_of(work, roof)
    return regime, f"{_sentence(between)}: overhead is not the limit. {why}"


def double_batch(inputs: Inputs) -> Any:
    """Return the inputs with twice the samples: every tensor that begins with the batch's size is repeated once.

    The batch is the size that all tensors with a dimension begin with. Tensors that begin with 1 next to larger ones
    are broadcast and stay.

    Raises:
        NotApplicable: There is no such size.
    """
    size = _batch_of_tensors(tensors_in(inputs))

    def twice(x: Any) -> Any:
        if isinstance(x, Tensor):
            fits = x.dim() and x.shape[0] == size
            return torch.cat([x, x]).detach().requires_grad_(x.requires_grad) if fits else x
        if isinstance(x, Mapping):
            return mapped(twice, dict(x))
        return type(x)(*mapped(twice, list(x))) if isinstance(x, tuple) and hasattr(x, "_fields") else x

    return mapped(twice, inputs)


def _batch_of_tensors(tensors: Iterable[Tensor]) -> int:
    sizes = {int(t.shape[0]) for t in tensors if t.dim()}
    if not sizes:
        raise NotApplicable("The inputs have no tensor with a batch, so the batch cannot be doubled.")
    several = sorted(sizes - {1})
    if len(several) > 1:
        begin = ", ".join(map(str, several))
        raise NotApplicable(
            f"The inputs' tensors begin with different sizes ({begin}), so it is unknown which of them is the batch."
        )
    return several[0] if several else 1


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:]


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else f"{type(error).__name__}."
