"""The page of GPU measurements is the committed results, and no number of it is written by hand."""

from __future__ import annotations

from pathlib import Path

from benchmarks.gpu.document import document

RESULTS, PAGE = Path("benchmarks/results/gpu-h100"), Path(__file__).parents[2] / "docs" / "gpu.md"


def test_the_page_is_written_from_the_results() -> None:
    assert document(RESULTS) == PAGE.read_text(encoding="utf-8")


def test_it_names_the_hardware_and_what_is_missing() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert "NVIDIA H100" in page and "| torch | 2." in page
    assert "What was not measured" in page
