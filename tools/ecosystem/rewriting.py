"""One file through the door for files: what is found, and whether what is written holds what is promised.

Promised is: no crash, a text that compiles, no comment lost, nothing left to do in a second run. Knows no torch.
"""

from __future__ import annotations

import io
import tokenize
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from autofuse.project.config import FileSettings
from autofuse.project.file_discovery import Problem, SourceFile
from autofuse.project.run import CheckedFile, RewriteResult, RewriteRun
from autofuse.project.workers import map_in_processes
from autofuse.results.findings import Finding
from autofuse.source.write.leading_lines import is_pragma


@dataclass(frozen=True)
class Looked:
    """What became of one file. `broken` are sentences on promises that were not kept."""

    file: Path
    findings: tuple[Finding, ...] = ()
    after: bytes | None = None  # the rewritten text, where there is one
    edits: int = 0
    refused: tuple[str, ...] = ()
    unread: str = ""  # why the file could not be read: it is no Python of this version
    broken: tuple[str, ...] = field(default=())


def looked_at(files: list[Path]) -> list[Looked]:
    """Every file that mentions torch, by as many processes as there are cores."""
    run, settings = RewriteRun(debug=True), FileSettings(Path("/"))
    run.rules(settings)
    return list(map_in_processes(lambda file: _looked(run, SourceFile(str(file), settings, named=False)), files))


def _looked(run: RewriteRun, file: SourceFile) -> Looked:
    path = Path(file.path)
    warnings.simplefilter("ignore", SyntaxWarning)
    checked = run.check(file)
    if isinstance(checked, Problem):
        crashed = checked.message.startswith("internal error")
        return Looked(path, unread="" if crashed else checked.message, broken=(checked.message,) if crashed else ())
    findings = tuple(p.finding for p in checked.proposals)
    if not checked.proposals:
        return Looked(path)
    result = run.rewrite(checked, file, unsafe=True)
    if isinstance(result, Problem):
        return Looked(path, findings, broken=(result.message,))
    if not result.edits:
        return Looked(path, findings, refused=tuple(t.message for t in result.refused))
    refused = tuple(t.message for t in result.refused)
    return Looked(path, findings, result.after, result.edits, refused, broken=tuple(_broken(run, file, result)))


def _broken(run: RewriteRun, file: SourceFile, result: RewriteResult) -> list[str]:
    """The promises that a rewritten text does not keep."""
    try:
        compile(result.after, file.path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        return [f"the rewritten file does not compile: {error}"]
    broken = []
    lost = _comments(result.before) - _comments(result.after)
    lines = {line.partition("#")[0].strip() for line in result.after.decode(errors="replace").splitlines()}
    lost = Counter({c: n for c, n in lost.items() if _code_before(c, result.before) & lines})  # others went with it
    if lost:
        broken.append(f"comments are lost: {', '.join(sorted(lost))}")
    again = run.check_text(result.after, file)
    second = run.rewrite(again, file, unsafe=True) if isinstance(again, CheckedFile) else again
    if isinstance(second, Problem):
        broken.append(f"the rewritten file cannot be read: {second.message}")
    elif second.edits:
        broken.append(f"a second run makes {second.edits} more edits")
    return broken


def _code_before(comment: str, source: bytes) -> set[str]:
    """What stands before a comment on its lines; a comment on a line of its own goes with what it stands above."""
    lines = source.decode(errors="replace").splitlines()
    return {line.partition("#")[0].strip() for line in lines if comment in line} - {""}


def _comments(source: bytes) -> Counter[str]:
    """The comments of a text, but for those that speak to a tool about a line that may be gone."""
    tokens = tokenize.tokenize(io.BytesIO(source).readline)
    return Counter(t.string.strip() for t in tokens if t.type == tokenize.COMMENT and not is_pragma(t.string))
