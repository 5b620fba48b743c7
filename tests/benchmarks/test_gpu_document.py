"""The page of GPU measurements is the committed results, and no number of it is written by hand."""

from __future__ import annotations

import json
import re
from pathlib import Path

from benchmarks.gpu.document import document

RESULTS, PAGE = Path("benchmarks/results/gpu-h100"), Path(__file__).parents[2] / "docs" / "gpu.md"


def test_the_page_is_written_from_the_results() -> None:
    assert document(RESULTS) == PAGE.read_text(encoding="utf-8")


def test_it_names_the_hardware_and_what_is_missing() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert "NVIDIA H100" in page and "| torch | 2." in page
    assert "What was not measured" in page


def test_the_readmes_milliseconds_are_those_of_the_results() -> None:
    rows = {row["key"]: row for row in json.loads((RESULTS / "results.json").read_text())["rows"]}
    ways = "gpt2-124m/eager", "gpt2-124m/torch.compile", "gpt2-124m/autofuse", "llama-1b/torch.compile"
    expected = [round(rows[f"training/{way}"]["seconds"] * 1e3) for way in (*ways, "llama-1b/autofuse")]
    readme = (PAGE.parents[1] / "README.md").read_text(encoding="utf-8")
    line = next(line for line in readme.splitlines() if line.startswith("On one H100"))
    assert [int(n) for n in re.findall(r"\b(\d+) (?:ms|with)", line)] == expected
