"""Results are data: JSON needs no drawing code, which is loaded when a result is shown."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from autofuse.results.shown import Shown

LAZY = """
import sys
from autofuse.results.sites import Report, SiteReport
report = Report((SiteReport("AF101", "block", "declined", "why"),))
report.to_json(), report.summary, len(report)
drawing = [m for m in sys.modules if m.split(".")[0] in ("rich", "jinja2") or m.startswith("autofuse.display")]
assert drawing == [], drawing
assert "AF101" in str(report) and "AF101" in report._repr_html_()
assert "rich" in sys.modules
"""


class Numbers(Shown):
    def to_dict(self) -> dict[str, Any]:
        return {"a": float("inf"), "b": [float("nan"), 1.5], "c": {"d": None}}


def test_drawing_code_is_loaded_only_when_a_result_is_shown() -> None:
    done = subprocess.run([sys.executable, "-c", LAZY], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_infinity_becomes_null_in_json() -> None:
    assert json.loads(Numbers().to_json()) == {"a": None, "b": [None, 1.5], "c": {"d": None}}


def test_a_result_without_its_own_form_raises_an_error() -> None:
    with pytest.raises(NotImplementedError):
        Shown().to_json()
