"""Rewrites a file with autofuse, and checks the promises: no crash, valid Python, no lost comment, a stable second run.

It does not import torch.
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
    """The result for one file. `broken` has a sentence for each broken promise."""

    file: Path
    findings: tuple[Finding, ...] = ()
    after: bytes | None = None  # the rewritten text, if the file was rewritten
    edits: int = 0
    refused: tuple[str, ...] = ()
    unread: str = ""  # why the file could not be parsed, such as syntax of another Python version
    broken: tuple[str, ...] = field(default=())


def check_files(files: list[Path]) -> list[Looked]:
    """Rewrite every file that mentions torch, with one process for each core."""
    run, settings = RewriteRun(debug=True), FileSettings(Path("/"))
    run.rules(settings)
    return list(map_in_processes(lambda file: _check_file(run, SourceFile(str(file), settings, named=False)), files))


def _check_file(run: RewriteRun, file: SourceFile) -> Looked:
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
    return Looked(
        path, findings, result.after, result.edits, refused, broken=tuple(_broken_promises(run, file, result))
    )


def _broken_promises(run: RewriteRun, file: SourceFile, result: RewriteResult) -> list[str]:
    """The promises that a rewritten text breaks."""
    try:
        compile(result.after, file.path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        return [f"the rewritten file does not compile: {error}"]
    broken = []
    lost = _comments(result.before) - _comments(result.after)
    lines = {line.partition("#")[0].strip() for line in result.after.decode(errors="replace").splitlines()}
    # A comment may disappear together with the code that it describes.
    lost = Counter({c: n for c, n in lost.items() if _code_before(c, result.before) & lines})
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
    """The code before a comment on the same line, for each line with this comment that has code."""
    lines = source.decode(errors="replace").splitlines()
    return {line.partition("#")[0].strip() for line in lines if comment in line} - {""}


def _comments(source: bytes) -> Counter[str]:
    """The comments of a text, without instructions to tools about a line that may be gone."""
    tokens = tokenize.tokenize(io.BytesIO(source).readline)
    return Counter(t.string.strip() for t in tokens if t.type == tokenize.COMMENT and not is_pragma(t.string))
