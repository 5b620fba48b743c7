"""Functions of torch's that a file of the project replaces: by name, or by a name that is computed."""

from __future__ import annotations

from pathlib import Path

import pytest

from autofuse.loading.registry import load_rules
from autofuse.results.findings import Finding
from autofuse.source.evidence.given_files import ProjectFiles
from autofuse.source.find.check import proposals

MODEL = "import torch\n\n\ndef act(x):\n    x = x / 1\n    return x * torch.sigmoid(x)\n"
# How a file of the project patches torch, what becomes of the edit, and what its message says.
PATCHES = {
    "by the name that is read": ("torch.sigmoid = print", "declined", "replaces"),
    "by another name": ("torch.cosh = print", "safe", ""),
    "by a name that is computed": (
        "for name in load():\n    setattr(torch, name, print)", "unsafe",
        "assumes that `setattr(torch, name, print)` in patch.py, line 3 replaces nothing that runs here",
    ),
    "by a computed name, of something else": ("for name in load():\n    setattr(model, name, print)", "safe", ""),
    "by a computed name, of a module that is not read": (
        "for name in load():\n    setattr(torch.cuda, name, print)", "safe", "",
    ),
}  # fmt: skip


def found_in(folder: Path, patch: str, model: str = MODEL) -> Finding:
    files = [folder / "model.py", folder / "patch.py"]
    files[0].write_text(model)
    files[1].write_text(f"import torch\n{patch}\n")
    project = ProjectFiles(tuple(map(str, files)))
    (made,) = proposals(files[0].read_bytes(), str(files[0]), rules=load_rules(), files=project)
    return made.finding


@pytest.mark.parametrize("patch, status, told", PATCHES.values(), ids=PATCHES)
def test_a_patch_in_another_file_counts_by_the_name_that_it_gives(
    patch: str, status: str, told: str, tmp_path: Path
) -> None:
    finding = found_in(tmp_path, patch)
    assert finding.status == status, finding.message
    assert told in finding.message


LAYER = """import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return self.down(torch.nn.functional.gelu(self.up(x)))
"""


@pytest.mark.parametrize(
    "name, declined", [("shorthand", False), ("forward", True), ("__call__", True), ("bias", True)]
)
def test_a_name_given_to_every_module_counts_where_layers_look_it_up(name: str, declined: bool, tmp_path: Path) -> None:
    finding = found_in(tmp_path, f"torch.nn.Module.{name} = print", LAYER)
    assert (finding.status == "declined") is declined, finding.message


def test_the_file_itself_is_declined_where_it_computes_the_name(tmp_path: Path) -> None:
    assert (
        found_in(tmp_path, "", MODEL + "\n\nfor name in load():\n    setattr(torch, name, print)\n").status
        == "declined"
    )
