"""`autofuse plan`: options -> a plan -> stdout. Knows options and in what order things are asked; plans nothing."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from argparse import Namespace

from rich.console import Console

from autofuse.planning.capacity import capacity_given, capacity_of
from autofuse.planning.paper import Unplannable
from autofuse.planning.plan import plan
from autofuse.profiling.factories import NoSubject
from autofuse.report.plan import Capacity, Plan
from autofuse.report.results import say

DONE, DOES_NOT_FIT, FAILED = 0, 1, 2
_WIDTH = 120


def main(options: Namespace) -> int:
    """The plan goes to stdout. Returns 0; 1 where it fits neither before nor after fusion; 2 for what cannot be."""
    try:
        capacity = _capacity(options)
        with contextlib.redirect_stdout(sys.stderr):  # what a factory prints is no part of the plan
            found = _planned(options, capacity)
    except (Unplannable, NoSubject, ValueError) as error:
        say(str(error))
        return FAILED
    except Exception as error:  # the factory's own
        traceback.print_exception(error, limit=-3)
        say(f"{options.target} raised {type(error).__name__}, and nothing was planned.")
        return FAILED
    console = Console()
    if options.format == "json":
        console.file.write(found.to_json() + "\n")
    else:
        if not console.is_terminal and "COLUMNS" not in os.environ:
            console.width = _WIDTH
        console.print(found)
    fits = [side.fit for side in (found.before, found.after) if side.memory.peak_bytes is not None]
    return DOES_NOT_FIT if fits and set(fits) == {"does not fit"} else DONE


def _planned(options: Namespace, capacity: Capacity | None) -> Plan:
    strategy = "none" if options.shard == 1 else options.strategy or "fsdp"
    if options.shard == 1 and options.strategy:
        raise Unplannable(f"{options.strategy} is for several devices: say how many with --shard.")
    return plan(
        options.target, batch=options.batch, sequence=options.sequence, dtype=options.dtype, autocast=options.autocast,
        checkpointing=options.checkpointing, optimizer=options.optimizer, strategy=strategy, devices=options.shard,
        capacity=capacity, fuse=not options.no_fusion,
    )  # fmt: skip


def _capacity(options: Namespace) -> Capacity | None:
    if options.memory:
        return capacity_given(options.memory)
    return capacity_of(options.device) if options.device else None
