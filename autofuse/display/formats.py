"""Findings for machines: CI, code hosts, editors. The formats have the names that ruff uses.

Each format is a function from findings to text. Prints nothing and opens no file.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from html import escape
from itertools import groupby

from autofuse.display.findings import annotation_of, line_of, plural
from autofuse.display.sarif import sarif
from autofuse.results.findings import FIELDS, Finding, as_json
from autofuse.results.fixes import LineChange
from autofuse.results.visible_text import harmless, visible

Fixes = Mapping[Finding, tuple[LineChange, ...]]
TEXT = ("text", "concise", "full")  # these are printed during the run, the other formats at its end


def message_of(finding: Finding) -> str:
    """The message with the reason and the advice, in one line."""
    reason = f" ({finding.reason})" if finding.reason and finding.reason not in finding.message else ""
    return visible(finding.message + reason + (f"; {finding.advice}" if finding.advice else ""))


def _format_json(found: Sequence[Finding], fixes: Fixes) -> str:
    return json.dumps(as_json(found), indent=2) + "\n"


def _format_json_lines(found: Sequence[Finding], fixes: Fixes) -> str:
    return "".join(json.dumps({f: getattr(one, f) for f in (*FIELDS, "cell")}) + "\n" for one in found)


def _format_github(found: Sequence[Finding], fixes: Fixes) -> str:
    return "".join(map(annotation_of, found))


def _format_grouped(found: Sequence[Finding], fixes: Fixes) -> str:
    out = ""
    for path, here in groupby(found, key=lambda f: f.path):
        out += f"{visible(path)}:\n"
        out += "".join("  " + _format_text(f).removeprefix(visible(path) + ":") for f in here) + "\n"
    return out


def _format_text(finding: Finding) -> str:
    return "".join(text for text, _ in line_of(finding))


def _format_pylint(found: Sequence[Finding], fixes: Fixes) -> str:
    return "".join(f"{visible(f.path)}:{f.line}: [{f.code}] {message_of(f)}\n" for f in found)


def _format_azure(found: Sequence[Finding], fixes: Fixes) -> str:
    head = "##vso[task.logissue type=warning;sourcepath={};linenumber={};columnnumber={};code={};]{}\n"
    return "".join(head.format(visible(f.path), f.line, f.column, f.code, harmless(message_of(f))) for f in found)


def _format_gitlab(found: Sequence[Finding], fixes: Fixes) -> str:
    """A Code Quality report for GitLab."""
    seen: Counter[str] = Counter()
    issues = []
    for f in found:
        about = f"{f.path}\0{f.code}\0{f.symbol}\0{f.message}"
        seen[about] += 1
        issues.append(
            {
                "description": f"{f.code}: {message_of(f)}",
                "check_name": f.code,
                "fingerprint": sha256(f"{about}\0{seen[about]}".encode("utf-8", "surrogatepass")).hexdigest(),
                "severity": "minor" if f.status in ("safe", "unsafe") else "info",
                "location": {"path": f.path, "lines": {"begin": f.line, "end": f.end_line}},
            }
        )
    return json.dumps(issues, indent=2) + "\n"


def _format_junit(found: Sequence[Finding], fixes: Fixes) -> str:
    suites = []
    for path, group in groupby(found, key=lambda f: f.path):
        here = list(group)
        cases = "".join(_junit_case(f) for f in here)
        suites.append(
            f'  <testsuite name={_attribute(visible(path))} tests="{len(here)}" failures="{len(here)}" errors="0">\n'
            f"{cases}  </testsuite>\n"
        )
    counts = f'tests="{len(found)}" failures="{len(found)}" errors="0"'
    head = f'<?xml version="1.0" encoding="UTF-8"?>\n<testsuites name="autofuse" {counts}>\n'
    return head + "".join(suites) + "</testsuites>\n"


def _junit_case(f: Finding) -> str:
    said = escape(_for_xml(f"{f.place}:{f.column}: {message_of(f)}"), quote=False)
    return (
        f"    <testcase name={_attribute(_for_xml(f'{f.code} {f.symbol}'))} classname={_attribute(visible(f.path))} "
        f'line="{f.line}" column="{f.column}">\n'
        f"      <failure message={_attribute(_for_xml(message_of(f)))}>{said}</failure>\n    </testcase>\n"
    )


def _attribute(text: str) -> str:
    """A quoted value of an XML attribute. Line breaks and tabs are written as references, or readers drop them."""
    escaped = escape(text)
    for character in "\n\r\t":
        escaped = escaped.replace(character, f"&#{ord(character)};")
    return f'"{escaped}"'


def _for_xml(text: str) -> str:
    """The text without characters that XML cannot contain."""
    return "".join(c if c in "\t\n" or 0x20 <= ord(c) < 0xD800 or 0xDFFF < ord(c) < 0xFFFE else "?" for c in text)


def _format_rdjson(found: Sequence[Finding], fixes: Fixes) -> str:
    """The format of reviewdog."""
    diagnostics = [
        {
            "message": message_of(f),
            "code": {"value": f.code},
            "severity": "WARNING" if f.status in ("safe", "unsafe") else "INFO",
            "location": {
                "path": f.path,
                "range": {"start": {"line": f.line, "column": f.column}, "end": {"line": f.end_line}},
            },
        }
        for f in found
    ]
    return json.dumps({"source": {"name": "autofuse"}, "diagnostics": diagnostics}, indent=2) + "\n"


def _format_sarif(found: Sequence[Finding], fixes: Fixes) -> str:
    return json.dumps(sarif(found, fixes, message_of), indent=2) + "\n"


FORMATS: dict[str, Callable[[Sequence[Finding], Fixes], str]] = {
    "azure": _format_azure,
    "github": _format_github,
    "gitlab": _format_gitlab,
    "grouped": _format_grouped,
    "json": _format_json,
    "json-lines": _format_json_lines,
    "junit": _format_junit,
    "pylint": _format_pylint,
    "rdjson": _format_rdjson,
    "sarif": _format_sarif,
}
NAMES = (*TEXT, *FORMATS)


def statistics(found: Iterable[Finding]) -> list[tuple[str, str, int]]:
    """The number of findings of each rule and status: code, status, count; the largest first."""
    counts = Counter((f.code, f.status) for f in found)
    return [(code, status, n) for (code, status), n in sorted(counts.items(), key=lambda c: (-c[1], c[0]))]


def statistics_text(found: Sequence[Finding]) -> str:
    """A line for each rule and status."""
    rows = statistics(found)
    rules = {f.code: f.rule for f in found}
    width = max((len(str(n)) for *_, n in rows), default=0)
    lines = (f"{n:>{width}}  {code}  [{status}]  {rules[code]}\n" for code, status, n in rows)
    files = len({f.path for f in found})
    return "".join(lines) + (f"{plural(len(found), 'finding')} in {plural(files, 'file')}\n" if rows else "")


def statistics_json(found: Sequence[Finding]) -> str:
    """The counts of each rule and status, as a JSON list of objects."""
    return json.dumps([{"code": c, "status": s, "count": n} for c, s, n in statistics(found)], indent=2) + "\n"
