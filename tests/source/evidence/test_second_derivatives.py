"""An edit is safe if torch's operator has every derivative that the project takes; otherwise its message names the
line.

Each operation is differentiated in each way, before and after its edit. After a safe edit nothing differs. After an
unsafe one the fused operator raises an error or returns another number.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
import torch

from autofuse.loading.registry import load_rules
from autofuse.source.evidence.other_files import ProjectFiles
from autofuse.source.find.check import proposals
from autofuse.source.find.proposal import Proposal
from autofuse.source.write.file_edits import apply_proposals

HEAD = "import torch\nfrom torch import nn\nimport torch.nn.functional as F\n\n\n"
NET = (
    HEAD + "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
    "        self.first = nn.Linear(4, 8)\n"
    "        self.last = nn.Linear({width}, 1)\n\n    def forward(self, x):\n        x = self.first(x)\n"
    "{body}\n        return self.last(y).sin().sum()\n"
)
OPERATIONS = {
    "attention": (
        8,
        "        x = x.view(2, 1, 3, 8)\n        s = x @ x.transpose(-2, -1) * 0.5\n        y = s.softmax(-1) @ x",
    ),
    "layer norm": (
        8,
        "        u = x.mean(-1, keepdim=True)\n        v = (x - u).pow(2).mean(-1, keepdim=True)\n"
        "        y = (x - u) / torch.sqrt(v + 1e-5)",
    ),
    "RMS norm": (8, "        y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)"),
    "GLU": (4, "        a, g = x.chunk(2, dim=-1)\n        y = a * torch.sigmoid(g)"),
    "SiLU": (8, "        y = x * torch.sigmoid(x)"),
}
ONCE, NO_THIRD, NO_FORWARD = {"attention"}, {"attention", "layer norm"}, {"attention", "layer norm", "GLU"}


@dataclass(frozen=True)
class Way:
    """How `take(net, x)` differentiates, and the operations whose edit is unsafe then."""

    name: str
    text: str
    unsafe: frozenset[str]


def way(name: str, text: str, unsafe: set[str]) -> Way:
    return Way(name, text, frozenset(unsafe))


WAYS = (
    way("the gradient alone", "def take(net, x):\n    return net(x)\n", set()),
    way(
        "a graph that is not asked for",
        "def take(net, x):\n    torch.autograd.grad(net(x), x, create_graph=False)\n    return net(x)\n",
        set(),
    ),
    way(
        "a gradient penalty",
        "def take(net, x):\n    (g,) = torch.autograd.grad(net(x), x, create_graph=True)\n    return g.pow(2).sum()\n",
        ONCE,
    ),
    way(
        "a flag by its position",
        "def take(net, x, second=True):\n"
        "    (g,) = torch.autograd.grad(net(x), [x], None, None, second)\n    return g.pow(2).sum()\n",
        ONCE,
    ),
    way(
        "a backward that keeps its graph",
        "def take(net, x):\n    net(x).backward(create_graph=True)\n    return x.grad.pow(2).sum()\n",
        ONCE,
    ),
    way(
        "options in a dictionary",
        "OPTIONS = {'create_graph': True}\n\n\ndef take(net, x):\n"
        "    (g,) = torch.autograd.grad(net(x), x, **OPTIONS)\n    return g.pow(2).sum()\n",
        ONCE,
    ),
    way(
        "a helper that is given what it gave",
        "def d(y, x):\n    return torch.autograd.grad(y.sum(), x, create_graph=True)[0]\n\n\n"
        "def take(net, x):\n    first = d(net(x), x)\n"
        "    second = d(first[..., 0], x)\n    return second.pow(2).sum()\n",
        NO_THIRD,
    ),
    way(
        "a loop over the orders",
        "def take(net, x):\n    y = net(x)\n    for _ in range(2):\n"
        "        y = torch.autograd.grad(y.sum(), x, create_graph=True)[0]\n    return y.pow(2).sum()\n",
        NO_THIRD,
    ),
    way(
        "two gradients, one of the other",
        "def take(net, x):\n    g = torch.autograd.grad(net(x), x, create_graph=True)[0]\n"
        "    h = torch.autograd.grad(g.pow(2).sum(), x, create_graph=True)[0]\n    return h.pow(2).sum()\n",
        NO_THIRD,
    ),
    way(
        "forward mode",
        "def take(net, x):\n    return torch.func.jvp(net, (x,), (torch.ones_like(x),))[1].pow(2)\n",
        NO_FORWARD,
    ),
    way(
        "a transform of a transform",
        "from torch.func import grad\n\n\ndef take(net, x):\n"
        "    return grad(lambda t: grad(net)(t).pow(2).sum())(x).sum()\n",
        NO_THIRD,
    ),
    way(
        "a transform for each sample",
        "from torch.func import grad, vmap\n\n\ndef take(net, x):\n"
        "    return vmap(grad(lambda t: t.pow(2).sum()))(x).sum() + net(x)\n",
        set(),
    ),
)


@pytest.fixture(autouse=True)
def remove_modules() -> Iterator[None]:
    yield
    for name in ("model", "between", "train"):
        sys.modules.pop(name, None)


def edit_of(files: list[Path]) -> Proposal:
    given = ProjectFiles(tuple(map(str, files)))
    found = proposals(files[0].read_bytes(), str(files[0]), rules=load_rules(), files=given)
    return next(p for p in found if p.edit is not None and p.edit.becomes.startswith(("F.", "torch.")))


def results(files: list[Path]) -> list[torch.Tensor]:
    for path in files:
        module = ModuleType(path.stem)
        sys.modules[path.stem] = module
        exec(compile(path.read_text(), str(path), "exec"), module.__dict__)
    torch.manual_seed(0)
    net = sys.modules["model"].Net().double()
    x = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    loss = sys.modules[files[-1].stem].take(net, x)
    gradient = torch.autograd.grad(loss, [x, *net.parameters()], allow_unused=True)
    return [loss.detach(), *(g for g in gradient if g is not None)]


def differs(files: list[Path], edit: Proposal) -> bool:
    before = results(files)
    files[0].write_bytes(apply_proposals(files[0].read_bytes(), [edit]))
    try:
        after = results(files)
    except (RuntimeError, NotImplementedError):
        return True
    return any(not torch.allclose(b, a, rtol=1e-6, atol=1e-9) for b, a in zip(before, after, strict=True))


def write_files(folder: Path, texts: dict[str, str]) -> list[Path]:
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(text)
    return [folder / f"{name}.py" for name in texts]


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("taken", WAYS, ids=lambda w: w.name)
def test_an_edit_is_safe_if_the_operator_has_the_derivative(tmp_path: Path, taken: Way, operation: str) -> None:
    width, body = OPERATIONS[operation]
    files = write_files(tmp_path, {"model": NET.format(width=width, body=body) + "\n\n" + taken.text})
    edit = edit_of(files)
    assert edit.finding.status == ("unsafe" if operation in taken.unsafe else "safe")
    if operation in taken.unsafe:
        assert "assumes that" in edit.finding.message and "line" in edit.finding.message
    assert differs(files, edit) == (operation in taken.unsafe)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_derivatives_in_another_file_that_imports_the_model_count(tmp_path: Path, operation: str) -> None:
    width, body = OPERATIONS[operation]
    penalty = next(w for w in WAYS if w.name == "a gradient penalty")
    texts = {
        "model": NET.format(width=width, body=body),
        "between": "from model import Net\n\n\ndef build():\n    return Net()\n",
        "train": HEAD + "from between import build\n\n\n" + penalty.text,
    }
    files = write_files(tmp_path, texts)
    edit = edit_of(files)
    assert edit.finding.status == ("unsafe" if operation in penalty.unsafe else "safe")
    assert operation not in penalty.unsafe or "in train.py, line" in edit.finding.message
    assert differs(files, edit) == (operation in penalty.unsafe)


def test_derivatives_in_a_file_that_does_not_import_the_model_do_not_count(tmp_path: Path) -> None:
    width, body = OPERATIONS["attention"]
    penalty = next(w for w in WAYS if w.name == "a gradient penalty")
    texts = {
        "model": NET.format(width=width, body=body),
        "other": "class Net:\n    pass\n",
        "train": HEAD + "from other import Net\n\n\n" + penalty.text,
    }
    assert edit_of(write_files(tmp_path, texts)).finding.status == "safe"
