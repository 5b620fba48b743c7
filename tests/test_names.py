"""Names are unique: no two public classes share one, and every file has a docstring."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
# Users import the callback from the module of their trainer.
SHARED = {"AutofuseCallback", "MonitorCallback"}


def test_no_two_public_classes_share_a_name() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for root in ("autofuse", "rules"):
        for file in sorted((REPOSITORY / root).rglob("*.py")):
            for node in ast.parse(file.read_text()).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places[node.name].append(str(file.relative_to(REPOSITORY)))
    assert len(places) > 300
    assert {name: files for name, files in places.items() if len(files) > 1 and name not in SHARED} == {}


def test_every_file_begins_with_a_docstring() -> None:
    files = [f for root in ("autofuse", "rules") for f in (REPOSITORY / root).rglob("*.py")]
    silent = [str(f.relative_to(REPOSITORY)) for f in files if not ast.get_docstring(ast.parse(f.read_text()))]
    assert silent == []
