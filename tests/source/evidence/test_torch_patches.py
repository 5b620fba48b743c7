"""Functions of torch that a project file replaces, under a literal or a computed name."""

from __future__ import annotations

from pathlib import Path

import pytest

from autofuse.loading.registry import load_rules
from autofuse.results.findings import Finding
from autofuse.source.evidence.other_files import ProjectFiles
from autofuse.source.find.check import proposals

MODEL = "import torch\n\n\ndef act(x):\n    x = x / 1\n    return x * torch.sigmoid(x)\n"
# The patch in a project file, the status of the edit, and a part of its message.
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


def finding_with_patch(folder: Path, patch: str, model: str = MODEL) -> Finding:
    files = [folder / "model.py", folder / "patch.py"]
    files[0].write_text(model)
    files[1].write_text(f"import torch\n{patch}\n")
    project = ProjectFiles(tuple(map(str, files)))
    (made,) = proposals(files[0].read_bytes(), str(files[0]), rules=load_rules(), files=project)
    return made.finding


@pytest.mark.parametrize("patch, status, told", PATCHES.values(), ids=PATCHES)
def test_a_patch_in_another_file_counts_for_the_name_that_it_replaces(
    patch: str, status: str, told: str, tmp_path: Path
) -> None:
    finding = finding_with_patch(tmp_path, patch)
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
def test_a_name_set_on_every_module_counts_if_layers_look_it_up(name: str, declined: bool, tmp_path: Path) -> None:
    finding = finding_with_patch(tmp_path, f"torch.nn.Module.{name} = print", LAYER)
    assert (finding.status == "declined") is declined, finding.message


def test_a_file_that_patches_a_computed_name_is_declined(tmp_path: Path) -> None:
    assert (
        finding_with_patch(tmp_path, "", MODEL + "\n\nfor name in load():\n    setattr(torch, name, print)\n").status
        == "declined"
    )
