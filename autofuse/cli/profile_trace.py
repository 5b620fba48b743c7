"""`autofuse profile --trace`: reads recorded traces, and writes files and a summary.

This file handles options. Other files read traces.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from autofuse.cli.export_kinds import EXPORT_KINDS
from autofuse.cli.profile_exports import file_names
from autofuse.cli.profile_results import DATA, FAILED, CannotWriteResults, Results, say
from autofuse.profiling.trace.inputs.files import ENDINGS, inputs_of
from autofuse.profiling.trace.nsight import Unsuitable
from autofuse.profiling.trace.profile import profile_of_inputs
from autofuse.profiling.trace.trace import Unreadable


def files_of(given: Sequence[Path]) -> list[Path]:
    """Returns the given files, and the traces in given folders at any depth, in order of their names.

    Raises Unreadable if a folder contains no trace.
    """
    found: list[Path] = []
    for path in given:
        if not path.is_dir():
            found.append(path)
            continue
        inside = sorted(
            p for p in path.rglob("*") if p.is_file() and p.name.endswith(ENDINGS) and not _is_own_output(p)
        )
        if not inside:
            raise Unreadable(f"{path} holds no trace: no file in it ends with {' or '.join(ENDINGS)}.")
        found += inside
    return found


def _is_own_output(path: Path) -> bool:
    """Whether an earlier run wrote the file next to the traces."""
    return path.name == DATA or path.name in file_names(EXPORT_KINDS)


def main(options: Namespace) -> int:
    """Prints results to stdout, and messages about the run to stderr.

    Returns 0; 1 if a condition of --fail-if holds; 2 if a file is not a trace or results cannot be written.
    """
    if options.target or options.module:
        say(
            f"--trace reads traces and cannot be combined with {(options.target or options.module)[0]!r}, which would "
            "be run: use two commands."
        )
        return FAILED
    try:
        results = Results.of(options)
        peak = (options.peak_flops, options.peak_bandwidth)
        paths = files_of(options.trace)
        if "perfetto" in options.export and len(paths) > 1:
            raise CannotWriteResults("--export perfetto annotates one trace: pass one file with --trace.")
        found = profile_of_inputs(inputs_of(paths), options.ncu, peak)
    except OSError as error:
        say(f"{error.filename} cannot be read: {error.strerror or error}. Check the path.")
        return FAILED
    except (Unreadable, Unsuitable, CannotWriteResults) as error:
        say(str(error))
        return FAILED
    timing = replace(found.timing, samples=options.samples, tokens=options.tokens)
    return replace(results, source=paths[0]).finish(replace(found, timing=timing))
