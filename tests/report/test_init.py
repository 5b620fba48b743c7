"""`autofuse.report` is a function to the user and a folder to Python; both must work, in either order."""

from __future__ import annotations

import subprocess
import sys

import pytest

CALL = """
import torch, autofuse
report = autofuse.report(torch.nn.Linear(2, 2))
assert report.sites == (), report
"""


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(CALL, id="nothing of the folder imported before"),
        pytest.param("import autofuse.report.sites\n" + CALL, id="the folder imported before"),
        pytest.param(CALL + "import autofuse.report.html\n" + CALL, id="the folder imported in between"),
    ],
)
def test_report_is_callable_whatever_was_imported_before(program: str) -> None:
    subprocess.run([sys.executable, "-c", program], check=True)


def test_nothing_in_the_folder_needs_torch() -> None:
    modules = "charts comparison html markup sites table terminal"
    imports = "\n".join(f"import autofuse.report.{name}" for name in modules.split())
    program = f"import sys; sys.modules['torch'] = None; sys.modules['numpy'] = None\n{imports}"
    subprocess.run([sys.executable, "-c", program], check=True)
