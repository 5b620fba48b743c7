"""The result of attention is made contiguous if another file of the project reads its memory layout."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from autofuse.loading.registry import load_rules
from autofuse.results.findings import Finding
from autofuse.source.evidence.other_files import ProjectFiles
from autofuse.source.find.check import proposals
from autofuse.source.write.file_edits import apply_proposals
from tests.source.place.test_layout_callers import HOLDS, READS, program

IMPORTS = {
    "by its name": ("from model import Inner\n", "Inner("),
    "under another name": ("from model import Inner as Core\n", "Core("),
    "with its module": ("import model\n", "model.Inner("),
}
NORM = """\
import torch
from torch import nn


class Inner(nn.Module):
    def forward(self, x):
        u = x.mean(-1, keepdim=True)
        v = (x - u).pow(2).mean(-1, keepdim=True)
        return (x - u) / torch.sqrt(v + 1e-5)
"""
AROUND_NORM = """\
import torch
from torch import nn
from model import Inner


class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Inner()

    def forward(self, x):
        return READ
"""


@pytest.fixture(autouse=True)
def remove_modules() -> Iterator[None]:
    yield
    for name in ("model", "outer"):
        sys.modules.pop(name, None)


def split(text: str, way: str) -> dict[str, str]:
    """The class `Inner` in one file, and the other code in a file that imports it."""
    head, _, rest = text.partition("class Inner")
    inner, _, outer = rest.partition("\nclass Wrap")
    line, call = IMPORTS[way]
    return {"model": f"{head}class Inner{inner}", "outer": f"{head}{line}\nclass Wrap{outer}".replace("Inner(", call)}


def write_files(folder: Path, texts: dict[str, str]) -> list[Path]:
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(text)
    return [folder / f"{name}.py" for name in texts]


def rewritten(files: list[Path]) -> list[Finding]:
    """Makes the safe edits in the first file, and returns the findings."""
    project_files = ProjectFiles(tuple(map(str, files)))
    all_proposals = proposals(files[0].read_bytes(), str(files[0]), rules=load_rules(), files=project_files)
    safe = [p for p in all_proposals if p.edit is not None and p.finding.status == "safe" and not p.waits_for]
    files[0].write_bytes(apply_proposals(files[0].read_bytes(), safe))
    return [p.finding for p in all_proposals if p.edit is not None]


def result_of(files: list[Path]) -> object:
    for path in files:
        module = ModuleType(path.stem)
        sys.modules[path.stem] = module
        exec(compile(path.read_text(), str(path), "exec"), module.__dict__)
    return sys.modules["outer"].Outer()(torch.linspace(-1, 1, 240).view(2, 5, 24))


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("way", IMPORTS)
@pytest.mark.parametrize("hold", HOLDS)
def test_a_layout_that_another_file_reads_is_preserved(tmp_path: Path, hold: str, way: str, read: str) -> None:
    files = write_files(tmp_path, split(program(*HOLDS[hold], READS[read]), way))
    before = result_of(files)
    rewritten(files)
    assert "scaled_dot_product_attention" in files[0].read_text()
    assert result_of(files) == before


@pytest.mark.parametrize("way", IMPORTS)
def test_without_a_layout_read_in_any_file_no_contiguous_call_is_added(tmp_path: Path, way: str) -> None:
    text = program(*HOLDS["an attribute"], "o.transpose(1, 2).reshape(2, 5, 8)").split("def tried")[0]
    files = write_files(tmp_path, split(text, way))
    rewritten(files)
    after = files[0].read_text()
    assert "scaled_dot_product_attention" in after and ".contiguous()" not in after


def test_a_layout_is_followed_through_another_file(tmp_path: Path) -> None:
    text = program(*HOLDS["an attribute"], "o")
    texts = split(text.split("def tried")[0], "by its name")
    texts = {"model": texts["model"], "between": texts["outer"].replace("class Outer", "class Middle")}
    texts["outer"] = (
        "from torch import nn\nfrom between import Middle\n\n\nclass Outer(nn.Module):\n    def __init__(self):\n"
        "        super().__init__()\n        self.middle = Middle()\n\n    def forward(self, x):\n"
        "        return self.middle(x).stride()\n"
    )
    files = write_files(tmp_path, texts)
    before = result_of(files)
    rewritten(files)
    assert "scaled_dot_product_attention" in files[0].read_text()
    assert result_of(files) == before
    sys.modules.pop("between")


def test_a_sequential_passes_a_layout_to_the_next_module() -> None:
    text = program("self.inner = nn.Sequential(Inner(), Merge())", "self.inner", "o")
    text += "\nclass Merge(nn.Module):\n    def forward(self, y):\n        return y.view(y.size(0), -1).shape\n"
    found = proposals(text.encode(), "model.py", rules=load_rules())
    after = apply_proposals(text.encode(), [p for p in found if p.edit is not None and p.finding.status == "safe"])
    assert b"scaled_dot_product_attention" in after and b".contiguous()" in after


@pytest.mark.parametrize(
    ("read", "safe"),
    [
        ("self.inner(x.transpose(1, 2)).transpose(1, 2).view(-1)", False),
        ("self.inner(x.transpose(1, 2)).mT.view(-1)", False),
        ("self.inner(x.transpose(1, 2)).stride()", False),
        ("self.inner(x.transpose(1, 2)).transpose(1, 2).reshape(-1)", True),
        ("self.inner(x).view(-1)", True),
        ("self.inner(x.transpose(1, 2)).transpose(1, 2).contiguous().view(-1)", True),
    ],
)
def test_a_norm_is_unsafe_if_another_file_reads_its_layout(tmp_path: Path, read: str, safe: bool) -> None:
    files = write_files(tmp_path, {"model": NORM, "outer": AROUND_NORM.replace("READ", read)})
    before = result_of(files)
    (found,) = rewritten(files)
    assert found.status == ("safe" if safe else "unsafe")
    after = result_of(files)
    same = torch.allclose(after, before, atol=1e-5) if isinstance(after, torch.Tensor) else after == before
    assert same
