"""The option --export of `autofuse profile`: further files next to profile.json.

This file handles names of files. autofuse/display writes the formats.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from autofuse.cli.export_kinds import FILE_NAMES
from autofuse.display.export_ci import junit, step_summary
from autofuse.display.export_stacks import collapsed, speedscope
from autofuse.display.export_tables import kernels_csv, layers_csv
from autofuse.profiling.trace import trace as traces
from autofuse.profiling.trace.annotated import annotate_trace
from autofuse.results.conditions import ConditionOutcome
from autofuse.results.profile import Profile

_FROM_PROFILE: dict[str, Callable[[Profile], str]] = {
    "speedscope": lambda profile: json.dumps(speedscope(profile), allow_nan=False),
    "stacks": collapsed,
    "layers": layers_csv,
    "kernels": kernels_csv,
}


class CannotExport(ValueError):
    """A file cannot be written. The message says why."""


def file_names(kinds: Sequence[str]) -> tuple[str, ...]:
    """The names of the files of these kinds."""
    return tuple(FILE_NAMES[kind] for kind in kinds)


def export_file(
    kind: str, profile: Profile, outcomes: Sequence[ConditionOutcome], strict: bool, trace: Path | None
) -> tuple[str, bytes]:
    """The name of the file of one kind, and its content.

    Args:
        kind: One of EXPORT_KINDS.
        profile: What is exported.
        outcomes: The outcomes of --fail-if, for junit and github.
        strict: Whether an undecided condition is a failure.
        trace: The file of the profile's trace, for perfetto; None if there is none.

    Raises:
        CannotExport: The kind is "perfetto", and the trace cannot be read.
    """
    if kind == "perfetto":
        return FILE_NAMES[kind], _perfetto(profile, trace)
    if kind == "junit":
        seconds = profile.timing.median if profile.timing.seconds else 0.0
        text = junit(f"autofuse profile: {profile.name}", outcomes, strict, seconds)
    elif kind == "github":
        text = step_summary(profile, outcomes)
    else:
        text = _FROM_PROFILE[kind](profile)
    return FILE_NAMES[kind], text.encode("utf-8", errors="backslashreplace")


def append_to_github(text: str) -> bool:
    """Appends Markdown to the summary of the running step of GitHub Actions. Returns whether there is one.

    Raises OSError if the file cannot be written.
    """
    path = os.environ.get("GITHUB_STEP_SUMMARY")
    if not path:
        return False
    with open(path, "a", encoding="utf-8", errors="backslashreplace") as file:
        file.write(text)
    return True


def _perfetto(profile: Profile, path: Path | None) -> bytes:
    if path is None:
        raise CannotExport("There is no trace to annotate, because no step was recorded. Let the program run longer.")
    try:
        content = traces.read_json(path)
        found = annotate_trace(content, traces.parse_trace(content, path.name), profile)
    except traces.Unreadable as error:
        raise CannotExport(str(error)) from error
    except OSError as error:
        raise CannotExport(f"{path} cannot be read: {error.strerror or error}.") from error
    # json cannot write the decimals in which a trace keeps exact numbers. Perfetto reads floats.
    return gzip.compress(json.dumps(found, default=float).encode(), mtime=0)
