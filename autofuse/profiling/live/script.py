"""Profiles a program while it runs by itself: a few of its steps are looked at, then it is asked to end."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from autofuse.profiling.live.program_steps import Conductor, Finished
from autofuse.profiling.live.step_boundaries import Boundaries


@dataclass
class ScriptOutcome:
    """How a program ended. by: what its steps were told by. trouble: why the profile is not whole; "" where it is.

    interrupted: somebody pressed Ctrl-C.
    """

    by: str = ""
    trouble: str = ""
    interrupted: bool = False


def run(program: Callable[[], None], name: str, conductor: Conductor, inference: bool = False) -> ScriptOutcome:
    """Run `program` until the conductor has what it wants, or the program ends.

    What it prints goes where it always goes, and the traceback of what it raises to stderr. What it left to be done at
    its end (`finally`, context managers, atexit) is done. inference: calls of a model are the steps.
    """
    boundaries = Boundaries(conductor.ended, conductor.anew, inference)
    outcome, left = ScriptOutcome(), ""
    with conductor.waiting.clocked():
        try:
            with boundaries.found():
                program()
        except Finished:
            pass
        except SystemExit as error:
            left = "" if error.code in (None, 0) else f" with exit code {error.code!r:.200}"
        except KeyboardInterrupt:
            outcome.interrupted, left = True, ", interrupted"
        except Exception as error:
            trace = _of_program(error.__traceback__)
            sys.excepthook(type(error), error.with_traceback(trace), trace)
            left = f" with {type(error).__name__}"
        finally:
            conductor.close()
    if conductor.failure is not None:
        raise conductor.failure
    outcome.by = boundaries.by
    if not conductor.complete:
        outcome.trouble = f"{name} ended{left} {_after(conductor)}"
    return outcome


def _after(conductor: Conductor) -> str:
    if not conductor.heard:
        return (
            "and took no step that could be seen: no optimizer stepped, and no model was called over and over. "
            "Steps in processes that it starts itself are not seen: start it with torchrun, as in "
            "`torchrun --nproc-per-node 2 -m autofuse profile script.py`."
        )
    return (
        f"after {conductor.heard} steps, and a whole profile takes {conductor.schedule.steps}: "
        "ask for fewer with --warmup and --steps, or let it run for longer."
    )


def _of_program(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the program's own first line on."""
    while trace is not None and trace.tb_next and trace.tb_frame.f_globals.get("__name__", "").startswith("autofuse."):
        trace = trace.tb_next
    return trace
