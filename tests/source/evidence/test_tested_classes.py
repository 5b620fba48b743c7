"""A function replaces children of a class: the edit is declined if it may replace a child that the edit reads."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from autofuse.loading.registry import load_rules
from autofuse.source.evidence.other_files import ProjectFiles
from autofuse.source.find.check import proposals
from autofuse.source.write.file_edits import apply_proposals

MODEL = """\
import torch
from torch import nn


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.sm = nn.Softmax(dim=-1)
        self.out = nn.Linear(4, 4)

    def forward(self, q, k, v):
        return self.out(self.sm(q @ k.transpose(-2, -1) * 0.5) @ v)
"""
CHANGE = """\
def change(net, old, new):
    for name, child in net.named_children():
        if isinstance(child, old):
            setattr(net, name, new)
        else:
            change(child, old, new)
    return net
"""
# The code before the call, the expression that returns the module, and whether it may replace the softmax.
GIVEN = {
    "the class": ("", "change(Base(), nn.Softmax, nn.Sigmoid())", True),
    "another class": ("", "change(Base(), nn.Linear, nn.Identity())", False),
    "by keyword": ("", "change(Base(), new=nn.Sigmoid(), old=nn.Softmax)", True),
    "another by keyword": ("", "change(Base(), new=nn.Identity(), old=nn.Linear)", False),
    "classes": ("", "change(Base(), (nn.GELU, nn.Softmax), nn.Sigmoid())", True),
    "other classes": ("", "change(Base(), (nn.GELU, nn.Linear), nn.Identity())", False),
    "a union": ("", "change(Base(), nn.GELU | nn.Softmax, nn.Sigmoid())", True),
    "another union": ("", "change(Base(), nn.GELU | nn.Linear, nn.Identity())", False),
    "a name of the file": ("KINDS = (nn.Softmax,)\n", "change(Base(), KINDS, nn.Sigmoid())", True),
    "a name of the file for others": ("KINDS = (nn.Linear,)\n", "change(Base(), KINDS, nn.Identity())", False),
    "passed on": (
        "def outer(net, kind):\n    return change(net, kind, nn.Sigmoid())\n",
        "outer(Base(), nn.Softmax)",
        True,
    ),
    "another passed on": (
        "def outer(net, kind):\n    return change(net, kind, nn.Identity())\n",
        "outer(Base(), nn.Linear)",
        False,
    ),
    "computed": ("", "change(Base(), getattr(nn, 'Soft' + 'max'), nn.Sigmoid())", True),
    "of a dictionary": ("KINDS = {'s': nn.Softmax}\n", "change(Base(), KINDS['s'], nn.Sigmoid())", True),
    "of both": ("", "change(change(Base(), nn.Linear, nn.Identity()), nn.Softmax, nn.Sigmoid())", True),
}


@pytest.fixture(autouse=True)
def remove_modules() -> Iterator[None]:
    yield
    for name in ("model", "swap", "train"):
        sys.modules.pop(name, None)


def write_files(folder: Path, texts: dict[str, str]) -> list[Path]:
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(text)
    return [folder / f"{name}.py" for name in texts]


def in_one_file(before: str, made: str) -> dict[str, str]:
    return {"model": f"{MODEL}\n\n{CHANGE}\n\n{before}\n\ndef made():\n    return {made}\n"}


def in_three_files(before: str, made: str) -> dict[str, str]:
    """The function in a file that does not import the model; a third file calls it."""
    head = "from torch import nn\nfrom model import Base\nfrom swap import change\n\n"
    return {"model": MODEL, "swap": CHANGE, "train": f"{head}{before}\n\ndef made():\n    return {made}\n"}


def result(files: list[Path]) -> torch.Tensor:
    for path in files:
        module = ModuleType(path.stem)
        sys.modules[path.stem] = module
        exec(compile(path.read_text(), str(path), "exec"), module.__dict__)
    torch.manual_seed(0)
    net = sys.modules[files[-1].stem].made()
    computed: torch.Tensor = net(*(torch.randn(2, 5, 4) for _ in range(3)))
    return computed


def rewrite(files: list[Path]) -> list[str]:
    """Make the safe edits of the model, and return the status of each attention."""
    files_given = ProjectFiles(tuple(map(str, files)))
    all_proposals = proposals(files[0].read_bytes(), str(files[0]), rules=load_rules(), files=files_given)
    safe = [p for p in all_proposals if p.edit is not None and p.finding.status == "safe" and not p.waits_for]
    files[0].write_bytes(apply_proposals(files[0].read_bytes(), safe))
    return [p.finding.status for p in all_proposals if p.finding.code == "AF101"]


@pytest.mark.parametrize("given", GIVEN)
def test_a_child_of_a_class_that_a_function_replaces_declines_the_edit(tmp_path: Path, given: str) -> None:
    before, made, concerned = GIVEN[given]
    files = write_files(tmp_path, in_one_file(before, made))
    computed = result(files)
    assert rewrite(files) == (["declined"] if concerned else ["safe"])
    torch.testing.assert_close(result(files), computed)


@pytest.mark.parametrize("given", GIVEN)
def test_a_replacing_function_in_its_own_file_changes_no_results(tmp_path: Path, given: str) -> None:
    before, made, _ = GIVEN[given]
    files = write_files(tmp_path, in_three_files(before, made))
    computed = result(files)
    rewrite(files)
    torch.testing.assert_close(result(files), computed)


NORM = """\
import torch
from torch import nn


class Base(nn.Module):
    def __init__(self, eps=1e-6):
        super().__init__()
        self.eps = eps

    def forward(self, q, k, v):
        return q * torch.rsqrt(q.pow(2).mean(-1, keepdim=True) + self.eps)
"""


@pytest.mark.parametrize("kind", ["nn.BatchNorm2d", "nn.Module", "(nn.Softmax, nn.GELU)"])
def test_a_number_is_not_replaced_as_a_child(tmp_path: Path, kind: str) -> None:
    texts = in_three_files("", f"change(Base(), {kind}, nn.Identity())") | {"model": NORM}
    files = write_files(tmp_path, texts)
    project = ProjectFiles(tuple(map(str, files)))
    all_proposals = proposals(files[0].read_bytes(), str(files[0]), rules=load_rules(), files=project)
    assert [p.finding.status for p in all_proposals] == ["safe"]
