"""`autofuse plan`: reads options, makes a plan and prints it. Other files compute the plan."""

from __future__ import annotations

import contextlib
import math
import sys
import traceback
from argparse import Namespace
from pathlib import Path

from autofuse.cli.profile_results import say
from autofuse.display import terminal
from autofuse.profiling.live.factories import NoSubject
from autofuse.profiling.plan.capacity import capacity_of, parse_capacity
from autofuse.profiling.plan.paper import Unplannable
from autofuse.profiling.plan.plan import plan
from autofuse.profiling.plan.scaling import Link
from autofuse.profiling.plan.spreading import Scale
from autofuse.results.plan import Capacity, Plan
from autofuse.results.profile import Profile
from autofuse.results.reading import NotOurs, read

DONE, DOES_NOT_FIT, FAILED = 0, 1, 2


def main(options: Namespace) -> int:
    """Prints the plan to stdout.

    Returns 0; 1 if the step fits neither before nor after fusion; 2 if it cannot be planned.
    """
    try:
        capacity, scale = _capacity(options), _scale(options)
    except ValueError as error:
        say(str(error))
        return FAILED
    try:
        with contextlib.redirect_stdout(sys.stderr):  # the factory's own output is not a part of the plan
            found = _make_plan(options, capacity, scale)
    except (Unplannable, NoSubject) as error:
        say(str(error))
        return FAILED
    except Exception as error:  # an error of the factory
        traceback.print_exception(error, limit=-3)
        say(
            f"{options.target} raised {type(error).__name__}, so nothing was planned. Correct it; "
            "the traceback is above."
        )
        return FAILED
    console = terminal.stdout()
    if options.format == "json":
        console.file.write(found.to_json() + "\n")
    else:
        console.print(found)
    fits = [side.fit for side in (found.before, found.after) if side.memory.peak_bytes is not None]
    return DOES_NOT_FIT if fits and set(fits) == {"does not fit"} else DONE


def _make_plan(options: Namespace, capacity: Capacity | None, scale: Scale | None) -> Plan:
    strategy = "none" if options.shard == 1 else options.strategy or "fsdp"
    if options.shard == 1 and options.strategy:
        raise Unplannable(f"{options.strategy} is for several devices: say how many with --shard.")
    return plan(
        options.target, batch=options.batch, sequence=options.sequence, dtype=options.dtype, autocast=options.autocast,
        checkpointing=options.checkpointing, optimizer=options.optimizer, strategy=strategy, devices=options.shard,
        capacity=capacity, fuse=not options.no_fusion, scale=scale, master=options.fp32_master, tensor=options.tensor,
        pipeline=options.pipeline, context=options.context, microbatches=options.microbatches, offload=options.offload,
    )  # fmt: skip


def _capacity(options: Namespace) -> Capacity | None:
    if options.memory:
        return parse_capacity(options.memory)
    return capacity_of(options.device) if options.device else None


def _scale(options: Namespace) -> Scale | None:
    """Returns what --scale requests; None without it. Raises Unplannable if an option that it needs is missing."""
    if options.scale is None:
        return None
    if options.link is None or (options.step_seconds is None) == (options.profile is None):
        raise Unplannable(
            "--scale needs the link between devices and the time of a step on one device: pass --link, such as 50GB, "
            "and either --profile with a profile.json or --step-seconds."
        )
    seconds, constant, source = options.step_seconds, 0.0, "as given"
    if options.profile is not None:
        seconds, constant, source = _read_step_time(options.profile)
    if not 0 < seconds < math.inf:
        raise Unplannable(f"--step-seconds is {seconds}, but a step takes more than 0 s: pass the time of one step.")
    across = Link(parse_capacity(options.link_across).bytes, options.latency * 1e-6) if options.link_across else None
    link = Link(parse_capacity(options.link).bytes, options.latency * 1e-6)
    return Scale(seconds, source, link, options.scale, constant, across)


def _read_step_time(path: Path) -> tuple[float, float, str]:
    """Returns the seconds of a profile's step, the part that does not grow with the batch, and their source."""
    try:
        profile = read(path)
    except NotOurs as error:
        raise Unplannable(str(error)) from error
    if not isinstance(profile, Profile) or not profile.timing.seconds:
        raise Unplannable(f"{path} has no profile with a timed step. Pass a profile.json of one device.")
    if len(profile.ranks) > 1:
        raise Unplannable(
            f"{path} is a profile of {len(profile.ranks)} processes, but scaling is planned from one device. "
            "Pass a profile of one process."
        )
    step, ratio = profile.timing.median, profile.probe.ratio
    constant = 0.0 if ratio is None else step * min(1.0, max(0.0, 2 - ratio))
    return step, constant, f"measured, {path.name}, {profile.roof.device or 'device not known'}"
