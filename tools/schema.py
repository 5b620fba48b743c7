"""Writes autofuse/results/schemas/: `python -m tools.schema`.

Run it after a change of a report or of a configuration key.
"""

from __future__ import annotations

import json
from pathlib import Path

from autofuse.project.config import KEYS
from autofuse.results.profile import FORMAT_VERSION, Profile
from autofuse.results.schema import schema
from autofuse.results.target_names import TARGETS

FOLDER = Path(__file__).parents[1] / "autofuse" / "results" / "schemas"


_TEXTS = {"type": "array", "items": {"type": "string", "minLength": 1}}
# The type and purpose of each key. A key that is missing here or in the reader is an error.
_CONFIGURATION = {
    "select": (_TEXTS, "The rules that are used: codes or their beginnings. All if it is not given."),
    "ignore": (_TEXTS, "Rules that are not used: codes or their beginnings."),
    "exclude": (_TEXTS, "Files and folders that are left out, as patterns."),
    "per-file-ignores": (
        {"type": "object", "additionalProperties": _TEXTS}, "Rules that are not used in files that match a pattern.",
    ),
    "rules": (_TEXTS, "Folders with rules of your own, relative to this file. They are executed."),
    "target": ({"type": "string", "enum": list(TARGETS)}, "What new code calls."),
}  # fmt: skip


def configuration() -> dict[str, object]:
    """Return the JSON Schema of [tool.autofuse]."""
    if set(_CONFIGURATION) != KEYS:
        raise ValueError(f"tools/schema.py and autofuse/project/config.py differ in {KEYS ^ set(_CONFIGURATION)}")
    properties = {key: kind | {"description": why} for key, (kind, why) in _CONFIGURATION.items()}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "[tool.autofuse] of pyproject.toml",
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
    }


def texts() -> dict[str, str]:
    """Return the text of each file of the folder, by name."""
    found = {"profile.json": schema(Profile, {"version": FORMAT_VERSION, "type": "profile"})}
    found["configuration.json"] = configuration()
    return {name: json.dumps(content, indent=1) + "\n" for name, content in found.items()}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in texts().items():
        (FOLDER / name).write_text(text)
