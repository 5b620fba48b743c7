"""Waits, aliases, methods and globals may change operands between the matched steps and the fused call."""

from __future__ import annotations

import pytest

from tests.source.evidence.programs import Program, assert_holds, differences
from tests.source.rewriting import rewritten

QKV = "f(C(2, 3, 5, 4), C(2, 3, 7, 4), C(2, 3, 7, 6))"  # no gradients, because programs write in place
SAME = "(lambda x: f(x, x, x))(C(5, 4) * 1)"
MODULE = "M(A())(C(2, 5, 4), C(2, 5, 4), C(2, 5, 4))"


def function(name: str, between: str, expected: str, message: str = "", top: str = "", drive: str = QKV) -> Program:
    text = f"{top}\ndef f(q, k, v):\n    s = q @ k.transpose(-2, -1) / q.size(-1) ** 0.5\n"
    text += f"    {between}\n    return s.softmax(-1) @ v\n"
    return Program(name, text, drive, expected, message)


def method(
    name: str, between: str, other: str, expected: str, keys: str = "self.cache[:, :5]", message: str = ""
) -> Program:
    text = f"""
class A(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("cache", torch.ones(2, 8, 4))
        self.calls = 0
        self.scale = 0.5

{other}

    def forward(self, q, k, v):
        self.cache[:, :5] = k.detach()
        keys = {keys}
        s = q @ keys.transpose(-2, -1) * self.scale
        {between}
        return s.softmax(-1) @ v
"""
    return Program(name, text, MODULE, expected, message)


def method_text(body: str, head: str = "def step(self):") -> str:
    return f"    {head}\n        {body}"


GENERATOR = """
def g(q, k, v):
    s = q @ k.transpose(-2, -1) / q.size(-1) ** 0.5
    yield 1
    yield s.softmax(-1) @ v

def f(q, k, v):
    k = k.detach().clone()
    steps = g(q, k, v)
    next(steps)
    k.zero_()
    return next(steps)
"""
COROUTINE = (
    GENERATOR.replace("yield 1", "await nothing()").replace("yield s", "return s").replace("def g", "async def g")
)
AWAITING = f"""
import asyncio

async def nothing():
    await asyncio.sleep(0)
{COROUTINE[: COROUTINE.index("def f")]}
def f(q, k, v):
    return asyncio.run(g(q, k, v))
"""
OWN = """
class A(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        q, k, v = self.q(x), self.k(x), self.v(x)
        s = q @ k.transpose(-2, -1) / 2
        yield x
        yield s.softmax(-1) @ v
"""
COUNTED = "N = [0]\n\ndef count():\n    N[0] += 1\n"
PROGRAMS = [
    Program("a generator whose caller writes", GENERATOR, QKV, "unsafe", "while the function waits at `yield`"),
    Program("a coroutine", AWAITING, QKV, "unsafe", "while the function waits at `await`"),
    Program("a generator of what nobody else holds", OWN, "list(M(A())(T(2, 5, 4)))", "safe"),
    function("an alias is scaled in place", "v.detach().mul_(2)", "unsafe", "share no memory", drive=SAME),
    function("an alias is zeroed", "v.zero_()", "kept", drive=SAME),
    function("an entry of an alias is set", "v[0] = 1.0", "unsafe", "share no memory", drive=SAME),
    function("an alias is augmented", "v += 1", "unsafe", "share no memory", drive=SAME),
    function("what was computed is zeroed", "w = v * 2; w.zero_()", "safe"),
    function("what was computed is written", "w = v * 2; w += 1; v = w", "safe"),
    function("something is printed", "print(s.shape[-1])", "safe"),
    function("a function of the file looks", "look()", "safe", top="def look():\n    print('looked')\n"),
    function("a function of the file counts", "count()", "safe", top=COUNTED),
    function(
        "a function of the file writes to the keys", "zero(k)", "kept", top="def zero(x):\n    x.detach().zero_()\n"
    ),
    function(
        "a function of the file writes to the keys and gives something",
        "n = zero(k)",
        "kept",
        top="def zero(x):\n    x.detach().zero_()\n    return 1\n",
    ),
    Program(
        "a global factor is raised in between",
        "S = 1.0\n\ndef bump():\n    global S\n    S += 1\n\n"
        "def f(q, k, v):\n    s = q @ k.transpose(-2, -1) * S\n    bump()\n    return s.softmax(-1) @ v\n",
        QKV,
        "kept",
    ),
    Program(
        "a global factor is raised by a call that gives something",
        "S = 1.0\n\ndef bump():\n    global S\n    S += 1\n    return 1\n\n"
        "def f(q, k, v):\n    s = q @ k.transpose(-2, -1) * S\n    n = bump()\n    return s.softmax(-1) @ v\n",
        QKV,
        "kept",
    ),
    Program(
        "a setting of the file is changed in between",
        "class C:\n    pass\nC1 = C()\nC1.s = 1.0\n\ndef bump():\n    C1.s += 1\n\n"
        "def f(q, k, v):\n    s = q @ k.transpose(-2, -1) * C1.s\n    bump()\n    return s.softmax(-1) @ v\n",
        QKV,
        "kept",
    ),
    method("a method clears the cache", "self.step()", method_text("self.cache.zero_()"), "kept"),
    method("a method clears a part of the cache", "self.step()", method_text("self.cache[:, 0] = 0"), "kept"),
    method(
        "a method clears the cache by another name",
        "self.step()",
        method_text("c = self.cache\n        c.fill_(0)"),
        "kept",
    ),
    method(
        "a method clears the cache through another",
        "self.step()",
        method_text("self.clear()") + "\n" + method_text("self.cache.zero_()", "def clear(self):"),
        "kept",
    ),
    method(
        "a method that gives something clears the cache",
        "n = self.step()",
        method_text("self.cache.zero_()\n        return 1"),
        "kept",
    ),
    method("a method prints", "self.step()", method_text("print('step')"), "safe"),
    method(
        "a method counts, and keys are copied",
        "self.step()",
        method_text("self.calls += 1"),
        "safe",
        keys="self.cache[:, :5] * 1",
    ),
    method(
        "a method changes the scale",
        "self.step()",
        method_text("self.scale = 2.0"),
        "kept",
        keys="self.cache[:, :5] * 1",
    ),
]


