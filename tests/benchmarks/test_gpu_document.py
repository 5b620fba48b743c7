"""The page of GPU measurements is the committed results, and no number of it is written by hand."""

from __future__ import annotations

import json
import re
from pathlib import Path

from benchmarks.gpu.document import document

RESULTS, OTHERS = Path("benchmarks/results/gpu-h100"), Path("benchmarks/results/gpu-h200")
PAGE = Path(__file__).parents[2] / "docs" / "gpu.md"


def test_the_page_is_written_from_the_results() -> None:
    assert document(RESULTS, OTHERS) == PAGE.read_text(encoding="utf-8")


def test_it_names_the_hardware_and_what_is_missing() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert "NVIDIA H100" in page and "NVIDIA H200" in page and "| torch | 2." in page
    assert "What was not measured" in page


def test_the_readmes_milliseconds_are_those_of_the_results() -> None:
    ways = [f"gpt2-124m/{way}" for way in ("eager", "torch.compile", "autofuse")]
    ways += [f"llama-1b/{way}" for way in ("torch.compile", "autofuse")]
    expected = _milliseconds(RESULTS, ways)
    expected += _milliseconds(OTHERS, [f"bert-base/{way}" for way in ("eager", "torch.compile", "autofuse")])
    readme = (PAGE.parents[1] / "README.md").read_text(encoding="utf-8")
    line = next(line for line in readme.splitlines() if line.startswith("On one H100"))
    assert [int(n) for n in re.findall(r"\b(\d+) (?:ms|with)", line)] == expected


def _milliseconds(folder: Path, ways: list[str]) -> list[int]:
    rows = {row["key"]: row for row in json.loads((folder / "results.json").read_text())["rows"]}
    return [round(rows[f"training/{way}"]["seconds"] * 1e3) for way in ways]
