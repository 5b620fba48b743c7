"""Files as they are and as autofuse would leave them. Writes nothing."""

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
    """One file that changed, and what was said of its edits."""

    path: str
    before: bytes
    after: bytes
    messages: tuple[str, ...]


def rewritten_files(
    paths: Sequence[str], only: Collection[str], unsafe: bool, alone: bool = False
) -> Iterator[RewrittenFile]:
    """The files under `paths` that autofuse changes; with `only`, no others are read for edits.

    `alone`: the files that are edited are the whole project, so that no others are looked through for evidence.
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
