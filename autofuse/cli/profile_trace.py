"""`autofuse profile --trace`: traces that were taken elsewhere -> files and a summary. Knows options, reads nothing."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace

from autofuse.cli.profile_results import FAILED, CannotWriteResults, Results, say
from autofuse.profiling.trace.nsight import Unsuitable
from autofuse.profiling.trace.profile import profile_of_traces
from autofuse.profiling.trace.trace import Unreadable, read


def main(options: Namespace) -> int:
    """Results go to stdout, what is said about the run to stderr. Returns 0, 1 where a condition of --fail-if holds, or
    2 for a file that is no trace and results that cannot be written."""
    if options.target or options.module:
        say(f"--trace reads traces, and {(options.target or options.module)[0]!r} is to be run: one at a time.")
        return FAILED
    try:
        results = Results.of(options)
        found = profile_of_traces([read(path) for path in options.trace], options.ncu)
    except OSError as error:
        say(f"{error.filename} cannot be read: {error.strerror or error}.")
        return FAILED
    except (Unreadable, Unsuitable, CannotWriteResults) as error:
        say(str(error))
        return FAILED
    timing = replace(found.timing, samples=options.samples, tokens=options.tokens)
    return results.finish(replace(found, timing=timing))
