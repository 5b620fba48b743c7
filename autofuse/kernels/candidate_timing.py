"""Times candidates against each other, until the best is clear or this machine turns out to be too noisy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch

from autofuse.kernels.policy import settings
from autofuse.kernels.ranking import CandidateTime, rank
from autofuse.measure.device_timing import CudaClock, DeviceClock, race_on_device
from autofuse.measure.pair_count import warm_up
from autofuse.measure.race import Race, race, typical, typical_interval
from autofuse.measure.timing import seconds_of, without_garbage_collection
from autofuse.results.tuning import Trial

WARM = 3  # warm-up calls, which do not count
_LONGER = (1.0, 2.0)  # further rounds, as multiples of the first, if no candidate is clearly the best yet

Step = Callable[[], object]


def race_steps(
    steps: Mapping[str, Step], trials: Sequence[Trial], seconds: float, device: torch.device
) -> CandidateTime:
    """Times each step, and returns the trials with their times.

    On a GPU the time runs from an idle device to an idle device, launches included. If the settings say that the model
    waits for the GPU, it is the time that the GPU works, and the host's time is reported separately.

    Args:
        steps: the steps by name.
        trials: one for each step, with what else is known about it.
        seconds: the time for each step; up to four times as long if noise leaves the best open.
        device: the device of the steps.

    Returns:
        The trials with times, the samples and the noise.
    """
    if device.type == "cuda" and settings().launch_bound is False:
        return race_steps_on_device(steps, trials, seconds, CudaClock(device))
    warm = {name: min(seconds_of(step, device) for _ in range(WARM)) for name, step in steps.items()}
    order = sorted(steps, key=lambda name: warm[name])  # the race times the first twice a round and never drops it
    with without_garbage_collection(), warm_up(steps[order[0]], steps[order[-1]], warmup=1, device=device):
        times = race({name: steps[name] for name in order}, seconds=seconds, seed=0, device=device)
        summary_of_all = _summarize(trials, times)
        for seed, longer in enumerate(_LONGER, 1):
            if not summary_of_all.unclear(rank(summary_of_all, "speed")[0][0]):
                break
            open_names = [name for name in order if len(times.samples[name]) >= len(times.control)]
            more = race({name: steps[name] for name in open_names}, seconds=longer * seconds, seed=seed, device=device)
            times = times.followed_by(more)
            summary_of_all = _summarize(trials, times)
    return summary_of_all


def race_steps_on_device(
    steps: Mapping[str, Step], trials: Sequence[Trial], seconds: float, clock: DeviceClock
) -> CandidateTime:
    """The same with the device's own clock, and the host's time for each call."""
    for step in steps.values():
        for _ in range(WARM):
            step()
    times, host = race_on_device(steps, seconds=seconds, seed=0, clock=clock)
    summary = _summarize(trials, times)
    trials_with_host_time = [replace(trial, host_seconds=host[trial.name]) for trial in summary.trials]
    return replace(summary, trials=trials_with_host_time)


def _summarize(trials: Sequence[Trial], times: Race) -> CandidateTime:
    summaries = []
    for trial in trials:
        samples = times.samples[trial.name]
        summaries.append(
            replace(trial, seconds=typical(samples), interval=typical_interval(samples), runs=len(samples))
        )
    return CandidateTime(summaries, times.samples, times.noise)
