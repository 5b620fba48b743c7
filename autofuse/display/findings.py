"""Findings and diffs of the codemod: text with styles, JSON, and CI annotations.

Text is a list of (text, style) pieces, so that it is the same without colours. Prints nothing and opens no file.
"""

from __future__ import annotations

import difflib
import io
import tokenize
from collections import Counter
from collections.abc import Iterator, Sequence

from autofuse.results.findings import Finding
from autofuse.results.visible_text import harmless, visible

StyledText = tuple[str, str]  # text, and a rich style or ""

_STYLES = {"safe": "green", "unsafe": "yellow", "report": "cyan", "declined": "dim"}
_DIFF_STYLES = (("---", "bold"), ("+++", "bold"), ("@@", "cyan"), ("-", "red"), ("+", "green"))


def line_of(finding: Finding) -> list[StyledText]:
    """`model.py:12:9: AF101 [safe] Block.forward: the finding (the reason for its status); what to change`."""
    reason = finding.reason if finding.reason not in finding.message else ""
    return [
        (name := visible(finding.path), "bold"),
        (f"{finding.place.removeprefix(name)}:{finding.column}: ", ""),
        (finding.code, "bold red"),
        (f" [{finding.status}] ", _STYLES.get(finding.status, "")),
        (visible(f"{finding.symbol}: {finding.message}"), ""),
        (visible(f" ({reason})") if reason else "", "dim"),
        (visible(f" [mask: {finding.mask}]") if finding.mask else "", "dim"),
        (visible(f"; {finding.advice}") if finding.advice else "", ""),
        ("\n", ""),
    ]


def annotation_of(finding: Finding) -> str:
    """A workflow command that shows the finding at its line in a pull request on GitHub."""
    level = "warning" if finding.status in ("safe", "unsafe") else "notice"
    place = f"file={_property(finding.path)}"
    if finding.cell is None:  # the lines of a notebook's cell are not those of its file
        place += f",line={finding.line},endLine={finding.end_line},col={finding.column}"
    reason = f" ({finding.reason})" if finding.reason and finding.reason not in finding.message else ""
    reason += f"; {finding.advice}" if finding.advice else ""
    title = _property(f"{finding.code} {finding.rule}")
    within = f"cell {finding.cell}, line {finding.line}: " if finding.cell is not None else ""
    return f"::{level} {place},title={title}::{_escape(within + finding.message + reason)}\n"


def _escape(text: str) -> str:
    return harmless(text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A"))


def _property(text: str) -> str:
    return _escape(text).replace(":", "%3A").replace(",", "%2C")


def describe_counts(findings: Sequence[Finding]) -> str:
    """`3 findings: 2 safe, 1 unsafe`."""
    if not findings:
        return "nothing found"
    statuses = Counter(f.status for f in findings)
    parts = ", ".join(f"{statuses[s]} {s}" for s in _STYLES if statuses[s])
    return f"{plural(len(findings), 'finding')}: {parts}"


def plural(count: int, noun: str) -> str:
    """`1 edit`, `2 edits`."""
    return f"{count} {noun}" + ("" if count == 1 else "s")


def diff_of(path: str, before: bytes, after: bytes) -> Iterator[StyledText]:
    """A unified diff that `patch -p0` applies."""
    old, new = _lines(before), _lines(after)
    name = visible(path)
    for line in difflib.unified_diff(old, new, name, name):
        style = next((s for start, s in _DIFF_STYLES if line.startswith(start)), "")
        yield line, style
        if not line.endswith("\n"):
            yield "\n\\ No newline at end of file\n", "dim"


def _lines(source: bytes) -> list[str]:
    """The lines of the file. str.splitlines would also split at form feeds and other separators."""
    encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
    text = source.decode("utf-8" if encoding == "utf-8-sig" else encoding)
    parts = text.split("\n")
    return [p + "\n" for p in parts[:-1]] + ([parts[-1]] if parts[-1] else [])