# name -> a write to y between the sigmoid of x and the product; y may be x
WRITES = {
    "added to": "y.add_(1)",
    "given to out": "torch.add(y, 1, out=y)",
    "copied into": "y.copy_(y + 1)",
    "given other data": "y.data = y * 2",
    "its data are added to": "y.data += 1",
    "initialised": "nn.init.ones_(y)",
    "one of a list": "torch._foreach_add_([y], 1.0)",
    "a column of it": "y[:, 0] = 3",
    "a function of the file": "up(y)",
    "a function of the file that gives something": "n = up(y)",
}
HEAD = "def up(t):\n    t.add_(1)\n    return 1\n\ndef f(x, y):\n    s = torch.sigmoid(x)\n"
PROGRAMS += [
    Program(f"an alias: {name}", f"{HEAD}    {line}\n    return x * s", "(lambda x: f(x, x))(C(2, 8) * 1)", "unsafe")
    for name, line in WRITES.items()
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: f"{p.expected}: {p.name}")
def test_operands_keep_their_values_until_the_fused_call(program: Program) -> None:
    assert_holds(program)


CALLS = """
N = []

def bias_of(b, n):
    N.append(n)
    for _ in range(1):
        b = b * 1.0
    return b

class A(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.ones(5, 5))

    def forward(self, q, k, v, bias=None):
        attn = q @ k.transpose(-2, -1) / 2
        if self.table is not None:
            rel = self.table * 2
            attn = attn + bias_of({arguments})
        if bias is not None:
            attn = attn + bias
        attn = attn.softmax(dim=-1)
        return attn @ v
"""


@pytest.mark.parametrize(
    "arguments", ["rel, q.size(0)", "\n                rel, q.size(0)\n            ", "rel, len(N)"]
)
@pytest.mark.parametrize("bias", ["", ", C(5, 5)"])
def test_a_call_in_a_branch_runs_once(arguments: str, bias: str) -> None:
    before = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n" + CALLS.format(
        arguments=arguments
    )
    after = rewritten(before)
    drive = f"[M(A())(T(2, 5, 4), T(2, 5, 4), T(2, 5, 4){bias}), NS.N]"
    assert after != before and "@" not in after, after
    assert not differences(before, after, drive)
