"""Writes autofuse/results/schemas/: `python -m tools.schema`, after a dataclass of a report has changed."""

from __future__ import annotations

import json
from pathlib import Path

from autofuse.results.profile import FORMAT_VERSION, Profile
from autofuse.results.schema import schema

FOLDER = Path(__file__).parents[1] / "autofuse" / "results" / "schemas"


def texts() -> dict[str, str]:
    """Every file of the folder by name."""
    found = {"profile.json": schema(Profile, {"version": FORMAT_VERSION, "type": "profile"})}
    return {name: json.dumps(content, indent=1) + "\n" for name, content in found.items()}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in texts().items():
        (FOLDER / name).write_text(text)
