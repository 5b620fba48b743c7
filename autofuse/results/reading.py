"""Reads profiles, comparisons, and files that contain a comparison. No torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any

from autofuse.results.comparison import FORMAT_VERSION, Comparison
from autofuse.results.data import Malformed, loaded
from autofuse.results.profile import Profile


class NotOurs(ValueError):
    """A file cannot be compared. The message says what it is and what to pass."""


def read(path: Path) -> Profile | Comparison:
    """The profile or the comparison in a file. `autofuse demo --json` writes files that contain a comparison.

    Raises:
        NotOurs: The file contains neither, or cannot be read.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise NotOurs(f"{path} cannot be read: {error.strerror or error}. Check the path.") from error
    except (ValueError, RecursionError) as error:
        raise NotOurs(f"{path} is not JSON ({error}). Pass a profile.json that `autofuse profile` wrote.") from error
    try:
        return of(content)
    except Malformed as error:
        raise NotOurs(f"{path} cannot be compared: {error}") from error


def of(content: Any) -> Profile | Comparison:
    """The profile or the comparison in parsed JSON.

    Raises:
        Malformed: It is neither.
    """
    if not isinstance(content, Mapping):
        raise Malformed("it is not a JSON object. Pass a profile.json that `autofuse profile` wrote.")
    if content.get("type") == "profile":
        return Profile.from_dict(content)
    if isinstance(content.get("comparison"), Mapping):
        content = content["comparison"]
    if "before_seconds" in content and "verdict" in content:
        if content.get("version") != FORMAT_VERSION:
            version = content.get("version")
            raise Malformed(
                f"it is a comparison of format version {version!r}, but only {FORMAT_VERSION} is supported."
            )
        comparison = loaded(Comparison, content)
        if not comparison.before_seconds or not comparison.after_seconds:
            raise Malformed("it is a comparison without a single pair.")
        if not isfinite(comparison.ratio):
            raise Malformed("it is a comparison without a ratio.")
        return comparison
    if "traceEvents" in content:
        raise Malformed("it is a trace. `autofuse profile --trace` makes a profile of it, which can be compared.")
    raise Malformed("it is neither a profile nor a comparison. Pass a profile.json that `autofuse profile` wrote.")
