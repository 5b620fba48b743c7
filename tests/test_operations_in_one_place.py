"""An operation is defined by its row, its file, its reference and its rule. All other code uses these."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from textwrap import dedent
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[1]
HOMES = {  # an activation that autofuse's kernels support, and that has several hand-written forms
    "autofuse/ir/vocabulary.py",
    "autofuse/ops/activations/hardswish.py",
    "autofuse/ops/reference.py",
    "autofuse/kernels/triton/activations.py",
    "autofuse/kernels/compiled/activations.py",
    "autofuse/canonical/recognise/activations.py",
    "rules/activation.py",
}

# A new operation for the test: torch has it, and nothing in the project knows its name.
NAME = "tanhshrink"
ROW = '    _activation("tanhshrink(input)", _F + "tanhshrink autofuse.ops.tanhshrink", "Tanhshrink"),\n'
FILE = '''\
"""Tanhshrink."""

import torch.nn.functional as F
from torch import Tensor

from autofuse.ops.activation_table import define

__all__ = ["tanhshrink"]


def tanhshrink(x: Tensor) -> Tensor:
    """x - tanh(x), elementwise."""
    return _OP(x)


_OP = define("tanhshrink", F.tanhshrink)
'''
REFERENCE = '''

def tanhshrink(x: Tensor) -> Tensor:
    """x - tanh(x)."""
    return x - torch.tanh(x)


_ACTIVATIONS["tanhshrink"] = tanhshrink
'''
RULE = '''\
from __future__ import annotations

from typing import TYPE_CHECKING

from autofuse.rule import Rule

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from autofuse import ops


class HandWrittenTanhshrink(Rule):
    """Hand-written tanhshrink."""

    code = "AF399"
    benefit = 2

    @staticmethod
    def before(x: Tensor) -> Tensor:
        return x - torch.tanh(x)

    @staticmethod
    def after(x: Tensor) -> Tensor:
        return ops.tanhshrink(x)
'''
SPELLED = """\
import torch
from torch import nn


class Spelled(nn.Module):
    def forward(self, x):
        return x - torch.tanh(x)
"""
MLP = """\
from torch import nn


class Mlp(nn.Module):
    def __init__(self, act_layer=nn.Tanhshrink):
        super().__init__()
        self.up, self.act, self.down = nn.Linear(8, 16), {act}, nn.Linear(16, 8)

    def forward(self, x):
        return self.down(self.act(self.up(x)))
"""
ASKED = """
import io, json, sys
from contextlib import redirect_stdout
import torch
from torch import nn
import torch.nn.functional as F
import autofuse
from autofuse import ops
from autofuse.cli import main
from autofuse.fx.trace.size_sources import result_sizes
from autofuse.ir import operator_categories
from autofuse.ops import reference
from autofuse.ops.default_providers import markdown
from autofuse.ops.sample_calls import SAMPLES
from autofuse.profiling.trace import kernels

def rewritten(name, *options):
    text = open(name).read()
    assert main(["rewrite", "--unsafe", *options, name]) == 0
    made = open(name).read()
    open(name, "w").write(text)
    return made

def told(*arguments):
    with redirect_stdout(io.StringIO()) as out:
        main([*arguments])
    return out.getvalue()

