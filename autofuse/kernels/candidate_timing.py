"""Steps timed against each other until it is clear which is best, or that this machine, now, cannot tell.

Knows clocks and what makes a choice unclear; must not know what the steps compute.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch

from autofuse.kernels.policy import settings
from autofuse.kernels.ranking import CandidateTime, ranked
from autofuse.measure.device_timing import CudaClock, DeviceClock, race_on_device
from autofuse.measure.pair_count import warm_up
from autofuse.measure.race import Race, race, typical, typical_interval
from autofuse.measure.timing import seconds_of, without_garbage_collection
from autofuse.results.tuning import Trial

WARM = 3  # calls before the first that counts
_LONGER = (1.0, 2.0)  # times as long again, for what is still open then

Step = Callable[[], object]


def raced(steps: Mapping[str, Step], trials: Sequence[Trial], seconds: float, device: torch.device) -> CandidateTime:
    """The trials with their times, `seconds` for each, and up to four times that where noise leaves open who is best.

    `trials` has one for each of the steps, by name, with what else is known of it. On a GPU the time is that from an
    idle device to an idle one, launches included, unless the settings say that the model's steps wait for the GPU: then
    it is the time that the GPU works, and the host's time is reported separately.
    """
    if device.type == "cuda" and settings().launch_bound is False:
        return raced_by_device(steps, trials, seconds, CudaClock(device))
    warm = {name: min(seconds_of(step, device) for _ in range(WARM)) for name, step in steps.items()}
    order = sorted(steps, key=lambda name: warm[name])  # the first is timed twice a round, and never let go
    with without_garbage_collection(), warm_up(steps[order[0]], steps[order[-1]], warmup=1, device=device):
        times = race({name: steps[name] for name in order}, seconds=seconds, seed=0, device=device)
        measured = _summed(trials, times)
        for seed, longer in enumerate(_LONGER, 1):
            if not measured.unclear(ranked(measured, "speed")[0][0]):
                break
            left = [name for name in order if len(times.samples[name]) >= len(times.control)]
            more = race({name: steps[name] for name in left}, seconds=longer * seconds, seed=seed, device=device)
            times = times.followed_by(more)
            measured = _summed(trials, times)
    return measured


def raced_by_device(
    steps: Mapping[str, Step], trials: Sequence[Trial], seconds: float, clock: DeviceClock
) -> CandidateTime:
    """The trials with their times on the device's own clock, and the host's time for each call."""
    for step in steps.values():
        for _ in range(WARM):
            step()
    times, host = race_on_device(steps, seconds=seconds, seed=0, clock=clock)
    told = _summed(trials, times)
    beside = [replace(trial, host_seconds=host[trial.name]) for trial in told.trials]
    return replace(told, trials=beside)


def _summed(trials: Sequence[Trial], times: Race) -> CandidateTime:
    done = []
    for trial in trials:
        own = times.samples[trial.name]
        done.append(replace(trial, seconds=typical(own), interval=typical_interval(own), runs=len(own)))
    return CandidateTime(done, times.samples, times.noise)
