"""Records the findings of a project in a baseline file, so that only new findings fail a check.

A finding is identified by its file, its code, its function and the text of its lines, but not by its line number. It is
still recognized after lines are added above it. This module prints nothing.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from autofuse.project.config import ConfigError
from autofuse.results.atomic_files import put
from autofuse.results.findings import Finding
from autofuse.results.regular_files import read
from autofuse.results.visible_text import visible

VERSION = 1
_Key = tuple[str, str, str, str]  # file, code, symbol, digest of the text


@dataclass(frozen=True)
class BaselineComparison:
    """The difference between findings and a baseline.

    Attributes:
        new: The findings that the baseline does not contain.
        known: The number of findings that it contains.
        gone: The number of its entries that were not found.
    """

    new: tuple[Finding, ...]
    known: int
    gone: int


def compare_with_baseline(findings: Sequence[Finding], file: str) -> BaselineComparison:
    """Compare findings with the baseline in `file`. Raises ConfigError if the baseline cannot be read."""
    left, new = _read_baseline(file), list[Finding]()
    folder = _folder_of(file)
    for finding, key in zip(findings, _keys(findings, folder), strict=True):
        if left[key] > 0:
            left[key] -= 1
        else:
            new.append(finding)
    return BaselineComparison(tuple(new), len(findings) - len(new), sum(left.values()))


def write_baseline(findings: Sequence[Finding], file: str) -> None:
    """Write findings to the baseline `file`. Raises ConfigError if it cannot be written."""
    counts = Counter(_keys(findings, _folder_of(file)))
    entries = [
        {"path": path, "code": code, "symbol": symbol, "text": text, "count": count}
        for (path, code, symbol, text), count in sorted(counts.items())
    ]
    try:
        put(file, (json.dumps({"version": VERSION, "findings": entries}, indent=1) + "\n").encode())
    except OSError as error:
        raise ConfigError(f"{visible(file)}: the baseline cannot be written: {error.strerror or error}.") from error


def _read_baseline(file: str) -> Counter[_Key]:
    try:
        content = json.loads(read(file))
        if content["version"] != VERSION:
            raise ConfigError(
                f"{visible(file)}: this baseline has another version. Record it again with --write-baseline."
            )
        counts: Counter[_Key] = Counter()
        for entry in content["findings"]:
            counts[entry["path"], entry["code"], entry["symbol"], entry["text"]] += int(entry["count"])
        return counts
    except OSError as error:
        raise ConfigError(
            f"{visible(file)}: the baseline cannot be read: {error.strerror or error}. Record it with --write-baseline."
        ) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(f"{visible(file)}: this is not a baseline. Record one with --write-baseline.") from error


def _keys(findings: Iterable[Finding], folder: str) -> list[_Key]:
    lines: dict[str, tuple[bytes, ...]] = {}
    keys = list[_Key]()
    for f in findings:
        if f.path not in lines:
            lines = {f.path: _lines(f.path)}  # findings are sorted by file, so one file at a time is enough
        keys.append((_relative_path(f.path, folder), f.code, f.symbol, _digest_text(f, lines[f.path])))
    return keys


def _folder_of(file: str) -> str:
    return os.path.dirname(os.path.abspath(file))


def _relative_path(path: str, folder: str) -> str:
    """Return a path relative to the folder of the baseline, so that the working folder does not matter."""
    return Path(os.path.relpath(os.path.abspath(path), folder)).as_posix()


def _digest_text(finding: Finding, lines: Sequence[bytes]) -> str:
    """Return a digest of the lines of a finding. Indentation does not count. In a notebook, the message counts."""
    written = lines[finding.line - 1 : finding.end_line] if finding.cell is None else ()
    texts = [line.strip() for line in written] or [finding.message.encode("utf-8", "surrogatepass")]
    return sha256(b"\n".join(texts)).hexdigest()[:16]


def _lines(path: str) -> tuple[bytes, ...]:
    try:
        return tuple(read(path).splitlines())
    except OSError:
        return ()
