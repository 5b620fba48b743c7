"""Submodules of the project's own classes: which of them are inlined, and the resulting edits."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch

from autofuse.source.capture.children import inlinable_child
from autofuse.source.capture.scope import file_scope
from tests.source.rewriting import assert_same, findings, rewritten, source

HEAD = "import math\nimport torch\nfrom torch import nn\nimport torch.nn.functional as F\n\n\n"
GELU = """
    class Gelu(nn.Module):
        def forward(self, x):
            return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))
"""
MLP = """
    class Mlp(nn.Module):
        def __init__(self, dim):
            super().__init__()
            self.up, self.act, self.down = nn.Linear(dim, 2 * dim), Gelu(), nn.Linear(2 * dim, dim)

        def forward(self, x):
            return self.down(self.act(self.up(x)))
"""
NORM = """
    class Norm(nn.Module):
        def __init__(self, dim, eps=1e-6):
            super().__init__()
            self.gamma, self.beta = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim))
            self.eps = eps

        def forward(self, x):
            mean = x.mean(-1, keepdim=True)
            var = x.var(-1, unbiased=False, keepdim=True)
            return self.gamma * (x - mean) / torch.sqrt(var + self.eps) + self.beta

    class Block(nn.Module):
        def __init__(self, dim):
            super().__init__()
            self.dense, self.norm = nn.Linear(dim, dim), Norm(dim)

        def forward(self, x):
            return self.norm(x + self.dense(x))
"""


def x() -> list[torch.Tensor]:
    return [torch.randn(2, 3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))]


def child(text: str, called: str) -> object:
    scope = file_scope(ast.parse(HEAD + source(text)))
    return inlinable_child(scope, ast.parse(called, mode="eval").body)


def test_a_hand_written_activation_is_part_of_the_mlp_that_calls_it() -> None:
    before = HEAD + source(GELU) + source(MLP)
    text = rewritten(before)
    assert 'activation="gelu"' in text and "ops.mlp(" in text
    assert_same(before, text, "Mlp", x(), 6)


def test_a_hand_written_norm_is_fused_with_its_residual() -> None:
    before = HEAD + source(NORM)
    text = rewritten(before)
    assert "self.norm.gamma" in text and "eps=self.norm.eps" in text
    assert_same(before, text, "Block", x(), 6)


def test_code_inside_a_child_is_found_only_there() -> None:
    found = findings(HEAD + source(GELU) + source(MLP))
    assert [(f.code, f.symbol) for f in found] == [("AF301", "Gelu.forward"), ("AF304", "Mlp.forward")]


@pytest.mark.parametrize(
    "text",
    [
        "class A(nn.Module):\n    def forward(self, x):\n        self.seen = x\n        return F.gelu(x)\n",
        "class A(nn.Module):\n    def forward(self, x):\n        for _ in range(2):\n            x = F.gelu(x)\n"
        "        return x\n",
        "class A(Unknown):\n    def forward(self, x):\n        return F.gelu(x)\n",
        "class A(nn.Module):\n    def __call__(self, x):\n        return x\n"
        "    def forward(self, x):\n        return F.gelu(x)\n",
        "class A(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.a = nn.Linear(2, 2)\n"
        "    def forward(self, x):\n        return self.a(x)\n",
        "class A(nn.Module):\n    def __init__(self, a):\n        super().__init__()\n        self.a = made(a)\n"
        "    def forward(self, x):\n        return self.a(x)\n",
    ],
    ids=["assigns to self", "loops", "of an unknown base", "with a call of its own", "holds a layer", "holds anything"],
)
def test_a_child_that_cannot_be_inlined_stays_a_call(text: str) -> None:
    assert child(text, "A()") is None


def test_a_class_of_another_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "layers").mkdir()
    (tmp_path / "layers" / "__init__.py").write_text("from .gelu import Gelu as Activation\n")
    (tmp_path / "layers" / "gelu.py").write_text(HEAD + source(GELU))
    scope = file_scope(ast.parse("from .layers import Activation"), tmp_path / "model.py")
    assert inlinable_child(scope, ast.parse("Activation()", mode="eval").body) is not None


def test_an_absolute_import_is_searched_in_the_folders_above(tmp_path: Path) -> None:
    (tmp_path / "models" / "blocks").mkdir(parents=True)
    (tmp_path / "models" / "gelu.py").write_text(HEAD + source(GELU))
    scope = file_scope(ast.parse("from models.gelu import Gelu"), tmp_path / "models" / "blocks" / "block.py")
    assert inlinable_child(scope, ast.parse("Gelu()", mode="eval").body) is not None


def test_an_ambiguous_import_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    for folder in (tmp_path, tmp_path / "inner"):
        (folder / "layers.py").write_text(HEAD + source(GELU))
    scope = file_scope(ast.parse("from layers import Gelu"), tmp_path / "inner" / "model.py")
    assert inlinable_child(scope, ast.parse("Gelu()", mode="eval").body) is None


@pytest.mark.parametrize("content", [b"\xff\xfe", b"class Gelu(:", b""])
def test_an_unreadable_file_is_ignored(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "layers.py").write_bytes(content)
    scope = file_scope(ast.parse("from .layers import Gelu"), tmp_path / "model.py")
    assert inlinable_child(scope, ast.parse("Gelu()", mode="eval").body) is None
