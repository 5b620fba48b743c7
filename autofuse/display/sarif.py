"""Findings as SARIF 2.1.0, with the edits as fixes, for GitHub's code scanning and other tools.

Source: https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from autofuse.results.distribution import own_version
from autofuse.results.findings import Finding
from autofuse.results.fixes import LineChange

_LEVELS = {"safe": "warning", "unsafe": "warning", "report": "note", "declined": "none"}
_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


def sarif(
    found: Sequence[Finding], fixes: Mapping[Finding, tuple[LineChange, ...]], message_of: Callable[[Finding], str]
) -> dict[str, Any]:
    """One log with one run."""
    codes = sorted({f.code for f in found})
    names = {f.code: f.rule for f in reversed(found)}
    rules = [{"id": code, "name": names[code], "shortDescription": {"text": names[code]}} for code in codes]
    driver: dict[str, Any] = {"name": "autofuse", "version": own_version(), "rules": rules}
    results = [_result(f, codes.index(f.code), fixes.get(f, ()), message_of(f)) for f in found]
    columns = "unicodeCodePoints"
    return {
        "$schema": _SCHEMA,
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "columnKind": columns, "results": results}],
    }


def _result(f: Finding, index: int, made: Sequence[LineChange], said: str) -> dict[str, Any]:
    artifact = {"uri": _uri(f.path)}
    # The lines of a notebook's cell are not those of its file.
    region = {} if f.cell is not None else {"region": {"startLine": f.line, "endLine": f.end_line}}
    about = f"{f.path}\0{f.code}\0{f.symbol}\0{f.message}".encode("utf-8", "surrogatepass")
    result: dict[str, Any] = {
        "ruleId": f.code,
        "ruleIndex": index,
        "level": _LEVELS[f.status],
        "message": {"text": said if f.cell is None else f"cell {f.cell}, line {f.line}: {said}"},
        "locations": [
            {
                "physicalLocation": {"artifactLocation": artifact, **region},
                "logicalLocations": [{"fullyQualifiedName": f.symbol, "kind": "function"}],
            }
        ],
        "partialFingerprints": {"autofuse/v1": sha256(about).hexdigest()},
        "properties": {"status": f.status},
    }
    if made:
        changes = [{"artifactLocation": artifact, "replacements": [_replacement(r) for r in made]}]
        result["fixes"] = [{"description": {"text": f"{f.status}: {f.message}"}, "artifactChanges": changes}]
    return result


def _replacement(r: LineChange) -> dict[str, Any]:
    region = {"startLine": r.first, "startColumn": 1, "endLine": r.end, "endColumn": 1}
    return {"deletedRegion": region, **({"insertedContent": {"text": r.text}} if r.text else {})}


def _uri(path: str) -> str:
    """The URI of a path: a relative path unchanged, an absolute path as a file URL."""
    pure = PurePath(path)
    text = quote(pure.as_posix().encode("utf-8", "surrogateescape"))
    return pure.as_uri() if pure.is_absolute() and text.isascii() and path.isascii() else text
