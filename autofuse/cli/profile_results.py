"""What a command of profiles leaves behind: files, a summary on the terminal, an exit code. Runs nothing.

The exit code is 1 where a condition of --fail-if holds, and 2 where results cannot be written.

Files are replaced whole or not at all, and whether they can be written is asked before anything runs.
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
from autofuse.cli.profile_exports import CannotExport, append_to_github, exported, file_names
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
    """Results have nowhere to go, or what is to be done with them is not clear; the message says why."""


def say(sentence: str) -> None:
    """Something about the run, on standard error."""
    console = Console(stderr=True)
    console.print(f"autofuse: {sentence}", style="red", markup=False, highlight=False, soft_wrap=True)


def unwritable(folder: Path, names: tuple[str, ...] = (DATA, PAGE, TRACE)) -> str | None:
    """Why files of these names cannot be written there, in a sentence; None if they can. Makes the folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        remove_leftovers(str(folder))
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        return f"the profile cannot be written to {folder} ({error.strerror or error}). Name a folder with --output."
    for path in (folder / name for name in names):
        if path.is_dir() or (path.exists() and not os.access(path, os.W_OK)):
            return f"{path} is there already and cannot be replaced. Name another folder with --output."
    return None


def put(path: Path, text: str) -> None:
    """Write a file, or replace the one that is there. Raises OSError, and then the old one is untouched."""
    files.put(str(path), text.encode("utf-8", errors="backslashreplace"))


@dataclass(frozen=True)
class Results:
    """Where results go. rank: in a job of several processes each writes files of its own, and the first one prints."""

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
        """As the options say.

        Raises CannotWriteResults, before anything runs, where nothing can be written there, and where the baseline or a
        condition is not one.
        """
        try:
            gate = Gate(tuple(condition(text) for text in options.fail_if), options.strict)
            gate.outcomes(quantities.of_profile(_NOTHING))  # names what there is not, if a condition does
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
        """profile.json, and profile.rank1.json of the process numbered 1."""
        stem, _, ending = file.partition(".")
        return f"{stem}.rank{self.rank}.{ending}" if self.rank else file

    def path(self, file: str) -> Path:
        """Of the file of that name."""
        return self.folder / self.name(file)

    def finish(self, profile: Profile) -> int:
        """Write the profile and its page, and show it on stdout. Returns the exit code."""
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
            known, difference = self._judged(profile)
            outcomes = self.gate.outcomes(known)
        except NotACondition as error:  # a condition names a layer that the model does not have
            say(str(error))
            outcomes = None
        exports = self._exported(profile, outcomes or ())
        self._show(profile, data)
        if outcomes is None or exports:
            return FAILED
        self._show_difference(profile, difference)
        return self.gate.exit_code(outcomes, say)

    def _exported(self, profile: Profile, outcomes: Sequence[ConditionOutcome]) -> int:
        """Writes the files of --export. Returns how many could not be written."""
        failed = 0
        recorded = self.path(TRACE) if profile.trace_file else self.source
        for kind in self.exports:
            try:
                name, content = exported(kind, profile, outcomes, self.gate.strict, recorded)
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

    def _judged(self, profile: Profile) -> tuple[Mapping[str, Quantity], Difference | None]:
        """What conditions may name, and the difference from the baseline if there is one."""
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
    """The baseline. Raises NotOurs where there is no profile in the file."""
    found = read(path)
    if not isinstance(found, Profile):
        raise NotOurs(f"{path} holds a comparison, and --baseline wants a profile.json that `autofuse profile` wrote.")
    return found