sys.path.insert(0, ".")
from mlp import Mlp
from spelled import Spelled
x = torch.randn(4, 8)
fused, mlp = (autofuse.optimize(kind(), (x,), tune=False) for kind in (Spelled, Mlp))
unknown = (None,) * 2
said = {
    "home": autofuse.__file__,
    "torch": rewritten("spelled.py"),
    "autofuse": rewritten("spelled.py", "--target", "autofuse"),
    "a layer": rewritten("mlp.py"),
    "a layer that is chosen": rewritten("chosen.py"),
    "live": [s.rule for s in autofuse.report(fused).sites if s.status == "fused"],
    "the same": bool(torch.allclose(fused(x), Spelled()(x))),
    "live, a layer": [s.rule for s in autofuse.report(mlp).sites if s.status == "fused"],
    "categories": [operator_categories.category_of("aten::tanhshrink_backward"),
                   kernels.category_of("tanhshrink_kernel"), operator_categories.ACTIVATION_NAMES],
    "sizes": result_sizes("tanhshrink", lambda x: ("x.shape[0]", 8), (x,), {}, [x]),
    "kernels": told("kernels", "tanhshrink"),
    "kernel": ops.kernel_of("tanhshrink", x),
    "table": markdown(),
    "sample": "tanhshrink" in SAMPLES,
    "the reference": bool(torch.allclose(reference.tanhshrink(x), ops.tanhshrink(x))),
    "a gate": bool(torch.allclose(ops.gated_product(x, x, activation="tanhshrink"), F.tanhshrink(x) * x)),
}
print(json.dumps(said))
"""


def test_no_other_file_names_hard_swish() -> None:
    files = (f for root in ("autofuse", "rules") for f in (REPOSITORY / root).rglob("*.py"))
    naming = {str(f.relative_to(REPOSITORY)) for f in files if "hardswish" in f.read_text().lower()}
    # Words that speed up the search. An operation without an entry there is searched for in every function.
    assert naming - {"autofuse/source/find/required_words.py"} == HOMES


@cache
def made_up() -> dict[str, Any]:
    """The answers of a copy of the project to which an operation was added in these four places."""
    root = Path(mkdtemp())
    try:
        _copy_with_operation(root)
        (root / "spelled.py").write_text(SPELLED)
        (root / "mlp.py").write_text(MLP.replace("{act}", "nn.Tanhshrink()"))
        (root / "chosen.py").write_text(MLP.replace("{act}", "act_layer()"))
        done = subprocess.run(
            [sys.executable, "-c", dedent(ASKED)],
            cwd=root, env={**os.environ, "PYTHONPATH": str(root)}, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        assert Path(said["home"]).is_relative_to(root), "the copy was not what ran"
        return said
    finally:
        shutil.rmtree(root)


def _copy_with_operation(root: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(REPOSITORY / "autofuse", root / "autofuse", ignore=ignored)
    shutil.copytree(REPOSITORY / "rules", root / "autofuse" / "rules", ignore=ignored)
    _add(root / "autofuse/ir/vocabulary.py", ROW, before='    _op("glu(')
    _add(root / "autofuse/ops/reference.py", REFERENCE)
    (root / f"autofuse/ops/activations/{NAME}.py").write_text(FILE)
    (root / f"autofuse/rules/{NAME}.py").write_text(RULE)


def _add(file: Path, text: str, before: str = "") -> None:
    old = file.read_text()
    assert before in old
    file.write_text(old.replace(before, text + before, 1) if before else old + text)


def test_the_fx_pass_and_the_codemod_find_a_new_operation() -> None:
    said = made_up()
    assert "functional.tanhshrink(x)" in said["torch"] and "ops.tanhshrink(x)" in said["autofuse"]
    assert said["live"] == ["AF399"] and said["the same"]


@pytest.mark.parametrize("layer", ["a layer", "a layer that is chosen"])
def test_a_new_operation_can_be_the_activation_of_a_layer(layer: str) -> None:
    assert "ops.mlp(" in made_up()[layer]
    assert made_up()["live, a layer"] == ["AF304"]


def test_profiles_and_sizes_know_a_new_operation() -> None:
    *categories, names = made_up()["categories"]
    assert categories == ["activation", "activation"] and NAME in names.split("|")
    assert made_up()["sizes"] == [["x.shape[0]", 8]]


def test_a_new_operation_is_listed_with_its_providers_and_has_a_reference() -> None:
    said = made_up()
    assert NAME in said["kernels"] and said["kernel"] == f"torch {NAME}"
    assert f"| `{NAME}` | torch | torch | torch | any number |" in said["table"]
    assert said["sample"] and said["the reference"]


def test_a_new_operation_can_be_a_gate_without_a_kernel() -> None:
    assert made_up()["a gate"]
