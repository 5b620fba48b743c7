"""Profiles a program while it runs by itself: measures a few of its steps, then asks it to end."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from autofuse.profiling.live.program_steps import Conductor, Finished
from autofuse.profiling.live.step_boundaries import Boundaries


@dataclass
class ScriptOutcome:
    """The end of a program.

    by: how its steps were recognised.
    trouble: why the profile is incomplete; "" if it is complete.
    interrupted: the user pressed Ctrl-C.
    """

    by: str = ""
    trouble: str = ""
    interrupted: bool = False


def run(program: Callable[[], None], name: str, conductor: Conductor, inference: bool = False) -> ScriptOutcome:
    """Run `program` until the conductor has everything, or the program ends.

    The program's output goes where it always goes, and the traceback of its exception to stderr. Its final actions
    (`finally`, context managers, atexit) run.

    Args:
        program: Runs the program.
        name: The program's name.
        conductor: Takes the steps through a profile.
        inference: Whether calls of a model are the steps.
    """
    boundaries = Boundaries(conductor.ended, conductor.restart, inference)
    outcome, how = ScriptOutcome(), ""
    with conductor.waiting.clocked():
        try:
            with boundaries.watching():
                program()
        except Finished:
            pass
        except SystemExit as error:
            how = "" if error.code in (None, 0) else f" with exit code {error.code!r:.200}"
        except KeyboardInterrupt:
            outcome.interrupted, how = True, ", interrupted"
        except Exception as error:
            trace = _traceback_of_program(error.__traceback__)
            sys.excepthook(type(error), error.with_traceback(trace), trace)
            how = f" with {type(error).__name__}"
        finally:
            conductor.close()
    if conductor.failure is not None:
        raise conductor.failure
    outcome.by = boundaries.by
    if not conductor.complete:
        outcome.trouble = f"{name} ended{how} {_incomplete_reason(conductor)}"
    return outcome


def _incomplete_reason(conductor: Conductor) -> str:
    if not conductor.heard:
        return (
            "and no step was seen: no optimizer stepped, and no model was called repeatedly. Profile a program that "
            "trains or calls a model. Steps in processes that it starts itself are not seen: start it with torchrun, "
            "as in `torchrun --nproc-per-node 2 -m autofuse profile script.py`."
        )
    return (
        f"after {conductor.heard} steps, but a complete profile takes {conductor.schedule.steps}: "
        "reduce --warmup and --steps, or let the program run longer."
    )


def _traceback_of_program(trace: TracebackType | None) -> TracebackType | None:
    """Return the part of a traceback that begins in the program, without autofuse's own frames."""
    while trace is not None and trace.tb_next and trace.tb_frame.f_globals.get("__name__", "").startswith("autofuse."):
        trace = trace.tb_next
    return trace
