"""The notebooks of examples/ run from top to bottom, and are committed with the outputs of their cells."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tools.notebooks import NOTEBOOKS, as_script, execute

ids = {"ids": lambda path: path.stem}


def code_cells(notebook: Path) -> list[dict[str, Any]]:
    return [c for c in json.loads(notebook.read_text())["cells"] if c["cell_type"] == "code"]


def text_of(cells: list[Any]) -> str:
    """Everything that the cells printed or showed, as plain text."""
    outputs = [o for c in cells for o in c["outputs"]]
    texts = [o.get("text") or o.get("data", {}).get("text/plain", "") for o in outputs]
    return "\n".join("".join(t) for t in texts)


def test_there_is_a_notebook() -> None:
    assert NOTEBOOKS


@pytest.mark.parametrize("notebook", NOTEBOOKS, **ids)
def test_it_is_committed_as_it_ran_once_from_top_to_bottom(notebook: Path) -> None:
    cells = code_cells(notebook)
    assert [c["execution_count"] for c in cells] == list(range(1, len(cells) + 1))
    assert not [o for c in cells for o in c["outputs"] if o["output_type"] == "error"]
    assert "Traceback" not in text_of(cells)


@pytest.mark.parametrize("notebook", NOTEBOOKS, **ids)
def test_its_outputs_name_no_folder_of_a_machine(notebook: Path) -> None:
    assert not [part for part in ("/work/", "/tmp/", "/root/", "/home/") if part in notebook.read_text()]


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, **ids)
def test_its_cells_run_as_a_script(notebook: Path, tmp_path: Path) -> None:
    (tmp_path / "cells.py").write_text(as_script(notebook))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    variables = {**os.environ, "PATH": path, "AUTOFUSE_MEASURED": "0"}
    done = subprocess.run(
        [sys.executable, "cells.py"], cwd=tmp_path, env=variables, capture_output=True, text=True
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "AF101 [safe]" in done.stdout and "True True" in done.stdout


@pytest.mark.night
@pytest.mark.parametrize("notebook", NOTEBOOKS, **ids)
def test_jupyter_executes_it_and_shows_what_is_committed(
    notebook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("nbclient", reason="it is in the extra `notebook`")
    pytest.importorskip("ipykernel", reason="it is in the extra `notebook`")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    now, then = execute(notebook, tmp_path).cells, code_cells(notebook)
    shown = [text_of([c]) for c in now if c.cell_type == "code"]
    for cell, text in zip(then, shown, strict=True):
        if "!autofuse" in "".join(cell["source"]):
            assert text == text_of([cell])  # the commands print neither times nor folders
        assert bool(text) == bool(text_of([cell]))
