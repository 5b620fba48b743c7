"""Code that observes which operators run makes an edit unsafe, because it would see the fused one.

Each program runs before and after the edit. Its output differs if the edit is unsafe, and stays the same if it is safe.
"""

from __future__ import annotations

import contextlib
import io
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
import torch.fx
from torch import nn
import torch.nn.functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Linear(4, 4)

    def forward(self, x):
        q = self.q(x)
        s = q @ x.transpose(-2, -1) * 0.5
        return s.softmax(-1) @ x
"""
FUNCTION_MODE = """\
from torch.overrides import TorchFunctionMode


class Count(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        print(getattr(func, "__name__", func))
        return func(*args, **(kwargs or {}))
"""
DISPATCH_MODE = """\
from torch.utils._python_dispatch import TorchDispatchMode


class Count(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        print(func)
        return func(*args, **(kwargs or {}))
"""
IN_MODE = "def use(x):\n    with Count():\n        return Net()(x)\n"
WATCHING = {
    "a mode over functions": FUNCTION_MODE + "\n\n" + IN_MODE,
    "a mode over operations": DISPATCH_MODE + "\n\n" + IN_MODE,
    "a counter of operations": (
        "from torch.utils.flop_counter import FlopCounterMode\n\n\ndef use(x):\n"
        "    with FlopCounterMode(display=False) as c:\n        y = Net()(x)\n"
        "    print(c.get_total_flops())\n    return y\n"
    ),
    "a class of tensors": (
        "class Told(torch.Tensor):\n    @classmethod\n"
        "    def __torch_function__(cls, func, types, args=(), kwargs=None):\n        print(func.__name__)\n"
        "        return super().__torch_function__(func, types, args, kwargs)\n\n\n"
        "def use(x):\n    return Net()(x.as_subclass(Told)).as_subclass(torch.Tensor)\n"
    ),
    "a pass over nodes": (
        "def use(x):\n    net = Net()\n    traced = torch.fx.symbolic_trace(net)\n"
        "    print(len(list(traced.graph.nodes)))\n    return traced(x)\n"
    ),
}
NOT_WATCHING = {
    "a trace that is only run": "def use(x):\n    net = Net()\n    return torch.fx.symbolic_trace(net)(x)\n",
    "nodes of another graph": (
        "class Graph:\n    nodes = [1, 2]\n\n\nclass Data:\n    graph = Graph()\n\n\n"
        "def use(x):\n    print(len(Data().graph.nodes))\n    return Net()(x)\n"
    ),
    "another context": "def use(x):\n    with torch.no_grad():\n        return Net()(x)\n",
}


@pytest.fixture(autouse=True)
def remove_modules() -> Iterator[None]:
    yield
    for name in ("model", "count", "train"):
        sys.modules.pop(name, None)


def write_files(folder: Path, texts: dict[str, str]) -> list[Path]:
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(text)
    return [folder / f"{name}.py" for name in texts]


def status(files: list[Path]) -> str:
    """The status of the attention's edit; the edit is made in any case."""
    project = ProjectFiles(tuple(map(str, files)))
    all_proposals = proposals(files[0].read_bytes(), str(files[0]), rules=load_rules(), files=project)
    (attention,) = (p for p in all_proposals if p.edit is not None and p.finding.code == "AF101")
    files[0].write_bytes(apply_proposals(files[0].read_bytes(), [attention]))
    assert (attention.finding.status == "unsafe") == ("accepts another operation" in attention.finding.message)
    return attention.finding.status


def printed_output(files: list[Path]) -> str:
    for path in files:
        module = ModuleType(path.stem)
        sys.modules[path.stem] = module
        exec(compile(path.read_text(), str(path), "exec"), module.__dict__)
    torch.manual_seed(0)
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        sys.modules[files[-1].stem].use(torch.randn(2, 3, 5, 4))
    return output.getvalue()


@pytest.mark.parametrize("watching", WATCHING)
def test_code_that_observes_operators_makes_an_edit_unsafe(tmp_path: Path, watching: str) -> None:
    files = write_files(tmp_path, {"model": f"{MODEL}\n\n{WATCHING[watching]}"})
    before = printed_output(files)
    assert status(files) == "unsafe"
    assert printed_output(files) != before


@pytest.mark.parametrize("watching", WATCHING)
def test_an_observer_in_a_file_that_imports_the_model_makes_the_edit_unsafe(tmp_path: Path, watching: str) -> None:
    head = "import torch\nimport torch.fx\nfrom model import Net\n\n\n"
    files = write_files(tmp_path, {"model": MODEL, "train": head + WATCHING[watching]})
    before = printed_output(files)
    assert status(files) == "unsafe"
    assert printed_output(files) != before


@pytest.mark.parametrize("mode", [FUNCTION_MODE, DISPATCH_MODE], ids=["functions", "operations"])
def test_an_imported_mode_that_the_file_enters_makes_the_edit_unsafe(tmp_path: Path, mode: str) -> None:
    texts = {"model": f"{MODEL}\n\n{IN_MODE}".replace("import torch.fx\n", "from count import Count\n"), "count": mode}
    files = write_files(tmp_path, texts)
    assert status(files) == "unsafe"


@pytest.mark.parametrize("other", NOT_WATCHING)
def test_an_edit_is_safe_without_an_observer(tmp_path: Path, other: str) -> None:
    text = f"{MODEL}\n\n{NOT_WATCHING[other]}"
    files = write_files(tmp_path, {"model": text})
    if other == "nodes of another graph":
        files[0].write_text(text.replace("import torch.fx\n", ""))
    before = printed_output(files)
    assert status(files) == "safe"
    assert printed_output(files) == before
