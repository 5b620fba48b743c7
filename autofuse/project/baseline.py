"""Findings that a project lives with: recorded once, so that only new ones fail.

A finding is known by its file, its rule, the function it stands in and the text of its lines, not by where that is: it
stays known when lines are added above it. Knows files and findings; prints nothing.
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
    """The findings that are new, how many are known, and how many of the recorded ones are gone."""

    new: tuple[Finding, ...]
    known: int
    gone: int


def compared(found: Sequence[Finding], file: str) -> BaselineComparison:
    """What a recorded file knows of findings. Raises ConfigError where it cannot be read."""
    left, new = _recorded(file), list[Finding]()
    folder = _folder_of(file)
    for finding, key in zip(found, _keys(found, folder), strict=True):
        if left[key] > 0:
            left[key] -= 1
        else:
            new.append(finding)
    return BaselineComparison(tuple(new), len(found) - len(new), sum(left.values()))


def record(found: Sequence[Finding], file: str) -> None:
    """Writes the findings down. Raises ConfigError where that cannot be done."""
    counts = Counter(_keys(found, _folder_of(file)))
    entries = [
        {"path": path, "code": code, "symbol": symbol, "text": text, "count": count}
        for (path, code, symbol, text), count in sorted(counts.items())
    ]
    try:
        put(file, (json.dumps({"version": VERSION, "findings": entries}, indent=1) + "\n").encode())
    except OSError as error:
        raise ConfigError(f"{visible(file)}: the baseline cannot be written: {error.strerror or error}.") from error


def _recorded(file: str) -> Counter[_Key]:
    try:
        content = json.loads(read(file))
        if content["version"] != VERSION:
            raise ConfigError(f"{visible(file)}: this baseline is of another version. Record it with --write-baseline.")
        counts: Counter[_Key] = Counter()
        for entry in content["findings"]:
            counts[entry["path"], entry["code"], entry["symbol"], entry["text"]] += int(entry["count"])
        return counts
    except OSError as error:
        raise ConfigError(
            f"{visible(file)}: the baseline cannot be read: {error.strerror or error}. Record it with --write-baseline."
        ) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(f"{visible(file)}: this is no baseline. Record it with --write-baseline.") from error


def _keys(found: Iterable[Finding], folder: str) -> list[_Key]:
    lines: dict[str, tuple[bytes, ...]] = {}
    keys = list[_Key]()
    for f in found:
        if f.path not in lines:
            lines = {f.path: _lines(f.path)}  # findings come file by file
        keys.append((_relative(f.path, folder), f.code, f.symbol, _text_of(f, lines[f.path])))
    return keys


def _folder_of(file: str) -> str:
    return os.path.dirname(os.path.abspath(file))


def _relative(path: str, folder: str) -> str:
    """The path as it is seen from the baseline, wherever the command is started."""
    return Path(os.path.relpath(os.path.abspath(path), folder)).as_posix()


def _text_of(finding: Finding, lines: Sequence[bytes]) -> str:
    """A digest of the lines without what a formatter may change around them; of a notebook, of the message."""
    written = lines[finding.line - 1 : finding.end_line] if finding.cell is None else ()
    own = [line.strip() for line in written] or [finding.message.encode("utf-8", "surrogatepass")]
    return sha256(b"\n".join(own)).hexdigest()[:16]


def _lines(path: str) -> tuple[bytes, ...]:
    try:
        return tuple(read(path).splitlines())
    except OSError:
        return ()
