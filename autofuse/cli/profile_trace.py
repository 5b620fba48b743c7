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
    """The files given, and of folders the traces anywhere in them, in order of their names.

    Raises Unreadable for a folder in which there is none.
    """
    found: list[Path] = []
    for path in given:
        if not path.is_dir():
            found.append(path)
            continue
        inside = sorted(p for p in path.rglob("*") if p.is_file() and p.name.endswith(ENDINGS) and not _ours(p))
        if not inside:
            raise Unreadable(f"{path} holds no trace: no file in it ends with {' or '.join(ENDINGS)}.")
        found += inside
    return found


def _ours(path: Path) -> bool:
    """Whether an earlier run wrote the file next to the traces."""
    return path.name == DATA or path.name in file_names(EXPORT_KINDS)


def main(options: Namespace) -> int:
    """Results go to stdout, what is said about the run to stderr. Returns 0, 1 where a condition of --fail-if holds, or
    2 for a file that is no trace and results that cannot be written."""
    if options.target or options.module:
        say(f"--trace reads traces, and {(options.target or options.module)[0]!r} is to be run: one at a time.")
        return FAILED
    try:
        results = Results.of(options)
        peak = (options.peak_flops, options.peak_bandwidth)
        paths = files_of(options.trace)
        if "perfetto" in options.export and len(paths) > 1:
            raise CannotWriteResults("--export perfetto annotates one trace: pass one file with --trace.")
        found = profile_of_inputs(inputs_of(paths), options.ncu, peak)
    except OSError as error:
        say(f"{error.filename} cannot be read: {error.strerror or error}.")
        return FAILED
    except (Unreadable, Unsuitable, CannotWriteResults) as error:
        say(str(error))
        return FAILED
    timing = replace(found.timing, samples=options.samples, tokens=options.tokens)
    return replace(results, source=paths[0]).finish(replace(found, timing=timing))
