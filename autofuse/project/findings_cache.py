"""A cache of findings in the user's cache folder. Its keys contain everything that the findings depend on.

The key of a file contains:

- its text and its path,
- the configuration, the rules and the options of the run,
- the code of autofuse and the version of Python.

If the check of a file looks up other files, the key also contains the text of every file of the run, and the state of
every path outside of the run where the check looked for a file. This key changes more often than necessary, but it
never misses a change.

If a file changes during the run, nothing is stored. The findings of a file with an error are never stored, even if the
error comes from a rule. This module imports neither rules nor syntax trees.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from autofuse.project.config import FileSettings
from autofuse.project.file_discovery import Problem, SourceFile
from autofuse.project.file_states import (
    FileState,
    are_settled,
    are_unchanged,
    digest_own_code,
    digest_paths,
    read_file_state,
)
from autofuse.results.cache_folder import folder
from autofuse.results.entries import Entries, digest
from autofuse.results.findings import Finding
from autofuse.source.capture.file_lookups import FILE_LOOKUPS

FORMAT = 1
_VERSIONS = 4  # entries that are kept for one file, for example for several branches of a repository


@dataclass(frozen=True)
class FileFindings:
    """The findings in one file.

    Attributes:
        path: The path of the file.
        findings: The findings in the order of the text.
        editable: The indexes of the findings that have an edit.
        problems: What could not be read in the file.
    """

    path: str
    findings: tuple[Finding, ...]
    editable: frozenset[int] = frozenset()
    problems: tuple[Problem, ...] = ()

    def edits(self, unsafe: bool) -> bool:
        """Whether `autofuse rewrite` edits the file. `unsafe` includes unsafe edits."""
        statuses = ("safe", "unsafe") if unsafe else ("safe",)
        return any(self.findings[i].status in statuses for i in self.editable)


@dataclass(frozen=True)
class NewFindings:
    """The findings of a file that was just checked.

    Attributes:
        findings: The findings.
        is_independent: Whether the check looked up no other file.
        paths: The paths where the check looked for other files.
    """

    findings: FileFindings
    is_independent: bool
    paths: tuple[str, ...]


def open_cache() -> Entries | None:
    """Return the cache of findings; None if the user has no cache folder."""
    parent = folder()
    return None if parent is None else Entries(parent / "files")


@dataclass
class FindingsCache:
    """The findings of earlier runs that are valid for this run.

    Attributes:
        files: The files of the run.
        options: The options of the command line that select rules and the target.
        rules: A digest of the user's own rules, for each settings.
        entries: The cache on the disk.
        start_time: The start of the run, in nanoseconds.
        known: The valid findings of earlier runs, by path.
        needs_parsing: The files that can have findings.
    """

    files: Sequence[SourceFile]
    options: tuple[object, ...]
    rules: Mapping[FileSettings, str]
    entries: Entries
    start_time: int = field(default_factory=time.time_ns)
    known: dict[str, FileFindings] = field(default_factory=dict)
    needs_parsing: list[FileState] = field(default_factory=list)
    _states: list[FileState] = field(default_factory=list)
    _new: list[tuple[FileState, NewFindings]] = field(default_factory=list)
    _other_paths: dict[str, str] = field(default_factory=dict)  # paths outside of the run, and digests of their files
    _paths_unchanged: bool = False
    _project_key: str = ""  # a digest of everything that a dependent file can depend on

    def __post_init__(self) -> None:
        self._states = [read_file_state(f) for f in self.files]
        for state in self._states:
            if state.needs_parsing:
                self.needs_parsing.append(state)
            else:
                self.known[state.file.path] = FileFindings(state.file.path, ())
        self._run_key = digest(FORMAT, digest_own_code(), os.getcwd(), self.options)
        texts = [(s.file.path, s.text) for s in self._states] if self.needs_parsing else []
        self._texts_key = digest(self._run_key, texts)
        self._other_paths = self._check_other_paths(self.entries.get(f"w-{self._texts_key}").get("places", {}))
        self._by_path = {s.file.path: s for s in self.needs_parsing}
        self._look_up_findings()

    def keep(self, file: SourceFile, new: NewFindings) -> None:
        """Remember new findings for `write`. Files with errors are left out."""
        state = self._by_path.get(file.path)
        if state is not None and state.text and not any(p.error for p in new.findings.problems):
            self._new.append((state, new))
        self._other_paths.update(dict.fromkeys(new.paths, ""))

    def write(self) -> None:
        """Write the new findings to the cache, unless a file changed during the run."""
        paths = list(dict.fromkeys((*self._other_paths, *FILE_LOOKUPS.paths)))
        if not are_unchanged(self._states) or not are_settled(paths, self.start_time):
            return
        if not any(self.rules.values()):
            for settings in self.rules:
                self.entries.put(_settings_key(settings, self.options), {"holds": True})
        if not self._new:
            return
        self._other_paths = digest_paths(paths)
        self._project_key = self._digest_project(self._other_paths)
        self.entries.put(f"w-{self._texts_key}", {"places": self._other_paths})
        packs: dict[str, list[tuple[FileState, NewFindings]]] = defaultdict(list)
        for state, new in self._new:
            packs[self._pack_name(state)].append((state, new))
        for name, additions in packs.items():
            pack = self.entries.get(name)
            for state, new in additions:
                pack |= self._to_entry(state, new)
            self.entries.put(name, _keep_latest(pack))
        self.entries.trim()

    def _check_other_paths(self, paths: object) -> dict[str, str]:
        """Compare the recorded paths outside of the run with the disk. Return them if nothing changed, else {}."""
        if not isinstance(paths, dict):
            return {}
        self._paths_unchanged = digest_paths(list(paths)) == paths
        self._project_key = self._digest_project(paths)
        return paths if self._paths_unchanged else {}

    def _digest_project(self, paths: Mapping[str, str]) -> str:
        return digest(self._texts_key, sorted(paths.items()))

    def _look_up_findings(self) -> None:
        packs: dict[str, dict[str, Any]] = {}
        for state in self.needs_parsing:
            name = self._pack_name(state)
            if name not in packs:
                packs[name] = self.entries.get(name)
            entry = packs[name].get(self._independent_key(state)) or (
                self._paths_unchanged and packs[name].get(self._dependent_key(state))
            )
            findings = _from_entry(state.file.path, entry) if entry and state.text else None
            if findings is not None:
                self.known[state.file.path] = findings

    def _pack_name(self, state: FileState) -> str:
        """Return the name of the pack of a file. The files of one folder share a pack."""
        return f"d-{digest(os.getcwd(), os.path.dirname(state.file.path))}"

    def _independent_key(self, state: FileState) -> str:
        file = state.file
        return digest(self._run_key, file.path, file.named, file.settings, self.rules[file.settings], state.text)

    def _dependent_key(self, state: FileState) -> str:
        return digest(self._independent_key(state), self._project_key)

    def _to_entry(self, state: FileState, new: NewFindings) -> dict[str, Any]:
        findings = new.findings
        return {
            self._independent_key(state) if new.is_independent else self._dependent_key(state): {
                "file": Path(findings.path).name,
                "findings": [asdict(f) for f in findings.findings],
                "editable": sorted(findings.editable),
                "troubles": [p.message for p in findings.problems],
            }
        }


def _keep_latest(pack: dict[str, Any]) -> dict[str, Any]:
    """Return the last few entries of each file, in the order in which they were written."""
    kept: dict[str, Any] = {}
    count: dict[str, int] = defaultdict(int)
    for key, entry in reversed(pack.items()):
        count[entry["file"]] += 1
        if count[entry["file"]] <= _VERSIONS:
            kept[key] = entry
    return dict(reversed(kept.items()))


def _from_entry(path: str, entry: Mapping[str, Any]) -> FileFindings | None:
    try:
        return FileFindings(
            path,
            tuple(Finding(**f) for f in entry["findings"]),
            frozenset(entry["editable"]),
            tuple(Problem(message, error=False) for message in entry["troubles"]),
        )
    except (TypeError, KeyError):
        return None


def are_settings_known_valid(entries: Entries, settings: Iterable[FileSettings], options: tuple[object, ...]) -> bool:
    """Whether an earlier run accepted these settings, and whether they name no rules of the user."""
    return all(not s.rules and entries.get(_settings_key(s, options)) for s in settings)


def _settings_key(settings: FileSettings, options: tuple[object, ...]) -> str:
    return f"s-{digest(FORMAT, digest_own_code(), settings, options)}"
