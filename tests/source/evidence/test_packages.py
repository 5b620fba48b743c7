"""Subclasses of a package's classes are found through its `__init__`, for every form of import and of path."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from autofuse.loading.registry import load_rules
from autofuse.source.evidence.other_files import ProjectFiles
from autofuse.source.find.check import proposals

MODEL = """\
import torch
from torch import nn


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = 0.5

    def scores(self, q, k):
        return q @ k.transpose(-2, -1) * self.scale

    def forward(self, q, k, v):
        return self.scores(q, k).softmax(-1) @ v
"""
CHILD = "\n\nclass Child({base}):\n    def {name}(self, q, k):\n        return (q - k).sum(-1)\n"
# The import of the class, the path of the file with the subclass, and the name of the base class there.
WAYS = {
    "from the package above": ("from .. import Base", "lib/variants/other.py", "Base"),
    "from the package above, under another name": ("from .. import Base as B", "lib/variants/other.py", "B"),
    "from the module above": ("from ..model import Base", "lib/variants/other.py", "Base"),
    "from the package beside": ("from . import Base", "lib/other.py", "Base"),
    "from the package, absolutely": ("from lib import Base", "other.py", "Base"),
    "from the module, absolutely": ("from lib.model import Base", "lib/variants/other.py", "Base"),
    "with the package": ("import lib", "other.py", "lib.Base"),
    "with the module": ("from lib import model", "other.py", "model.Base"),
}


def status(folder: Path, files: dict[str, str], relative: bool) -> list[str]:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    before = Path.cwd()
    try:
        os.chdir(folder)
        paths = [name if relative else str(folder / name) for name in files]
        model = next(p for p in paths if p.endswith("model.py"))
        found = proposals(Path(model).read_bytes(), model, rules=load_rules(), files=ProjectFiles(tuple(paths)))
    finally:
        os.chdir(before)
    return [p.finding.status for p in found]


@pytest.mark.parametrize("relative", [True, False], ids=["relative", "absolute"])
@pytest.mark.parametrize("overrides", [True, False], ids=["overrides", "adds"])
@pytest.mark.parametrize("way", WAYS)
def test_a_subclass_of_a_packages_class_counts(tmp_path: Path, way: str, overrides: bool, relative: bool) -> None:
    line, place, base = WAYS[way]
    files = {
        "lib/__init__.py": "from .model import Base\n",
        "lib/model.py": MODEL,
        "lib/variants/__init__.py": "",
        place: line + CHILD.format(base=base, name="scores" if overrides else "more"),
    }
    assert status(tmp_path, files, relative) == (["declined"] if overrides else ["safe"])


@pytest.mark.parametrize(
    ("method", "expected"), [("temper", "declined"), ("__init__", "safe")], ids=["a method", "the constructor"]
)
def test_a_base_class_in_another_file_that_assigns_an_attribute_later_counts(
    tmp_path: Path, method: str, expected: str
) -> None:
    base = f"from torch import nn\n\n\nclass Mixin(nn.Module):\n    def {method}(self):\n        super().__init__()\n"
    base += "        self.scale = nn.Parameter(nn.Linear(5, 5).weight)\n"
    model = "from lib.mixin import Mixin\n" + MODEL.replace("(nn.Module)", "(Mixin)")
    assert status(tmp_path, {"lib/model.py": model, "lib/mixin.py": base}, False) == [expected]
