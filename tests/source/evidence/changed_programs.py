"""Programs in which something changes what an edit reads through: {what is read} x {who changes it} x {kind of edit}.

`Part` is one class that reads through one name, with another meaning for that name, and one that is the same. `WAYS`
are the ways in which the meaning is put in the name's place.
"""

from __future__ import annotations

from dataclasses import dataclass

HEAD = """\
import math
import sys
from unittest import mock
import torch
from torch import nn
import torch.nn.functional as F
"""


@dataclass(frozen=True)
class Part:
    """`class Base`, which reads `name`. `other` and `same` are expressions; for methods, functions of (self, ...)."""

    name: str
    base: str
    read: str
    other: str
    same: str
    inputs: str = "(2, 5, 4), (2, 5, 4), (2, 5, 4)"
    kind: str = "child"  # child, method, attribute, helper
    target: str = "torch"

    @property
    def id(self) -> str:
        return self.name


ATTENTION = """
    def forward(self, q, k, v):
        return {softmax}({scores}) @ v
"""
PARTS = (
    Part(
        "a softmax in attention",
        """
class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.sm = nn.Softmax(dim=-1)

    def forward(self, q, k, v):
        return self.sm(q @ k.transpose(-2, -1)) @ v
""",
        "sm", "nn.Softmax(dim=-2)", "nn.Softmax(dim=-1)",
    ),
    Part(
        "a dropout in attention",
        """
class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.dr = nn.Dropout(0.0)

    def forward(self, q, k, v):
        return self.dr((q @ k.transpose(-2, -1)).softmax(-1)) @ v
""",
        "dr", "nn.Tanh()", "nn.Dropout(0.0)",
    ),
    Part(
        "a softmax of the project's own in attention",
        """
class Own(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=-1)


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.own = Own()

    def forward(self, q, k, v):
        return self.own(q @ k.transpose(-2, -1)) @ v
""",
        "own", "nn.Softmax(dim=-2)", "Own()",
    ),
    Part(
        "the scores of attention",
        """
class Base(nn.Module):
    def scores(self, q, k):
        return q @ k.transpose(-2, -1) / 2

    def forward(self, q, k, v):
        return self.scores(q, k).softmax(-1) @ v
""",
        "scores", "lambda self, q, k: -torch.cdist(q, k)", "def scores(self, q, k):\n    return q @ k.transpose(-2, -1) / 2",
        kind="method",
    ),
    Part(
        "the scale of attention",
        """
class Base(nn.Module):
    scale = 0.5

    def forward(self, q, k, v):
        return (q @ k.transpose(-2, -1) * self.scale).softmax(-1) @ v
""",
        "scale", "torch.linspace(0.5, 1.0, 5, dtype=torch.float64)", "0.5", kind="attribute",
    ),
    Part(
        "the scale of attention, set by __init__",
        """
class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = 4 ** -0.5

    def forward(self, q, k, v):
        return (q @ k.transpose(-2, -1) * self.scale).softmax(-1) @ v
""",
        "scale", "torch.linspace(0.5, 1.0, 5, dtype=torch.float64)", "8 ** -0.5", kind="attribute",
    ),
    Part(
        "a helper of the file in attention",
        """
def scores(q, k):
    return q @ k.transpose(-2, -1) / 2


class Base(nn.Module):
    def forward(self, q, k, v):
        return scores(q, k).softmax(-1) @ v
""",
        "scores", "lambda q, k: -torch.cdist(q, k)", "", kind="helper",
    ),
    Part(
        "the norm of a norm",
        """
class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def mean_square(self, x):
        return x.pow(2).mean(-1, keepdim=True)

    def forward(self, x):
        return x * torch.rsqrt(self.mean_square(x) + 1e-6) * self.weight
""",
        "mean_square", "lambda self, x: x.abs().mean(-1, keepdim=True)",
        "def mean_square(self, x):\n    return x.pow(2).mean(-1, keepdim=True)", "(2, 5, 4)", "method",
    ),
    Part(
        "the eps of a norm",
        """
class Base(nn.Module):
    eps = 1e-6

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight
""",
        "eps", "torch.linspace(0.5, 1.0, 4, dtype=torch.float64)", "1e-5", "(2, 5, 4)", "attribute",
    ),
    Part(
        "a part of an activation",
        """
class Base(nn.Module):
    def curve(self, x):
        return torch.erf(x / math.sqrt(2.0))

    def forward(self, x):
        return 0.5 * x * (1.0 + self.curve(x))
""",
        "curve", "lambda self, x: torch.tanh(x)", "def curve(self, x):\n    return torch.erf(x / math.sqrt(2.0))",
        "(2, 5, 4)", "method",
    ),
    Part(
        "the gate of an activation",
        """
class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Sigmoid()

    def forward(self, x):
        return x * self.gate(x)
""",
        "gate", "nn.Tanh()", "nn.Sigmoid()", "(2, 5, 4)",
    ),
    Part(
        "a helper of the file in an activation",
        """
def curve(x):
    return torch.erf(x / math.sqrt(2.0))


def gelu(x):
    return 0.5 * x * (1.0 + curve(x))


class Base(nn.Module):
    def forward(self, x):
        return gelu(x)
""",
        "curve", "lambda x: torch.tanh(x)", "", "(2, 5, 4)", "helper",
    ),
    Part(
        "the activation of an MLP",
        """
class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 4)
        self.act = nn.GELU()

    def forward(self, x):
        return self.b(self.act(self.a(x)))
""",
        "act", "nn.ReLU()", "nn.GELU()", "(2, 5, 4)", target="autofuse",
    ),
    Part(
        "a layer of a Sequential",
        """
class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Softmax(dim=-1))

    def forward(self, q, k, v):
        return self.net(q @ k.transpose(-2, -1)) @ v
""",
        "net", "nn.Sequential(nn.Softmax(dim=-2))", "nn.Sequential(nn.Softmax(dim=-1))",
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Way:
    """How `value` gets into the place of `name`: `text` in the file, `made` an instance. `kinds`: of parts it is for.

    `outside`: `text` stands in another file of the project, which imports the first as `model`.
    """

    name: str
    text: str
    made: str = "made()"
    kinds: tuple[str, ...] = ("child", "attribute")
    outside: bool = False


SUBCLASS = "class Child({bases}):\n    def __init__(self):\n        super().__init__()\n        self.{name} = {value}\n"
OF_CHILD = "child", "attribute"
WAYS = (
    Way("a subclass assigns it", SUBCLASS.replace("{bases}", "Base"), "Child()"),
    Way("a subclass of a subclass assigns it", "class Middle(Base):\n    pass\n\n\n" + SUBCLASS.replace("{bases}", "Middle"), "Child()"),
    Way("a subclass defines it", "class Child(Base):\n    {name} = {value}\n", "Child()", ("method", "attribute class")),
    Way("a subclass has it as a property", "class Child(Base):\n    @property\n    def {name}(self):\n        return {value}\n", "Child()", ("attribute class",)),
    Way("a mixin defines it", "class Mixin:\n    {name} = {value}\n\n\nclass Child(Mixin, Base):\n    pass\n", "Child()", ("method", "attribute class")),
    Way("a mixin assigns it", "class Mixin:\n    def change(self):\n        self.{name} = {value}\n        return self\n\n\nclass Child(Base, Mixin):\n    pass\n", "Child().change()"),
    Way("a subclass in another file assigns it", SUBCLASS.replace("{bases}", "model.Base"), "Child()", OF_CHILD, True),
    Way("a subclass in another file imports the class", "from model import Base as B\n\n\n" + SUBCLASS.replace("{bases}", "B"), "Child()", OF_CHILD, True),
    Way("a subclass in another file defines it", "from model import Base\n\n\nclass Child(Base):\n    {name} = {value}\n", "Child()", ("method", "attribute class"), True),
    Way("an instance is assigned another", "def made():\n    m = Base()\n    m.{name} = {value}\n    return m\n"),
    Way("an argument is assigned another", "def change(m):\n    m.{name} = {value}\n    return m\n\n\ndef made():\n    return change(Base())\n"),
    Way("an instance in a list is assigned another", "def made():\n    every = [Base() for _ in range(2)]\n    for m in every:\n        m.{name} = {value}\n    return every[0]\n"),
    Way("a model that holds it assigns another", "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.base = Base()\n        self.base.{name} = {value}\n\n    def forward(self, *x):\n        return self.base(*x)\n", "Net()"),
    Way("setattr with its name", "def made():\n    m = Base()\n    setattr(m, \"{name}\", {value})\n    return m\n"),
    Way("setattr with a name that is given", "def change(m, name, value):\n    setattr(m, name, value)\n    return m\n\n\ndef made():\n    return change(Base(), \"{name}\", {value})\n"),
    Way("every child of a kind is replaced", "def change(model):\n    for name, child in model.named_children():\n        setattr(model, name, {value})\n    return model\n\n\ndef made():\n    return change(Base())\n", "made()", ("child one",)),
    Way("the table of children is written", "def made():\n    m = Base()\n    m._modules[\"{name}\"] = {value}\n    return m\n", "made()", ("child",)),
    Way("add_module under its name", "def made():\n    m = Base()\n    m.add_module(\"{name}\", {value})\n    return m\n", "made()", ("child",)),
    Way("a file that imports it assigns another", "def made():\n    m = model.Base()\n    m.{name} = {value}\n    return m\n", "made()", OF_CHILD, True),
    Way("the class is given another", "Base.{name} = {value}\n", "Base()", ("method", "attribute class")),
    Way("the class is given another by setattr", "setattr(Base, \"{name}\", {value})\n", "Base()", ("method", "attribute class")),
    Way("another file gives the class another", "model.Base.{name} = {value}\n", "model.Base()", ("method", "attribute class"), True),
    Way("mock gives the class another", "mock.patch.object(Base, \"{name}\", {value}).start()\n", "Base()", ("method", "attribute class")),
    Way("an instance is given another method", "def made():\n    m = Base()\n    m.{name} = ({value}).__get__(m)\n    return m\n", "made()", ("method",)),
    Way("globals are written", "globals()[\"{name}\"] = {value}\n", "Base()", ("helper",)),
    Way("the module is written", "setattr(sys.modules[__name__], \"{name}\", {value})\n", "Base()", ("helper",)),
    Way("another file writes the module", "model.{name} = {value}\n", "model.Base()", ("helper",), True),
    Way("mock writes the module", "mock.patch(\"model.{name}\", {value}).start()\n", "model.Base()", ("helper",), True),
    Way("a global statement rebinds it", "def change():\n    global {name}\n    {name} = {value}\n\n\nchange()\n", "Base()", ("helper",)),
    Way("a hook on the child", "LOG = []\n\n\ndef made():\n    m = Base()\n    m.{name}.register_forward_hook(lambda mod, i, o: o * 2)\n    return m\n", "made()", ("child",)),
    Way("a hook before the child", "def made():\n    m = Base()\n    m.{name}.register_forward_pre_hook(lambda mod, i: (i[0] * 2,))\n    return m\n", "made()", ("child",)),
    Way("a hook on every module", "def made():\n    m = Base()\n    for child in m.children():\n        child.register_forward_hook(lambda mod, i, o: o * 2)\n    return m\n", "made()", ("child",)),
    Way("a hook on a module that is looked up", "def made():\n    m = Base()\n    m.get_submodule(\"{name}\").register_forward_hook(lambda mod, i, o: o * 2)\n    return m\n", "made()", ("child",)),
    Way("a hook by way of a name", "def made():\n    m = Base()\n    child = m.{name}\n    child.register_forward_hook(lambda mod, i, o: o * 2)\n    return m\n", "made()", ("child",)),
    Way("a hook from another file", "def made():\n    m = model.Base()\n    m.{name}.register_forward_hook(lambda mod, i, o: o * 2)\n    return m\n", "made()", ("child",), True),
)  # fmt: skip


def fits(part: Part, way: Way) -> bool:
    """Whether the way is one for that kind of part."""
    of_class = part.kind == "attribute" and f"    {part.read} = " in part.base
    one = part.kind == "child" and part.base.count("nn.") < 5 and "Sequential" not in part.base
    kinds = {part.kind, *(["attribute class"] if of_class else []), *(["child one"] if one else [])}
    return bool(kinds & set(way.kinds))
