"""Code for arrays of other libraries is not edited. The edit is safe only if the text shows a torch tensor."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from tests.source.evidence.programs import Program, assert_holds

NORM = """
    m = x.mean(-1, keepdims=True)
    v = ((x - m) ** 2).mean(-1, keepdims=True)
    return (x - m) / (v + 1e-5) ** 0.5
"""
NUMPY = "import numpy as np\n\n"
ARRAY = "torch.tensor(f(C(2, 8).double().numpy()))"
ATTEND = "return (q @ k.transpose(-2, -1) / q.size(-1) ** 0.5).softmax(-1) @ v"
QKV = "f(T(2, 3, 5, 4), T(2, 3, 7, 4), T(2, 3, 7, 6))"
LIKE = "f(*[NS.Tensor(T(2, 5, 4)) for _ in range(3)]).t"
TENSOR = '''
class Tensor:
    """Spelled like torch's, and not torch's."""

    def __init__(self, t): self.t = t
    def transpose(self, a, b): return Tensor(self.t.transpose(a, b))
    def softmax(self, dim): return Tensor(self.t.softmax(dim))
    def size(self, dim): return self.t.size(dim)
    def sigmoid(self): return Tensor(self.t.sigmoid())
    def masked_fill(self, m, v): return Tensor(self.t.masked_fill(m, v))
    def __matmul__(self, o): return Tensor(self.t @ o.t)
    def __mul__(self, o): return Tensor(self.t * (o.t if isinstance(o, Tensor) else o))
    def __truediv__(self, o): return Tensor(self.t / o)
'''


@pytest.fixture(autouse=True)
def _a_library_like_torch() -> Iterator[None]:
    """Installs a module that some of the programs import."""
    library = ModuleType("tinygrad_like")
    exec(TENSOR, library.__dict__)
    sys.modules["tinygrad_like"] = library
    yield
    del sys.modules["tinygrad_like"]


def of_numpy(name: str, signature: str, before: str = "", drive: str = ARRAY, expected: str = "kept") -> Program:
    return Program(name, f"{NUMPY}def f({signature}):{before}{NORM}", drive, expected)


def norm(
    name: str, signature: str, before: str = "", expected: str = "safe", drive: str = "f(T(2, 8))", top: str = ""
) -> Program:
    body = NORM if not before else f"\n{before}{NORM}"
    message = "assumes that `x` is a torch tensor" if expected == "unsafe" else ""
    return Program(name, f"{NUMPY}{top}\ndef f({signature}):{body}", drive, expected, message)


ARRAYS = [
    of_numpy("annotated as an array", "x: np.ndarray"),
    of_numpy("annotated in quotes", 'x: "np.ndarray"'),
    of_numpy("an array or None", "x: np.ndarray | None"),
    Program(
        "annotated with a type of numpy.typing",
        "from numpy.typing import NDArray\ndef f(x: NDArray):" + NORM,
        ARRAY,
        "kept",
    ),
    of_numpy("made by numpy", "x", "\n    x = np.asarray(x) * 2"),
    of_numpy("a copy by numpy, cast", "x", "\n    x = np.copy(x).astype(np.float64)"),
    of_numpy("asked for its bytes", "x", "\n    size = len(x.tobytes())"),
    of_numpy("cast by astype", "x", "\n    y = x.astype(np.float64)\n    assert y is not None"),
    of_numpy("taken from a tensor", "t", "\n    x = t.detach().cpu().double().numpy()", "torch.tensor(f(T(2, 8)))"),
    of_numpy("stacked by numpy", "x", "\n    x = np.stack([x, x])"),
    of_numpy("asserted to be an array", "x", "\n    assert isinstance(x, np.ndarray)"),
    of_numpy("returned unless it is an array", "x", "\n    if not isinstance(x, np.ndarray):\n        return x"),
    Program(
        "in the branch for arrays",
        f"{NUMPY}def f(x):\n    if isinstance(x, np.ndarray):{NORM.replace(chr(10), chr(10) + '    ')}\n    return x",
        ARRAY,
        "kept",
    ),
    Program(
        "an array of the file",
        f"{NUMPY}x = np.linspace(0.0, 1.0, 16).reshape(2, 8)\ndef f():{NORM}",
        "torch.tensor(f())",
        "kept",
    ),
    Program(
        "an attribute that numpy made",
        """
        import numpy as np

        class Table:
            def __init__(self):
                self.x = np.ones((2, 8))

            def f(self):
                return self.x * (self.x + 3).clip(0, 6) / 6
        """,
        "torch.tensor(Table().f())",
        "kept",
    ),
    Program(
        "annotated as another library's",
        f"from tinygrad_like import Tensor\ndef f(q: Tensor, k: Tensor, v: Tensor):\n    {ATTEND}",
        LIKE,
        "kept",
    ),
    Program(
        "annotated as a class of the file",
        f"{TENSOR}\ndef f(q: Tensor, k: Tensor, v: Tensor):\n    {ATTEND}",
        LIKE,
        "kept",
    ),
]

ASSUMED = [
    norm("nothing tells", "x", expected="unsafe"),
    Program(
        "no sign of torch in an activation",
        "def f(x):\n    return x * (x + 3).clip(0, 6) / 6",
        "f(T(2, 8))",
        "unsafe",
        "assumes that `x` is a torch tensor",
    ),
    Program(
        "a library like torch is there, and methods alone speak for tensors",
        f"from tinygrad_like import Tensor\ndef f(q, k, v):\n    {ATTEND}",
        LIKE,
        "unsafe",
        "is a torch tensor",
    ),
    Program(
        "a class like torch's is there", f"{TENSOR}\ndef f(q, k, v):\n    {ATTEND}", LIKE, "unsafe", "is a torch tensor"
    ),
    Program(
        "a function of torch in another branch",
        "def f(x, fast=False):\n    if fast:\n        return torch.relu(x)\n    return x * (x + 3).clip(0, 6) / 6",
        "f(T(2, 8))",
        "unsafe",
        "assumes that `x` is a torch tensor",
    ),
    Program(
        "torch takes any array there",
        "def f(x):\n    y = torch.as_tensor(x)\n    return x * (x + 3).clip(0, 6) / 6, y",
        "f(T(2, 8))",
        "unsafe",
    ),
    norm("an array or a tensor", "x: np.ndarray | torch.Tensor", expected="unsafe"),
    Program(
        "a module of another kind",
        "class Module: pass\nclass Act(Module):\n    def forward(self, x):\n        return x * (x + 3).clip(0, 6) / 6",
        "Act().forward(T(2, 8))",
        "unsafe",
    ),
]

SHOWN = [
    norm("annotated", "x: torch.Tensor"),
    norm("annotated in quotes", 'x: "torch.Tensor"'),
    norm("a tensor or None", "x: torch.Tensor | None"),
    norm("annotated by its bare name", "x: Tensor", top="from torch import Tensor\n"),
    norm("annotated by a name of the file", "x: Floats", top="Floats = torch.Tensor\n"),
    norm("optional", "x: Optional[torch.Tensor]", top="from typing import Optional\n"),
    norm("asserted to be a tensor", "x", "    assert isinstance(x, torch.Tensor)"),
    norm("asked whether it is a tensor", "x", "    if not torch.is_tensor(x):\n        raise TypeError"),
    norm("made a tensor where it is none", "x", "    if not isinstance(x, torch.Tensor):\n        x = torch.tensor(x)"),
    norm("made a tensor", "x", "    x = torch.as_tensor(x)"),
    norm("made from an array", "a", "    x = torch.from_numpy(a)", drive="f(C(2, 8).double().numpy())"),
    norm("a method of tensors before", "x", "    x = x.contiguous()"),
    norm("a function of torch before", "x", "    y = torch.relu(x)"),
    Program(
        "the result goes into torch's function",
        "def f(x):\n    x = x / 1\n    y = x * (x + 3).clip(0, 6) / 6\n"
        "    return F.linear(y, torch.eye(8, dtype=y.dtype))",
        "f(T(2, 8))",
        "safe",
    ),
    Program(
        "torch's keyword",
        "def f(x):\n    return x / ((x * x).mean(-1, keepdim=True) + 1e-5) ** 0.5",
        "f(T(2, 8))",
        "safe",
    ),
    Program(
        "torch's argument by position",
        "def f(x):\n    return x / ((x * x).mean(-1, True) + 1e-5) ** 0.5",
        "f(T(2, 8))",
        "safe",
    ),
    Program("methods of tensors alone", f"def f(q, k, v):\n    {ATTEND}", QKV, "safe"),
    Program(
        "numpy is there, and the methods are torch's", f"import numpy as np\ndef f(q, k, v):\n    {ATTEND}", QKV, "safe"
    ),
    Program(
        "numpy computes a number",
        "import numpy as np\ndef f(q, k, v):\n    return torch.softmax(q @ k.mT / np.sqrt(q.shape[-1]), -1) @ v",
        QKV,
        "safe",
    ),
    Program(
        "a function of torch on a value computed from it",
        "def f(x):\n    x = x / 1\n    return 0.5 * x * (1 + torch.tanh(0.7978845608028654 * (x + 0.044715 * x ** 3)))",
        "f(T(2, 8))",
        "safe",
    ),
    Program(
        "an argument of a module's forward",
        "class Act(nn.Module):\n    def forward(self, x):\n        return x * (x + 3).clip(0, 6) / 6",
        "M(Act())(T(2, 8))",
        "safe",
    ),
    Program(
        "a helper method of a module",
        "class Act(nn.Module):\n    def act(self, y):\n        y = y / 1\n        return y * (y + 3).clip(0, 6) / 6\n"
        "    def forward(self, x):\n        print(1)\n        return self.act(x)",
        "M(Act())(T(2, 8))",
        "safe",
    ),
    Program(
        "a parameter",
        "class Act(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.w = nn.Parameter(torch.ones(8))\n"
        "    def gate(self):\n        w = self.w / 1\n        return w * (w + 3).clip(0, 6) / 6",
        "M(Act()).gate()",
        "safe",
    ),
    Program(
        "a buffer",
        "class Act(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.register_buffer('w', torch.ones(8))\n"
        "    def gate(self):\n        return self.w * (self.w + 3).clip(0, 6) / 6",
        "M(Act()).gate()",
        "unsafe",
    ),
    Program(
        "what a child gives",
        "class Act(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.fc = nn.Linear(8, 8)\n"
        "    def run(self, x):\n        y = self.fc(x)\n        return y * (y + 3).clip(0, 6) / 6",
        "M(Act()).run(T(2, 8))",
        "safe",
    ),
    Program(
        "a function of autograd",
        "class Act(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):\n"
        "        return x * (x + 3).clip(0, 6) / 6\n"
        "    @staticmethod\n    def backward(ctx, g):\n        return g",
        "Act.apply(T(2, 8))",
        "safe",
    ),
]
SWISH = "x * (x + 3).clip(0, 6) / 6"
# name -> code before the activation in f(x). None of it shows that x is a tensor, because it may not run.
NO_EVIDENCE = {
    "in a try": "try:\n        x = x.unsqueeze(0)\n    except AttributeError:\n        pass",
    "in a branch": "if hasattr(x, 'detach'):\n        x = x.detach()",
    "in one side of an expression": "y = x.detach() if hasattr(x, 'detach') else x",
    "in a test that may stop": "y = hasattr(x, 'detach') and torch.relu(x)",
    "in a lambda": "y = lambda: torch.relu(x)",
    "in a comprehension": "y = [torch.relu(x) for _ in range(0)]",
    "in a loop": "for _ in range(0):\n        y = torch.relu(x) * x.sigmoid()",
    "where errors are suppressed": "with __import__('contextlib').suppress(TypeError):\n        y = torch.relu(x)",
    "on something else": "y = torch.relu(torch.tensor(x))",
    "in the branch for tensors": "if isinstance(x, torch.Tensor):\n        return torch.relu(x) * x.sigmoid()",
}
UNSHOWN = [
    Program(
        f"torch is used {name}",
        f"def f(x):\n    {before}\n    return {SWISH}",
        ARRAY,
        "unsafe",
        "`x` is a torch tensor",
    )
    for name, before in NO_EVIDENCE.items()
]
CALLED = """
class Act(nn.Module):
    def act(self, x):
        return x * (x + 3).clip(0, 6) / 6

    def first(self, x):
        return self.act(x)

    def forward(self, x):
        print(1)
        return torch.tensor(self.act(x.detach().double().numpy()))
"""
UNSHOWN.append(Program("a helper method that one caller gives an array", CALLED, "Act()(C(2, 8))", "unsafe"))
PROGRAMS = [*UNSHOWN, *ARRAYS, *ASSUMED, *SHOWN]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: f"{p.expected}: {p.name}")
def test_an_operand_is_a_torch_tensor_only_by_evidence(program: Program) -> None:
    assert_holds(program)
