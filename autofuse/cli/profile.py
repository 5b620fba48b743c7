"""`autofuse profile` of a program on this machine: a script, a module, or the result of a factory.

This file reads options, starts the run, and writes files and a summary. All options are checked first, so that bad
input is reported before minutes of work. Other files measure.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from autofuse.cli.profile_results import FAILED, TRACE, CannotWriteResults, Results, say
from autofuse.display.progress import progress_lines
from autofuse.profiling.live import program
from autofuse.profiling.live.assemble import assemble
from autofuse.profiling.live.factories import NoSubject, load
from autofuse.profiling.live.measurements import Measurements
from autofuse.profiling.live.profile import profile
from autofuse.profiling.live.program import NoProgram, Program
from autofuse.profiling.live.program_steps import Conductor, Schedule
from autofuse.profiling.live.script import run
from autofuse.profiling.live.workload import OnMeta
from autofuse.results.profile import Profile

_INTERRUPTED = 130


def main(options: Namespace) -> int:
    """Prints results to stdout, and messages about the run to stderr.

    Returns 0; 1 if a condition of --fail-if holds; 2 if the profile is missing or incomplete; 130 after Ctrl-C. The
    measurements up to then are written.
    """
    if options.ncu:
        say("--ncu adds numbers to a trace: pass the trace of the same program with --trace.")
        return FAILED
    try:
        results = Results.of(options, _rank())
        if options.module:
            return _program(program.module(options.module[0], options.module[1:]), options, results)
        target, *arguments = _target(options)
        if ":" in target and not Path(target).exists():
            return _factory(target, arguments, options, results)
        return _program(program.script(target, arguments), options, results)
    except (NoProgram, NoSubject, CannotWriteResults) as error:
        say(str(error))
        return FAILED


def _target(options: Namespace) -> list[str]:
    given = list(options.target or ())
    given = given[1:] if given[:1] == ["--"] else given
    if not given:
        raise NoProgram("Say what to profile: a script, module:factory, -m module, or --trace with files.")
    return given


def _factory(target: str, arguments: list[str], options: Namespace, results: Results) -> int:
    if arguments:
        raise NoSubject(f"A factory is called without arguments: remove {arguments[0]!r} after {target}.")
    try:
        with _redirect_program_output(options):
            made = load(target)
            found = profile(
                made.subject, made.inputs, step=made.step, warmup=options.warmup, steps=options.steps,
                traced=options.trace_steps, samples=options.samples, tokens=options.tokens,
                trace=results.path(TRACE), name=made.name,
            )  # fmt: skip
    except NoSubject:
        raise
    except OnMeta as error:
        raise NoSubject(f"{target} cannot be profiled. {error}") from error
    except SystemExit as error:
        raise NoSubject(
            f"{target} cannot be profiled, because it ended the program with exit code {error.code}. "
            "Remove the call of sys.exit from the factory."
        ) from error
    except Exception as error:
        traceback.print_exc()
        raise NoSubject(
            f"{target} cannot be profiled, because it raised {type(error).__name__}. Correct it; "
            "the traceback is above."
        ) from error
    return results.finish(replace(found, trace_file=results.name(TRACE)))


def _program(what: Program, options: Namespace, results: Results) -> int:
    def profile_of(measured: Measurements, together: bool) -> Profile:
        found = assemble(measured, together)
        if measured.save is None:
            return found
        measured.save(results.path(TRACE))
        return replace(found, trace_file=results.name(TRACE))

    schedule = Schedule(options.warmup, options.steps, options.trace_steps, options.samples, options.tokens)
    conductor = Conductor(schedule, what.name, profile_of, progress_lines(what.name), options.to_the_end)
    with what.in_place() as start, _redirect_program_output(options):
        outcome = run(start, what.name, conductor, options.inference)
    if outcome.trouble:
        say(outcome.trouble)
    code = FAILED
    if conductor.profile is not None:
        by = f"A step is the time between {outcome.by}."
        code = results.finish(replace(conductor.profile, notes=(by, *conductor.profile.notes)))
    if outcome.interrupted:
        return _INTERRUPTED
    return code if conductor.complete else FAILED


def _rank() -> int:
    """Returns the number of this process in the job that torchrun, for example, started; 0 without a job."""
    text = os.environ.get("RANK", "0")
    return int(text) if text.isdecimal() else 0


@contextlib.contextmanager
def _redirect_program_output(options: Namespace) -> Iterator[None]:
    """Sends the program's own output to stderr with --format json, because stdout then holds the profile only."""
    if options.format != "json":
        yield
        return
    with contextlib.redirect_stdout(sys.stderr):
        yield
