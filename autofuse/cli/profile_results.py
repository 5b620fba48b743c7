"""Writes the results of a profile: files, a summary on the terminal, and the exit code.

The exit code is 1 if a condition of --fail-if holds, and 2 if results cannot be written. A file is replaced completely
or not at all. Before anything runs, this file checks that results can be written.
"""

from __future__ import annotations

import os
import tempfile
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from autofuse.cli.gate import Gate
from autofuse.cli.profile_exports import CannotExport, append_to_github, export_file, file_names
from autofuse.display import profile_page, terminal
from autofuse.display.difference_terminal import of_both
from autofuse.results import atomic_files as files
from autofuse.results import quantities
from autofuse.results.comparison import Interval
from autofuse.results.conditions import ConditionOutcome, NotACondition, Quantity, condition
from autofuse.results.difference import Difference, of_profiles
from autofuse.results.profile import Profile
from autofuse.results.profile_parts import Timing
from autofuse.results.reading import NotOurs, read
from autofuse.results.temporary_files import remove_leftovers

DATA, PAGE, TRACE = "profile.json", "profile.html", "trace.json.gz"
DONE, FAILED = 0, 2
_NO_GATE = Gate()
_NOTHING = Profile("", Timing((), Interval(0.0, 0.0)), ())


class CannotWriteResults(ValueError):
    """Results cannot be written, or an option about them is invalid. The message says why."""


def say(sentence: str) -> None:
    """Prints a message about the run to standard error."""
    console = Console(stderr=True)
    console.print(f"autofuse: {sentence}", style="red", markup=False, highlight=False, soft_wrap=True)


def unwritable(folder: Path, names: tuple[str, ...] = (DATA, PAGE, TRACE)) -> str | None:
    """Returns why files of these names cannot be written to the folder; None if they can. Creates the folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        remove_leftovers(str(folder))
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        return f"the profile cannot be written to {folder} ({error.strerror or error}). Name a folder with --output."
    for path in (folder / name for name in names):
        if path.is_dir() or (path.exists() and not os.access(path, os.W_OK)):
            return f"{path} already exists and cannot be replaced. Name another folder with --output."
    return None


def put(path: Path, text: str) -> None:
    """Writes a file, or replaces an existing one. If it raises OSError, the existing file is unchanged."""
    files.put(str(path), text.encode("utf-8", errors="backslashreplace"))


@dataclass(frozen=True)
class Results:
    """The place of results. Each process (`rank`) of a job writes its own files, and only the first one prints."""

    folder: Path
    format: str
    rank: int = 0
    gate: Gate = _NO_GATE
    baseline: Profile | None = None
    anyway: bool = False
    exports: tuple[str, ...] = ()
    source: Path | None = None  # the trace that was read; None for a trace of this process

    @classmethod
    def of(cls, options: Namespace, rank: int = 0) -> Results:
        """Returns the place that the options name.

        Raises CannotWriteResults if nothing can be written there, or if the baseline or a condition is invalid.
        """
        try:
            gate = Gate(tuple(condition(text) for text in options.fail_if), options.strict)
            gate.outcomes(quantities.of_profile(_NOTHING))  # raises an error for an unknown quantity
            baseline = _profile(options.baseline) if options.baseline else None
        except (NotACondition, NotOurs) as error:
            raise CannotWriteResults(str(error)) from error
        results = cls(
            options.output, options.format, rank, gate, baseline, options.anyway, tuple(dict.fromkeys(options.export))
        )
        names = (DATA, PAGE, TRACE, *file_names(results.exports))
        if trouble := unwritable(results.folder, tuple(map(results.name, names))):
            raise CannotWriteResults(trouble)
        return results

    def name(self, file: str) -> str:
        """Returns the file's name for this process: profile.json, or profile.rank1.json for the process numbered 1."""
        stem, _, ending = file.partition(".")
        return f"{stem}.rank{self.rank}.{ending}" if self.rank else file

    def path(self, file: str) -> Path:
        """Returns the path of the file of that name."""
        return self.folder / self.name(file)

    def finish(self, profile: Profile) -> int:
        """Writes the profile and its page, and shows it on stdout. Returns the exit code."""
        data = profile.to_json() + "\n"
        try:
            put(self.path(DATA), data)
            put(self.path(PAGE), profile_page.html(profile))
        except OSError as error:
            say(f"the profile cannot be written to {self.folder}: {error.strerror or error}.")
            return FAILED
        if self.rank:
            return DONE
        try:
            known, difference = self._compare_with_baseline(profile)
            outcomes = self.gate.outcomes(known)
        except NotACondition as error:  # a condition names a layer that the model does not have
            say(str(error))
            outcomes = None
        exports = self._write_exports(profile, outcomes or ())
        self._show(profile, data)
        if outcomes is None or exports:
            return FAILED
        self._show_difference(profile, difference)
        return self.gate.exit_code(outcomes, say)

    def _write_exports(self, profile: Profile, outcomes: Sequence[ConditionOutcome]) -> int:
        """Writes the files of --export. Returns how many could not be written."""
        failed = 0
        recorded = self.path(TRACE) if profile.trace_file else self.source
        for kind in self.exports:
            try:
                name, content = export_file(kind, profile, outcomes, self.gate.strict, recorded)
                files.put(str(self.path(name)), content)
                if kind == "github":
                    append_to_github(content.decode())
            except CannotExport as error:
                say(f"--export {kind}: {error}")
                failed += 1
            except OSError as error:
                say(f"--export {kind}: the file cannot be written: {error.strerror or error}.")
                failed += 1
        return failed

    def _show(self, profile: Profile, data: str) -> None:
        console = terminal.stdout()
        if self.format == "json":
            console.file.write(data)
            return
        console.print(profile)
        names = (DATA, PAGE, *((TRACE,) if profile.trace_file else ()), *file_names(self.exports))
        written = ", ".join(str(self.path(name)) for name in names if self.path(name).is_file())
        console.print(f"Written: {written}", markup=False, highlight=False, soft_wrap=True)

    def _compare_with_baseline(self, profile: Profile) -> tuple[Mapping[str, Quantity], Difference | None]:
        """Returns the quantities that conditions may name, and the difference from the baseline if there is one."""
        if self.baseline is None:
            return quantities.of_profile(profile), None
        difference = of_profiles(self.baseline, profile, anyway=self.anyway)
        return quantities.of_both(self.baseline, profile, difference.ratio), difference

    def _show_difference(self, profile: Profile, difference: Difference | None) -> None:
        if self.baseline is None or difference is None:
            return
        if self.format == "text":
            console = terminal.stdout()
            console.print()
            console.print(of_both(self.baseline, profile, difference))
        else:
            say(f"{difference.summary}. {difference.reason}")


def _profile(path: Path) -> Profile:
    """Returns the baseline. Raises NotOurs if the file contains no profile."""
    found = read(path)
    if not isinstance(found, Profile):
        raise NotOurs(f"{path} holds a comparison, but --baseline needs a profile.json that `autofuse profile` wrote.")
    return found
