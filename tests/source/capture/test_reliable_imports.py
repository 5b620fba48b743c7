"""New code uses only names that are bound when it runs. A file that never imports torch is not changed."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from autofuse.source.capture.reliable_imports import imports_torch
from tests.source.evidence.programs import Program, assert_holds
from tests.source.rewriting import rewritten

SILU = "\ndef f(x: 'torch.Tensor'):\n    x = x / 1; return x * torch.sigmoid(x)\n"
DRIVE = "f(T(2, 8))"
F_AS = "import torch.nn.functional as F\n"


@pytest.fixture(autouse=True)
def _modules_with_stars() -> Iterator[None]:
    """Creates two modules: one that binds F to another object, and one that binds no name of these tests."""
    for name, text in {"other_f": "F = None", "no_f": "G = 1"}.items():
        module = ModuleType(name)
        exec(text, module.__dict__)
        sys.modules[name] = module
    yield
    del sys.modules["other_f"], sys.modules["no_f"]


def make_program(name: str, text: str, expected: str = "safe", drive: str = DRIVE, said: str = "") -> Program:
    return Program(name, text, drive, expected, said, is_whole_file=True)


PROGRAMS = [
    make_program("imported at the top", f"import torch\n{F_AS}{SILU}"),
    make_program("only torch is imported", f"import torch\n{SILU}"),
    make_program(
        "imported where a variable of the environment is set",
        f"import os\nimport torch\nif os.environ.get('NO'):\n    {F_AS}{SILU}",
    ),
    make_program(
        "imported for type checkers",
        f"from typing import TYPE_CHECKING\nimport torch\nif TYPE_CHECKING:\n    {F_AS}{SILU}",
    ),
    make_program(
        "imported where the file is the program", f"import torch\nif __name__ == '__main__':\n    {F_AS}{SILU}"
    ),
    make_program("imported by another function", f"import torch\ndef g():\n    {F_AS}    return F\n{SILU}"),
    make_program("imported in a loop", f"import torch\nfor _ in ():\n    {F_AS}{SILU}"),
    make_program(
        "imported behind what may fail",
        f"import torch\ntry:\n    import nowhere_to_be_found\n    {F_AS}except ImportError:\n    pass\n{SILU}",
    ),
    make_program(
        "imported where a try ends well",
        f"import torch\ntry:\n    import nowhere_to_be_found\nexcept ImportError:\n    pass\nelse:\n    {F_AS}{SILU}",
    ),
    make_program(
        "imported in a handler", f"import torch\ntry:\n    import math\nexcept ImportError:\n    {F_AS}{SILU}"
    ),
    make_program(
        "imported where errors are suppressed",
        "import contextlib\nimport torch\nwith contextlib.suppress(ImportError):\n"
        f"    import nowhere_to_be_found\n    {F_AS}{SILU}",
    ),
    make_program("imported in a case", f"import torch\nmatch 1:\n    case 2:\n        {F_AS}{SILU}"),
    make_program("imported and deleted", f"import torch\n{F_AS}del F\n{SILU}"),
    make_program("imported and assigned", f"import torch\n{F_AS}F = None\n{SILU}"),
    make_program(
        "imported and assigned by a function", f"import torch\n{F_AS}def g():\n    global F\n    F = None\ng()\n{SILU}"
    ),
    make_program(
        "the module's function from a try, with a fallback",
        "import torch\ntry:\n    from torch.nn.functional import nowhere as silu\n"
        f"except ImportError:\n    silu = None\n{SILU}",
    ),
    make_program(
        "hidden by an argument",
        f"import torch\n{F_AS}def f(x: 'torch.Tensor', F=None):\n    x = x / 1; return x * torch.sigmoid(x)\n",
    ),
    make_program(
        "hidden by a local name",
        f"import torch\n{F_AS}def f(x: 'torch.Tensor'):\n    F = 2\n"
        "    x = x / 1\n    return F * (x * torch.sigmoid(x))\n",
    ),
    make_program(
        "hidden by a name of the function around",
        f"import torch\n{F_AS}def g(F):\n    def f(x: 'torch.Tensor'):\n"
        "        x = x / 1; return x * torch.sigmoid(x)\n    return f\n",
        drive="g(None)(T(2, 8))",
    ),
    make_program(
        "hidden by a star, which may hide torch too",
        f"import torch\n{F_AS}from other_f import *\n{SILU}",
        "unsafe",
        said="`from other_f import *`",
    ),
    make_program("imported after the star", f"from other_f import *\nimport torch\n{F_AS}{SILU}"),
    make_program("a star of the standard library", f"import torch\n{F_AS}from math import *\n{SILU}"),
    make_program(
        "imported in both branches",
        f"import os\nimport torch\nif os.environ.get('NO'):\n    {F_AS}else:\n    {F_AS}{SILU}",
    ),
    make_program(
        "torch imported by the function itself",
        "def f(x):\n    import torch\n    x = x / 1; return x * torch.sigmoid(x)\n",
    ),
    make_program(
        "torch imported in the branch that defines the function",
        "if True:\n    import torch\n    def f(x):\n        x = x / 1; return x * torch.sigmoid(x)\n",
    ),
    make_program(
        "a try that raises",
        f"try:\n    import torch\n    {F_AS}except ImportError as error:\n    raise RuntimeError from error\n{SILU}",
    ),
    make_program("torch is only mentioned", "# like torch\ndef f(x):\n    x = x / 1; return x * x.sigmoid()\n", "kept"),
    make_program(
        "torch is imported for type checkers",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch\n"
        "def f(x: 'torch.Tensor'):\n    x = x / 1; return x * x.sigmoid()\n",
        "kept",
    ),
    make_program(
        "torch is imported for type checkers by another name",
        "import typing as t\nif t.TYPE_CHECKING:\n    import torch\n"
        "def f(x: 'torch.Tensor'):\n    x = x / 1; return x * x.sigmoid()\n",
        "kept",
    ),
    make_program(
        "torch is never imported in fact",
        "if False:\n    import torch\ndef f(x: 'torch.Tensor'):\n    x = x / 1; return x * x.sigmoid()\n",
        "kept",
    ),
    make_program(
        "a package like torch", "import math as torch\ndef f(x):\n    x = x / 1; return x * x.sigmoid()\n", "kept"
    ),
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: f"{p.expected}: {p.name}")
def test_names_of_new_code_are_bound_when_it_runs(program: Program) -> None:
    assert_holds(program)


BOUND_BY_NAME = [
    'globals()["F"] = None',
    "globals().update(F=None)",
    'globals().update({"F": None})',
    'vars()["F"] = None',
    'exec("F = None")',
    'exec("from no_f import G as F")',
    'import sys\nsetattr(sys.modules[__name__], "F", None)',
]


@pytest.mark.parametrize("binding", BOUND_BY_NAME)
def test_a_name_that_is_bound_through_a_string_is_not_used(binding: str) -> None:
    text = f"import torch\nimport torch.nn.functional as F\n{SILU}\n"
    if "sys.modules" in binding:  # the text runs without a module name here
        assert "x = x / 1; return torch.nn.functional.silu(x)" in rewritten(text + binding + "\n")
    else:
        assert_holds(make_program(binding, f"{text}{binding}\n"))


@pytest.mark.parametrize("binding", ['globals()["G"] = None', "globals().update(vars(object))", 'exec("G = 1")'])
def test_other_names_that_are_bound_through_strings_do_not_matter(binding: str) -> None:
    assert "F.silu(" in rewritten(f"import torch\nimport torch.nn.functional as F\n{SILU}\n{binding}\n")


def test_an_import_at_the_top_is_used() -> None:
    assert "return F.silu(x)" in rewritten(f"import torch\n{F_AS}{SILU}")


def test_a_try_that_begins_with_the_import_binds_it() -> None:
    assert "return F.silu(x)" in rewritten(
        f"import torch\ntry:\n    {F_AS}    import other\nexcept ImportError:\n    other = None\n{SILU}"
    )


@pytest.mark.parametrize(
    ("then", "used"), [("", "F"), ("    READY = True\n", "F"), ("    import other\n", "torch.nn.functional")]
)
def test_a_handler_that_unbinds_the_name_counts_if_something_else_may_fail(then: str, used: str) -> None:
    text = f"import torch\ntry:\n    {F_AS}{then}except ImportError:\n    F = None\n{SILU}"
    assert f"return {used}.silu(x)" in rewritten(text)


def test_an_added_import_uses_an_unused_name() -> None:
    text = rewritten(
        "from torch import sigmoid, Tensor\nif X:\n    import torch.nn.functional as F\n"
        "def f(x: Tensor):\n    x = x / 1; return x * sigmoid(x)\n"
    )
    assert "import torch.nn.functional as autofuse_f\n" in text and "return autofuse_f.silu(x)" in text


@pytest.mark.parametrize(
    ("text", "imported"),
    [
        ("import torch", True),
        ("from torch.nn import functional", True),
        ("try:\n    import torch\nexcept ImportError:\n    torch = None", True),
        ("def f():\n    import torch", True),
        ("if not TYPE_CHECKING:\n    import torch", True),
        ("if TYPE_CHECKING:\n    pass\nelse:\n    import torch", True),
        ("if TYPE_CHECKING:\n    import torch", False),
        ("if TYPE_CHECKING and X:\n    import torch", False),
        ("if not TYPE_CHECKING:\n    pass\nelse:\n    import torch", False),
        ("import torchvision", False),
        ("from .torch import nn", False),
        ("x = 'import torch'", False),
    ],
)
def test_an_import_counts_if_it_runs(text: str, imported: bool) -> None:
    assert imports_torch(ast.parse(text)) is imported
