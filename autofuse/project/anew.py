"""Reads files anew, on all cores: what earlier runs know nothing of. Loads rules, and all that reading needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from autofuse.loading.registry import announced_rules
from autofuse.project.config import FileSettings
from autofuse.project.file_discovery import SourceFile, Trouble
from autofuse.project.memory import Answer, FileFindings
from autofuse.project.run import Checked, RewriteRun
from autofuse.project.survey import of_rules
from autofuse.project.workers import each
from autofuse.source.capture.looked_at import LOOKED_AT
from autofuse.source.capture.parsed_files import PARSED

_Done = TypeVar("_Done")


def answers(
    run: RewriteRun, files: Sequence[SourceFile], text: bytes | None, work: Callable[[Checked, SourceFile], _Done]
) -> Iterator[tuple[Answer, _Done] | Trouble]:
    """What is found in each file, in their order, and what `work` makes of that. `text` stands for the only file."""

    def done(file: SourceFile) -> tuple[Answer, _Done] | Trouble:
        questions, places = LOOKED_AT.questions, len(LOOKED_AT.places)
        checked = run.check(file) if text is None else run.check_text(text, file)
        if isinstance(checked, Trouble):
            return checked
        alone, looked_at = LOOKED_AT.questions == questions, tuple(LOOKED_AT.places)[places:]
        return Answer(found(checked), alone, looked_at), work(checked, file)

    def begin(processes: int) -> None:
        PARSED.share(processes)
        if run.files is not None:
            run.files.look_over()

    return each(done, files, begin)


def found(checked: Checked) -> FileFindings:
    """What was found in a file, without the edits."""
    editable = frozenset(i for i, p in enumerate(checked.proposals) if p.edit is not None)
    return FileFindings(checked.path, tuple(p.finding for p in checked.proposals), editable, checked.troubles)


def digest_of_rules(run: RewriteRun, settings: Sequence[FileSettings], before: set[str]) -> dict[FileSettings, str]:
    """For each settings: what their rules come from, beside autofuse's own; "" where there are no others."""
    folders = {s: s.rules if run.permission.allows(s) else () for s in settings}
    if not announced_rules() and not any(folders.values()):
        return dict.fromkeys(settings, "")
    every = of_rules([f for own in folders.values() for f in own], before)
    return dict.fromkeys(settings, every)
