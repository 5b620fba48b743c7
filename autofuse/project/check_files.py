"""Checks files in parallel. The findings cache calls this module only for files that it does not have.

This module imports the rules and everything that is needed to parse code. A run that finds all files in the cache
never imports it, which makes that run faster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from autofuse.loading.registry import announced_rules
from autofuse.project.config import FileSettings
from autofuse.project.file_discovery import Problem, SourceFile
from autofuse.project.file_states import digest_rule_sources
from autofuse.project.findings_cache import FileFindings, NewFindings
from autofuse.project.run import CheckedFile, RewriteRun
from autofuse.project.workers import map_in_processes
from autofuse.source.capture.file_lookups import FILE_LOOKUPS
from autofuse.source.capture.parsed_files import PARSED

_Done = TypeVar("_Done")


def check_files(
    run: RewriteRun, files: Sequence[SourceFile], text: bytes | None, work: Callable[[CheckedFile, SourceFile], _Done]
) -> Iterator[tuple[NewFindings, _Done] | Problem]:
    """Check each file and call `work` on the result.

    Args:
        run: The settings of the run.
        files: The files to check.
        text: The text of the only file, if the text does not come from the disk.
        work: Called with each checked file.

    Yields:
        The findings and the result of `work`, or the problem that prevents the check, in the order of `files`.
    """

    def check_one(file: SourceFile) -> tuple[NewFindings, _Done] | Problem:
        lookups, known_paths = FILE_LOOKUPS.count, len(FILE_LOOKUPS.paths)
        checked = run.check(file) if text is None else run.check_text(text, file)
        if isinstance(checked, Problem):
            return checked
        is_independent, paths = FILE_LOOKUPS.count == lookups, tuple(FILE_LOOKUPS.paths)[known_paths:]
        return NewFindings(file_findings(checked), is_independent, paths), work(checked, file)

    def prepare_processes(processes: int) -> None:
        PARSED.divide_limit(processes)
        if run.files is not None:
            run.files.scan_bytes()

    return map_in_processes(check_one, files, prepare_processes)


def file_findings(checked: CheckedFile) -> FileFindings:
    """Return the findings of a checked file, without the edits."""
    editable = frozenset(i for i, p in enumerate(checked.proposals) if p.edit is not None)
    return FileFindings(checked.path, tuple(p.finding for p in checked.proposals), editable, checked.problems)


def digest_user_rules(run: RewriteRun, settings: Sequence[FileSettings], before: set[str]) -> dict[FileSettings, str]:
    """Return a digest of the rules that autofuse does not ship, for each of `settings`.

    Args:
        run: The run. It decides which rules may be executed.
        settings: The settings of all files of the run.
        before: The names of the modules that were imported before the rules.

    Returns:
        A digest for each of `settings`; "" if there are only rules that autofuse ships.
    """
    folders = {s: s.rules if run.permission.allows(s) else () for s in settings}
    if not announced_rules() and not any(folders.values()):
        return dict.fromkeys(settings, "")
    digest = digest_rule_sources([f for rule_folders in folders.values() for f in rule_folders], before)
    return dict.fromkeys(settings, digest)
