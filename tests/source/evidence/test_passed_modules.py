"""Functions of torch that a file replaces through a value that it passes on: `alias = torch; alias.sigmoid = f`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.source.evidence.test_torch_patches import MODEL, finding_with_patch

MODULES = (
    "import torch as t\nalias = t\nalias.sigmoid = print",
    "alias = torch\nalias.sigmoid = print",
    "import torch as t\na = b = t\nb.sigmoid = print",
    "alias, other = torch, 1\nalias.sigmoid = print",
    "alias = torch if load() else None\nalias.sigmoid = print",
    "alias = None or torch\nalias.sigmoid = print",
    "alias: object = torch\nalias.sigmoid = print",
    "for m in (torch, torch.nn):\n    m.sigmoid = print",
    "for i, m in enumerate([torch]):\n    m.sigmoid = print",
    "for m in [torch.nn, torch]:\n    setattr(m, 'sigmoid', print)",
    "[setattr(m, 'sigmoid', print) for m in (torch, torch.nn)]",
    "def f(m=torch):\n    m.sigmoid = print",
    "def f(*, m=torch):\n    m.sigmoid = print",
    "def f(m):\n    m.sigmoid = print\n\nf(torch)",
    "def f(m):\n    m.sigmoid = print\n\ndef g(m):\n    f(m)\n\ng(torch)",
    "if m := torch:\n    m.sigmoid = print",
    "mods = [torch]\nmods[0].sigmoid = print",
    "mods = {'t': torch}\nfor m in mods.values():\n    m.sigmoid = print",
    "mods = {'t': torch}\nmods['t'].sigmoid = print",
    "class C:\n    t = torch\n\nC.t.sigmoid = print",
    "class C:\n    def __init__(self):\n        self.t = torch\n\n    def f(self):\n        self.t.sigmoid = print",
    "def get():\n    return torch\n\nget().sigmoid = print",
    "def get():\n    return torch\n\nm = get()\nm.sigmoid = print",
    "m = __import__('torch')\nm.sigmoid = print",
    "import importlib\nm = importlib.import_module('torch')\nm.sigmoid = print",
    "import sys\nm = sys.modules['torch']\nm.sigmoid = print",
    "m = vars(torch)\nm['sigmoid'] = print",
    "m = torch.__dict__\nm['sigmoid'] = print",
    "m = torch.__dict__\nm.update(sigmoid=print)",
    "object.__setattr__(torch, 'sigmoid', print)",
    "put = setattr\nput(torch, 'sigmoid', print)",
    "import torch as t\nu = t\nsetattr(u, 'sigmoid', print)",
    "import torch as t\nu = t\nv = u\nvars(v)['sigmoid'] = print",
    "from unittest import mock\nu = torch\nmock.patch.object(u, 'sigmoid', print).start()",
    "from types import SimpleNamespace\nn = SimpleNamespace(t=torch)\nn.t.sigmoid = print",
    "with suppress(E) as x, torch.device('cpu'):\n    m = torch\n    m.sigmoid = print",
    "lib = torch.nn.functional\nlib.silu = print",
    "lib = getattr(torch.nn, 'functional')\nlib.silu = print",
    "getattr(torch, 'nn').functional.silu = print",
    "n = torch.nn\nn.functional.silu = print",
    "n = torch.nn\nm = n.functional\nm.silu = print",
    "from elsewhere import replace\nreplace(torch)",
    "import elsewhere\nelsewhere.replace(torch, 'sigmoid')",
)
CLASSES = (
    "for c in torch.Tensor.__mro__:\n    c.sigmoid = print",
    "for c in torch.Tensor.__mro__:\n    setattr(c, 'sigmoid', print)",
    "c = torch.Tensor.__bases__[0]\nc.sigmoid = print",
    "c = torch.Tensor\nc.sigmoid = print",
    "c = type(torch.ones(1))\nc.sigmoid = print",
    "x = torch.ones(1)\ntype(x).sigmoid = print",
    "x = torch.ones(1)\nx.__class__.sigmoid = print",
    "c, d = torch.Tensor, 1\nc.sigmoid = print",
    "for c in torch.Tensor.mro():\n    c.sigmoid = print",
    "import inspect\nfor c in inspect.getmro(torch.Tensor):\n    c.sigmoid = print",
)
OTHERS = (
    "import numpy as xp\nalias = xp\nalias.sigmoid = print",
    "alias = torch\nalias.cosh = print",
    "alias = torch\nmodel.sigmoid = print",
    "def f(torch_like):\n    torch_like.sigmoid = print\n\nf(model)",
    "def f(m):\n    m = load()\n\n\ndef g(m):\n    m.sigmoid = print\n\n\nf(torch)",
    "x = torch.ones(1)\nx.sigmoid = print",
    "class C:\n    def __init__(self):\n        self.sigmoid = torch.nn.Sigmoid()",
    "if hasattr(torch, 'compile'):\n    model.sigmoid = print",
    "dtype = getattr(torch, 'float16')\nmodel.sigmoid = print",
    "assert isinstance(load(), torch.Tensor)\nmodel.sigmoid = print",
    "config = {'dtype': torch.float16}\nconfig.update(sigmoid=print)",
)
METHOD = MODEL.replace("torch.sigmoid(x)", "x.sigmoid()").replace("act(x)", "act(x: torch.Tensor)")


@pytest.mark.parametrize("patch", MODULES)
def test_a_change_through_a_passed_module_makes_the_edit_unsafe(patch: str, tmp_path: Path) -> None:
    found = finding_with_patch(tmp_path, patch)
    assert found.status in ("unsafe", "declined"), found.message
    assert found.status == "declined" or "patch.py, line " in found.message


@pytest.mark.parametrize("patch", CLASSES)
def test_a_change_through_the_passed_tensor_class_makes_the_edit_unsafe(patch: str, tmp_path: Path) -> None:
    found = finding_with_patch(tmp_path, patch, METHOD)
    assert found.status in ("unsafe", "declined"), found.message


@pytest.mark.parametrize("patch", OTHERS)
@pytest.mark.parametrize("model", [MODEL, METHOD], ids=["function", "method"])
def test_a_change_of_something_else_leaves_the_edit_safe(patch: str, model: str, tmp_path: Path) -> None:
    assert finding_with_patch(tmp_path, patch, model).status == "safe"


def test_a_change_in_the_file_of_the_edit_counts(tmp_path: Path) -> None:
    found = finding_with_patch(tmp_path, "", f"{MODEL}\n\nfor m in [torch]:\n    m.sigmoid = print\n")
    assert found.status == "unsafe" and "`m.sigmoid = print` in line" in found.message
