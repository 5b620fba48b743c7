"""Rewrites files in memory. It writes nothing."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from autofuse.project.config import Configuration
from autofuse.project.file_discovery import Problem, Project, SourceFile
from autofuse.project.run import CheckedFile, RewriteResult, RewriteRun
from autofuse.project.workers import map_in_processes
from autofuse.source.evidence.other_files import ProjectFiles


@dataclass(frozen=True)
class RewrittenFile:
    """One changed file, and the messages of its edits."""

    path: str
    before: bytes
    after: bytes
    messages: tuple[str, ...]


def rewritten_files(
    paths: Sequence[str], only: Collection[str], unsafe: bool, alone: bool = False
) -> Iterator[RewrittenFile]:
    """Yield the files that autofuse changes.

    Args:
        paths: the files and folders of the project.
        only: the files to rewrite; empty: all.
        unsafe: whether to make unsafe edits too.
        alone: whether to look for evidence only in the rewritten files.
    """
    project = Project(Configuration())
    files = [f for f in project.files(paths) if isinstance(f, SourceFile)]
    run = RewriteRun()
    wanted = [f for f in files if not only or f.path in only or os.path.abspath(f.path) in only]
    run.files = ProjectFiles(tuple(f.path for f in (wanted if alone else files)))
    for settings in dict.fromkeys(f.settings for f in wanted):
        run.rules(settings)

    def work(file: SourceFile) -> RewrittenFile | None:
        checked = run.check(file)
        result = run.rewrite(checked, file, unsafe) if isinstance(checked, CheckedFile) else None
        if not isinstance(result, RewriteResult) or not result.edits or isinstance(checked, Problem):
            return None
        messages = tuple(p.finding.message for p in checked.proposals)
        return RewrittenFile(file.path, result.before, result.after, messages)

    yield from filter(None, map_in_processes(work, wanted))
